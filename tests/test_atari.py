"""Atari games: every setting and every end is recorded and replayed, and every edit is found in its place."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import recorder.cli
import replay.cli
from recorder import RecordEpisode
from recorder.encoding import decode_value, encode_value
from recorder.errors import CannotRunError, MissingExtraError, NotRebuildableError, UsageError
from recorder.games import GameSettings, list_games, make_game
from recorder.holding import HoldAction
from recorder.records import FRAMES, MANIFEST, RESET, SUMMARY, TRANSITIONS, encode_line
from replay.engine import Replay
from replay.opening import replay_episode
from test_detection import judge, read, redo_digests, write

pytest.importorskip("ale_py", reason="ale-py is not installed")

PONG = "ALE/Pong-v5"
VERIFIED, DIVERGED, USAGE, DAMAGED, REFUSED = 0, 1, 2, 3, 4


def play(out, env_id=PONG, *, settings=None, kwargs=None, seed=1, decisions=10**6, limits=None, **options):
    """Record one episode of random actions up to a limit or a number of decisions; return its folder."""
    env = make_game(env_id, settings, render_mode=options.pop("render_mode", "rgb_array"), kwargs=kwargs)
    with RecordEpisode(env, out, **options) as recorder:
        recorder.limit(**(limits or {}))
        recorder.reset(seed=seed)
        play_on(recorder, decisions)
        recorder.end_episode()
    return recorder.episode_folder


def play_on(recorder, decisions=10**6):
    recorder.action_space.seed(1)
    for _ in range(decisions):
        _, _, terminated, truncated, _ = recorder.step(recorder.action_space.sample())
        if terminated or truncated or recorder.reached_limit is not None:
            return


def bytes_of(folder):
    names = (RESET, TRANSITIONS, FRAMES, "arrays.bin")
    return {name: (folder / name).read_bytes() for name in names if (folder / name).exists()}


def assert_verifies(folder):
    """It replays as the whole or the prefix that its summary says, and everything in it was compared."""
    verdict = replay_episode(folder)
    summary = read(folder, SUMMARY)
    assert verdict.exit_code == VERIFIED, verdict.to_json()
    assert verdict.name == {"complete": "verified", "incomplete": "verified prefix"}[summary["status"]]
    assert (verdict.decisions, verdict.raw_frames) == (summary["decisions"], summary["raw_frames"])
    assert verdict.total_reward == summary["return"]
    compared = verdict.compared
    assert compared["ram"] == verdict.raw_frames + 1
    if read(folder, MANIFEST)["channels"]["rgb"]["source"]:
        assert compared["rgb"] == verdict.raw_frames + 1
    return verdict


@pytest.fixture
def quick_emulator(monkeypatch):
    """Emulators that put back the state after loading a ROM: loading takes 60 ms, and each replay does it twice.

    One emulator serves all environments of the same settings, of which only one may be in use at a time.
    """
    atari_env = sys.modules["ale_py.env"].AtariEnv
    load, seed_game = atari_env.load_game, atari_env.seed_game

    def load_game(self):
        numbers = (self.ale.getFloat("repeat_action_probability"), self.ale.getInt("max_num_frames_per_episode"))
        settings = (self._game, self._game_mode, self._game_difficulty, numbers)
        seed = self.ale.getInt("random_seed")
        self.ale = EMULATORS.setdefault(settings, self.ale)
        if (settings, seed) not in EMULATOR_STATES:
            self.ale.setInt("random_seed", seed)
            load(self)
            EMULATOR_STATES[settings, seed] = self.ale.cloneState(include_rng=True)
        self.ale.restoreState(EMULATOR_STATES[settings, seed])

    monkeypatch.setattr(atari_env, "load_game", load_game)
    monkeypatch.setattr(atari_env, "seed_game", lambda self, seed=None: seed_game(self, seed or 0))


EMULATORS, EMULATOR_STATES = {}, {}


# The commands, in processes of their own

RUNS = {
    "hold 1": ["--frames", 60, "--hold", 1, "--noop-max", 30, "--seed", 3],
    "hold 3": ["--frames", 100, "--hold", 3, "--env", "ALE/Breakout-v5"],
    "hold 4": ["--frames", 2001, "--episodes", 1],
    "hold 16": ["--frames", 100, "--hold", 16, "--full-action-space", "--mode", 1, "--difficulty", 2],
    "points": ["--decisions", 900, "--point-limit", 2, "--episodes", 1, "--no-rgb"],
    "decisions": ["--decisions", 8, "--sticky", 0, "--observe", "grayscale", "--info", "lives,seeds,rewards"],
    "truncated": ["--frames", 2001, "--env-kwargs", '{"max_num_frames_per_episode": 200}', "--episodes", 1],
}


def run_command(module, *arguments, **environment):
    command = [sys.executable, "-m", module, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})


def record_twice_and_replay(folder, arguments):
    """Two recordings in processes that share nothing, and what a third says of the first."""
    asked = ["play", "--env", PONG, "--policy", "random", "--seed", 1, *arguments, "--json"]
    for twin, hash_seed in (("first", "0"), ("second", "4242")):
        done = run_command("recorder.cli", *asked, "--out", folder / twin, PYTHONHASHSEED=hash_seed)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
    printed = json.loads(done.stdout)
    first, second = (sorted((folder / twin).iterdir()) for twin in ("first", "second"))
    assert [path.name for path in first] == [path.name for path in second] == ["episode-0000"]
    done = run_command("replay.cli", "--episode", first[0], "--out", folder / "replay", "--json")
    return first[0], second[0], printed["episodes"], (done.returncode, json.loads(done.stdout))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What became of each run, by name; as many at a time as there are cores."""
    folder = tmp_path_factory.mktemp("runs")
    with ThreadPoolExecutor(2) as pool:
        waiting = {
            name: pool.submit(record_twice_and_replay, folder / name, arguments) for name, arguments in RUNS.items()
        }
    return {name: one.result() for name, one in waiting.items()}


@pytest.mark.parametrize("name", RUNS)
def test_commands_record_the_same_bytes_twice_and_replay_them_in_another_process(name, runs):
    first, second, episodes, (code, verdict) = runs[name]
    assert bytes_of(first) == bytes_of(second)
    assert (code, verdict["verdict"], verdict["faults"]) == (VERIFIED, "verified", [])
    (episode,) = episodes
    frames = read(first, FRAMES)
    assert episode["raw_frames"] == len(frames) == verdict["raw_frames"]
    assert verdict["compared"]["ram"] == len(frames) + 1
    assert verdict["compared"].get("rgb", 0) == (0 if "--no-rgb" in RUNS[name] else len(frames) + 1)
    assert all(len(frame["ram"]) == 2 * 128 for frame in frames)


ENDS = {
    "hold 1": ("frame_limit", 60, 1),
    "hold 3": ("frame_limit", 34, 1),
    "hold 4": ("frame_limit", 501, 1),
    "hold 16": ("frame_limit", 7, 4),
    "decisions": ("decision_limit", 8, 4),
    "truncated": ("truncated", 50, 4),
}


@pytest.mark.parametrize(("name", "end"), ENDS.items())
def test_a_limit_cuts_the_last_hold_and_names_itself(name, end, runs):
    folder = runs[name][0]
    transitions, summary = read(folder, TRANSITIONS), read(folder, SUMMARY)
    assert (summary["end_reason"], summary["decisions"], transitions[-1]["raw_frames"]) == end
    held = read(folder, MANIFEST)["environment"]["spec"]["additional_wrappers"][-1]["kwargs"]["dict"]["hold_frames"]
    assert {row["raw_frames"] for row in transitions[:-1]} == {held}
    assert summary["status"] == "complete"


def test_a_point_limit_ends_the_episode_on_the_raw_frame_of_its_last_point(runs):
    folder = runs["points"][0]
    frames, summary = read(folder, FRAMES), read(folder, SUMMARY)
    assert summary["end_reason"] == "point_limit"
    assert [bool(frame["reward"]) for frame in frames].count(True) == 2
    assert frames[-1]["reward"] != 0.0
    assert read(folder, MANIFEST)["limits"] == {"decisions": 900, "points": 2}


def test_the_manifest_holds_every_setting_and_the_digest_of_the_rom(runs):
    environment = read(runs["hold 16"][0], MANIFEST)["environment"]
    kwargs = environment["spec"]["kwargs"]["dict"]
    assert (kwargs["mode"], kwargs["difficulty"], kwargs["full_action_space"]) == (1, 2, True)
    assert (kwargs["frameskip"], kwargs["repeat_action_probability"]) == (1, 0.25)
    assert environment["action_space"] == "Discrete(18)"
    (asset,) = environment["assets"]
    rom = Path(sys.modules["ale_py"].roms.get_rom_path("pong")).read_bytes()
    assert asset == {"name": "pong.bin", "sha256": hashlib.sha256(rom).hexdigest()}
    assert read(runs["hold 4"][0], MANIFEST)["clocks"] == {"raw_frame_source": "environment", "raw_frame_hz": 60.0}


def test_all_eighteen_actions_are_drawn_and_recorded(runs):
    actions = {decode_value(row["action"]).item() for row in read(runs["hold 16"][0], TRANSITIONS)}
    assert max(actions) > 5  # Pong's own are six


@pytest.mark.parametrize("seed", [0, 3, 2**31, 2**32 - 1, 2**64 - 1])
def test_reset_noops_are_drawn_from_the_seed_and_recorded(seed, tmp_path, quick_emulator):
    folders = [
        play(tmp_path / str(run), settings=GameSettings(noop_max=30), seed=seed, limits={"raw_frames": 9})
        for run in range(2)
    ]
    assert bytes_of(folders[0]) == bytes_of(folders[1])
    drawn = int(np.random.default_rng(seed).integers(0, 31))
    assert read(folders[0], RESET)["reset_frames"] == drawn
    assert read(folders[0], FRAMES)[0]["raw_frame"] == 1
    assert_verifies(folders[0])


def test_reset_noops_are_those_of_a_bare_emulator(tmp_path):
    folder = play(tmp_path / "run", settings=GameSettings(noop_max=30), seed=3, limits={"raw_frames": 9})
    env = gymnasium.make(PONG, frameskip=1, obs_type="ram")
    env.reset(seed=3)
    drawn = read(folder, RESET)["reset_frames"]
    assert drawn > 0
    for _ in range(drawn):
        env.step(0)
    assert read(folder, RESET)["ram"] == env.unwrapped.ale.getRAM().tobytes().hex()


# The wrapper in Python


@pytest.mark.parametrize(("hold_frames", "sticky"), [(1, 0.25), (3, 0.0), (4, 0.25), (16, 1.0)])
def test_every_hold_and_stickiness_gives_what_a_bare_emulator_gives(hold_frames, sticky, tmp_path):
    settings = GameSettings(hold_frames=hold_frames, sticky=sticky)
    folder = play(tmp_path / "run", settings=settings, limits={"raw_frames": 90})
    env = gymnasium.make(PONG, frameskip=1, obs_type="ram", repeat_action_probability=sticky)
    env.reset(seed=1)
    actions = {row["decision"]: decode_value(row["action"]) for row in read(folder, TRANSITIONS)}
    for frame in read(folder, FRAMES):
        _, reward, *_ = env.step(actions[frame["decision"]])
        assert (frame["ram"], frame["reward"]) == (env.unwrapped.ale.getRAM().tobytes().hex(), reward)
    assert_verifies(folder)


def test_a_game_that_ends_by_itself_is_recorded_as_terminated(tmp_path, quick_emulator):
    folder = play(tmp_path / "run", settings=GameSettings(hold_frames=16), render_mode=None)
    summary = read(folder, SUMMARY)
    assert (summary["end_reason"], summary["terminated"], summary["status"]) == ("terminated", True, "complete")
    assert summary["return"] <= -15.0
    last = read(folder, TRANSITIONS)[-1]
    assert [frame["terminated"] for frame in read(folder, FRAMES)[-2:]] == [False, True]
    assert last["raw_frames"] == len(last["rewards"]) <= 16
    assert_verifies(folder)


def test_a_truncation_by_the_environment_cuts_a_hold_and_is_recorded_as_such(tmp_path, quick_emulator):
    folder = play(tmp_path / "run", settings=GameSettings(hold_frames=3), kwargs={"max_num_frames_per_episode": 200})
    summary, last = read(folder, SUMMARY), read(folder, TRANSITIONS)[-1]
    assert (summary["end_reason"], summary["truncated"], summary["raw_frames"]) == ("truncated", True, 200)
    assert (last["raw_frames"], last["truncated"], last["terminated"]) == (2, True, False)
    assert_verifies(folder)


class SimulatorError(Exception):
    """What an emulator may raise."""


@pytest.mark.parametrize("raw_frame", [1, 2, 4, 5, 32, 131])
def test_an_error_in_mid_hold_leaves_the_decisions_before_it(raw_frame, tmp_path, quick_emulator):
    env = make_game(PONG, render_mode="rgb_array")
    simulator, count = env.unwrapped, 0
    real = simulator.step

    def step(action):
        nonlocal count
        count += 1
        if count == raw_frame:
            raise SimulatorError
        return real(action)

    simulator.step = step
    with RecordEpisode(env, tmp_path / "run") as recorder:
        recorder.reset(seed=1)
        with pytest.raises(SimulatorError):
            play_on(recorder)
    summary = read(recorder.episode_folder, SUMMARY)
    assert (summary["end_reason"], summary["error_type"]) == ("error", "SimulatorError")
    assert summary["decisions"] == (raw_frame - 1) // 4 == len(read(recorder.episode_folder, TRANSITIONS))
    assert summary["raw_frames"] == 4 * summary["decisions"]
    assert assert_verifies(recorder.episode_folder).name == "verified prefix"


BAD_ACTIONS = [-1, 6, 9, True, np.True_, 1.0, None, "1", np.int64(6), np.array([1]), 2**63]


@pytest.mark.parametrize("action", BAD_ACTIONS, ids=repr)
def test_an_action_out_of_range_is_refused_and_the_episode_before_it_kept(action, tmp_path, quick_emulator):
    with RecordEpisode(make_game(PONG, render_mode="rgb_array"), tmp_path / "run") as recorder:
        recorder.reset(seed=1)
        play_on(recorder, 5)
        with pytest.raises(gymnasium.error.InvalidAction, match="not in Discrete"):
            recorder.step(action)
    summary = read(recorder.episode_folder, SUMMARY)
    assert (summary["end_reason"], summary["error_type"], summary["decisions"]) == ("error", "InvalidAction", 5)
    assert assert_verifies(recorder.episode_folder).name == "verified prefix"


@pytest.mark.parametrize("end", ["closed", "abandoned"])
def test_an_episode_that_its_caller_leaves_is_a_prefix(end, tmp_path, quick_emulator):
    with RecordEpisode(make_game(PONG, render_mode="rgb_array"), tmp_path / "run") as recorder:
        recorder.reset(seed=1)
        play_on(recorder, 9)
        folder = recorder.episode_folder
        if end == "abandoned":
            recorder.reset()
    assert read(folder, SUMMARY)["end_reason"] == end
    assert assert_verifies(folder).name == "verified prefix"


@pytest.mark.parametrize("rebuild", [False, True])
def test_every_episode_of_a_run_verifies_alone(rebuild, tmp_path, quick_emulator):
    with RecordEpisode(make_game(PONG, render_mode="rgb_array"), tmp_path / "run", rebuild=rebuild) as recorder:
        for _ in range(3):
            recorder.limit(points=1)
            recorder.reset(seed=None if recorder.episode_folder else 1)
            play_on(recorder)
            recorder.end_episode()
    for folder in sorted((tmp_path / "run").iterdir()):
        assert read(folder, SUMMARY)["end_reason"] == "point_limit"
        assert_verifies(folder)


def test_wrappers_around_a_held_game_are_built_again(tmp_path, quick_emulator):
    env = make_game(PONG, GameSettings(observe="grayscale"), render_mode="rgb_array")
    env = gymnasium.wrappers.ClipReward(gymnasium.wrappers.FrameStackObservation(env, 2), -0.5, 0.5)
    with RecordEpisode(env, tmp_path / "run", info_keys=["rewards", "reset_frames"]) as recorder:
        recorder.limit(points=1)
        recorder.reset(seed=1)
        play_on(recorder)
        recorder.end_episode()
    last = read(recorder.episode_folder, TRANSITIONS)[-1]
    assert (decode_value(last["reward"]), last["rewards"][-1]) == (-0.5, -1.0)
    assert last["info"]["rewards"] == last["rewards"]
    verdict = assert_verifies(recorder.episode_folder)
    assert verdict.compared["info"] == verdict.decisions + 1


def test_a_wrapper_that_gymnasium_would_build_in_another_place_is_refused(tmp_path):
    env = gymnasium.wrappers.TimeLimit(make_game(PONG), 7)
    with pytest.raises(NotRebuildableError, match=r"TimeLimit < HoldAction .* became HoldAction < TimeLimit"):
        RecordEpisode(env, tmp_path / "run")


def test_limits_of_one_episode_are_not_those_of_the_next(tmp_path, quick_emulator):
    with RecordEpisode(make_game(PONG), tmp_path / "run") as recorder:
        for limits, raw_frames in (({"raw_frames": 6}, 6), ({"decisions": 3}, 12), ({}, 20), ({"raw_frames": 1}, 1)):
            recorder.limit(**limits)
            recorder.reset(seed=1)
            play_on(recorder, 5)
            recorder.end_episode()
            assert read(recorder.episode_folder, SUMMARY)["raw_frames"] == raw_frames
            assert_verifies(recorder.episode_folder)


# What is refused


def fail(capsys, *arguments):
    """Exit code and the one line that `record play` wrote."""
    code = recorder.cli.main(["play", *map(str, arguments)])
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1, printed.err
    return code, printed.err


REFUSED_CALLS = {
    "unknown game": (["--env", "ALE/Pongg-v5"], REFUSED, "did you mean ALE/Pong-v5?"),
    "unknown version": (["--env", "ALE/Pong-v4"], REFUSED, "did you mean ALE/Pong-v5?"),
    "no game": (["--env", "ALE/"], REFUSED, "`record games` lists them"),
    "unknown mode": (["--env", PONG, "--mode", 77], REFUSED, "no mode 77: it has 0, 1"),
    "unknown difficulty": (["--env", PONG, "--difficulty", 9], REFUSED, "no difficulty 9: it has 0, 1, 2, 3"),
    "negative sticky": (["--env", PONG, "--sticky", -0.1], USAGE, "from 0 to 1, not -0.1"),
    "sticky above one": (["--env", PONG, "--sticky", 1.01], USAGE, "from 0 to 1, not 1.01"),
    "sticky no number": (["--env", PONG, "--sticky", "nan"], USAGE, "from 0 to 1, not nan"),
    "long hold": (["--env", PONG, "--hold", 17], USAGE, "from 1 to 16, not 17"),
    "many no-ops": (["--env", PONG, "--noop-max", 61], USAGE, "from 0 to 60, not 61"),
    "unknown argument": (["--env", PONG, "--env-kwargs", '{"colour": 1}'], USAGE, "colour"),
}


@pytest.mark.parametrize("call", REFUSED_CALLS)
def test_a_call_that_cannot_be_carried_out_gets_one_sentence_and_nothing_is_written(call, tmp_path, capsys):
    arguments, expected, words = REFUSED_CALLS[call]
    code, said = fail(capsys, *arguments, "--frames", 8, "--out", tmp_path / "run")
    assert code == expected
    assert words in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("hold_frames", [0, 17, True, 2.0, "4", None])
def test_a_hold_out_of_range_is_refused(hold_frames):
    with pytest.raises(UsageError, match="hold_frames must be a whole number from 1 to 16"):
        make_game(PONG, GameSettings(hold_frames=hold_frames))


def test_a_game_that_is_named_with_its_module_is_set_up_like_any(tmp_path):
    arguments = ["play", "--env", f"ale_py:{PONG}", "--frames", "8", "--out", str(tmp_path / "run")]
    assert recorder.cli.main(arguments) == VERIFIED
    manifest = json.loads((tmp_path / "run" / "episode-0000" / "manifest.json").read_bytes())
    assert manifest["environment"]["id"] == PONG
    assert manifest["clocks"] == {"raw_frame_source": "environment", "raw_frame_hz": 60.0}


@pytest.mark.parametrize("way", ["command", "keyword", "wrapper"])
def test_a_game_that_skips_frames_by_itself_is_not_held(way, tmp_path, capsys):
    """Four frames of the emulator would be recorded as one raw frame at 60 Hz."""
    if way == "command":
        arguments = ["--env", PONG, "--env-kwargs", '{"frameskip": 4}', "--frames", 8, "--out", tmp_path / "run"]
        assert fail(capsys, *arguments)[0] == USAGE
        return
    with pytest.raises(UsageError, match="frameskip"):
        make_game(PONG, kwargs={"frameskip": 4}) if way == "keyword" else HoldAction(gymnasium.make(PONG), 4)


def test_a_hold_within_a_hold_is_refused():
    with pytest.raises(UsageError, match="publishes its raw frames itself"):
        HoldAction(make_game(PONG), 4)


def test_a_noop_that_is_no_action_is_refused_when_it_is_named():
    with pytest.raises(UsageError, match="noop_action"):
        HoldAction(gymnasium.make(PONG, frameskip=1), noop_max=3, noop_action=9)


def test_an_environment_that_is_no_game_is_not_made_as_one():
    with pytest.raises(CannotRunError, match="no game 'CartPole-v1'"):
        make_game("CartPole-v1")


def test_a_folder_without_roms_is_not_taken_for_an_output_folder(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("ALE_ROMS_DIR", str(tmp_path / "nowhere"))
    code = recorder.cli.main(["play", "--env", PONG, "--frames", "8", "--out", str(tmp_path / "run")])
    said = capsys.readouterr().err
    assert code == REFUSED
    assert "ROM" in said
    assert "choose another place" not in said


def test_roms_of_ones_own_spoil_no_result(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("ALE_ROMS_DIR", str(Path(sys.modules["ale_py"].roms.__file__).parent))
    arguments = ["play", "--env", PONG, "--frames", "8", "--out", str(tmp_path / "run"), "--json"]
    assert recorder.cli.main(arguments) == VERIFIED
    (episode,) = json.loads(capsys.readouterr().out)["episodes"]
    arguments = ["--episode", episode["episode"], "--out", str(tmp_path / "replay"), "--json"]
    assert replay.cli.replay_main(arguments) == VERIFIED
    assert json.loads(capsys.readouterr().out)["verdict"] == "verified"


def test_roms_of_ones_own_do_not_spoil_what_is_shown_of_a_decision(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("ALE_ROMS_DIR", str(Path(sys.modules["ale_py"].roms.__file__).parent))
    arguments = ["--episode", str(runs["hold 4"][0]), "--decision", "2", "--image", str(tmp_path / "strip.png")]
    assert replay.cli.inspect_main([*arguments, "--json"]) == VERIFIED
    assert json.loads(capsys.readouterr().out)["kind"] == "inspection"


@pytest.mark.parametrize("sticky", [-1, 1.5, float("nan")])
def test_a_stickiness_out_of_range_is_refused_by_its_other_name_too(sticky):
    with pytest.raises(UsageError, match="sticky"):
        make_game(PONG, kwargs={"repeat_action_probability": sticky})


MISSING = """raise ModuleNotFoundError("No module named 'ale_py'", name="ale_py")"""


def test_a_missing_package_names_the_extra_at_both_ends(runs, tmp_path):
    (tmp_path / "missing").mkdir()
    (tmp_path / "missing" / "ale_py.py").write_text(MISSING)
    path = os.pathsep.join([str(tmp_path / "missing"), os.environ["PYTHONPATH"]])
    recording = ["recorder.cli", "play", "--env", PONG, "--frames", "8", "--out", str(tmp_path / "run")]
    replaying = ["replay.cli", "--episode", str(runs["hold 1"][0]), "--out", str(tmp_path / "replay")]
    for command in (recording, replaying):
        done = run_command(*command, PYTHONPATH=path)
        assert (done.returncode, done.stdout) == (REFUSED, ""), done.stderr
        assert "pip install 'replay-recorder[atari]'" in done.stderr
        assert done.stderr.count("\n") == 1
    assert sorted(os.listdir(tmp_path)) == ["missing"]  # noqa: PTH208 - names are what is compared


def test_a_missing_package_is_named_in_python_too(monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    for call in (list_games, lambda: make_game(PONG)):
        with pytest.raises(MissingExtraError, match=r"replay-recorder\[atari\]"):
            call()


# Edits of a recorded episode

# The point of `pong` comes in the last raw frame of this decision.
POINT = 63
DECISION = 30
FIRST, LAST = 4 * DECISION + 1, 4 * DECISION + 4
DECISIONS, RAW_FRAMES = 76, 302
LAST_DECISION = DECISIONS - 1


@pytest.fixture(scope="module")
def pong(tmp_path_factory):
    """An episode of 76 decisions, with the last one cut to two raw frames by a limit."""
    folder = tmp_path_factory.mktemp("pong") / "run"
    return play(folder, limits={"raw_frames": RAW_FRAMES}, info_keys=["lives"])


class Edit:
    """A copy of an episode, its records as JSON to be changed, and its files to be written again."""

    def __init__(self, original, folder):
        self.folder = Path(shutil.copytree(original, folder))
        self.manifest, self.reset, self.summary = (read(folder, name) for name in (MANIFEST, RESET, SUMMARY))
        self.transitions, self.frames = read(folder, TRANSITIONS), read(folder, FRAMES)

    def frame(self, raw_frame):
        return self.frames[raw_frame - 1]

    def write(self):
        """Write what was changed, with the digests as they were."""
        files = {
            MANIFEST: self.manifest,
            RESET: self.reset,
            SUMMARY: self.summary,
            TRANSITIONS: self.transitions,
            FRAMES: self.frames,
        }
        changed = [name for name, content in files.items() if content != read(self.folder, name)]
        assert changed
        for name in changed:
            write(self.folder, name, files[name])


@pytest.fixture
def edit(pong, tmp_path, quick_emulator):
    return Edit(pong, tmp_path / "copy")


def flip_hex(text, at=0):
    return text[:at] + f"{int(text[at], 16) ^ 1:x}" + text[at + 1 :]


def judge_both(folder):
    """What is said of an edit as it is, and with every digest done again; the first divergence must be the same."""
    code, careless = judge(folder)
    assert code == DAMAGED, careless
    redo_digests(folder)
    code, careful = judge(folder)
    assert code == DIVERGED, careful
    assert not careful.faults
    assert [m.to_json() for m in careless.mismatches] == [m.to_json() for m in careful.mismatches]
    return careful


def place_of(mismatch):
    return mismatch.place.record, mismatch.place.decision, mismatch.place.raw_frame


def test_the_episode_that_is_edited_verifies(pong):
    assert_verifies(pong)
    assert [row["decision"] for row in read(pong, TRANSITIONS) if row["reward"]] == [POINT]
    assert read(pong, TRANSITIONS)[-1]["raw_frames"] == 2


def flip_ram(edit, raw_frame):
    edit.frame(raw_frame)["ram"] = flip_hex(edit.frame(raw_frame)["ram"], 2 * (raw_frame % 128))


def flip_rgb(edit, raw_frame):
    edit.frame(raw_frame)["rgb_sha256"] = flip_hex(edit.frame(raw_frame)["rgb_sha256"], 63)


def remove_frame(edit, raw_frame):
    del edit.frames[raw_frame - 1]


def double_frame(edit, raw_frame):
    edit.frames.insert(raw_frame - 1, edit.frames[raw_frame - 1])


def swap_frames(edit, raw_frame):
    edit.frames[raw_frame - 1 : raw_frame + 1] = edit.frames[raw_frame - 1 : raw_frame + 1][::-1]


def reward_frame(edit, raw_frame):
    edit.frame(raw_frame)["reward"] = 1.0


def end_frame(edit, raw_frame):
    edit.frame(raw_frame)["terminated"] = True


def other_action(edit, raw_frame):
    edit.frame(raw_frame)["requested_action"] = {"dtype": "<i8", "value": 77}


FRAME_EDITS = [
    (flip_ram, 0, "ram"),
    (flip_rgb, 0, "rgb_sha256"),
    (remove_frame, 0, "raw_frame"),
    (double_frame, 1, "raw_frame"),
    (swap_frames, 0, "raw_frame"),
    (reward_frame, 0, "reward"),
    (end_frame, 0, "terminated"),
    (other_action, 0, "requested_action['value']"),
]


@pytest.mark.parametrize("raw_frame", [1, FIRST + 1, LAST, RAW_FRAMES - 1])
@pytest.mark.parametrize(("change", "later", "field"), FRAME_EDITS)
def test_an_edited_raw_frame_is_found_in_its_place(change, later, field, raw_frame, edit):
    change(edit, raw_frame)
    edit.write()
    verdict = judge_both(edit.folder)
    found = raw_frame + later
    assert {place_of(mismatch) for mismatch in verdict.mismatches} == {("frame", (found - 1) // 4, found)}
    fields = {mismatch.field for mismatch in verdict.mismatches}
    assert field in fields or "decision" in fields or field.partition("[")[0] in fields
    assert verdict.decisions == (found - 1) // 4 + 1


def hold_for(edit, decision, raw_frames):
    """Shorten a hold as if it had been requested for fewer raw frames, in both files and in the totals."""
    row, cut = edit.transitions[decision], 4 - raw_frames
    first = 4 * decision
    last = edit.frames[first + raw_frames - 1]
    row["rewards"], row["raw_frames"] = row["rewards"][:raw_frames], raw_frames
    row["next_observation"] = encode_value(np.frombuffer(bytes.fromhex(last["ram"]), np.uint8))
    row["ram_sha256"] = hashlib.sha256(bytes.fromhex(last["ram"])).hexdigest()
    edit.transitions[decision + 1]["observation"] = row["next_observation"]
    del edit.frames[first + raw_frames : first + 4]
    for frame in edit.frames[first + raw_frames :]:
        frame["raw_frame"] -= cut
    edit.summary["raw_frames"] -= cut


@pytest.mark.parametrize("decision", [0, DECISION, LAST_DECISION - 1])
@pytest.mark.parametrize("raw_frames", [1, 3])
def test_a_hold_that_is_shortened_everywhere_is_found_at_its_decision(decision, raw_frames, edit):
    hold_for(edit, decision, raw_frames)
    edit.write()
    verdict = judge_both(edit.folder)
    assert place_of(verdict.mismatches[0]) == ("transition", decision, None)
    assert {"rewards", "raw_frames"} <= {mismatch.field for mismatch in verdict.mismatches}


def test_a_reward_that_is_changed_everywhere_is_found_at_its_decision(edit):
    row = edit.transitions[DECISION]
    row["reward"] = row["rewards"][3] = edit.frame(LAST)["reward"] = 1.0
    edit.summary["return"] += 1.0
    edit.write()
    verdict = judge_both(edit.folder)
    assert [(*place_of(mismatch), mismatch.field) for mismatch in verdict.mismatches] == [
        ("transition", DECISION, None, "reward"),
        ("transition", DECISION, None, "rewards[3]"),
        ("frame", DECISION, LAST, "reward"),
    ]


def test_a_point_that_is_moved_within_its_decision_is_found(edit):
    decision = POINT
    rewards = edit.transitions[decision]["rewards"]
    rewards[:] = [rewards[3], *rewards[:3]]
    for number, reward in enumerate(rewards):
        edit.frame(4 * decision + 1 + number)["reward"] = reward
    edit.write()
    verdict = judge_both(edit.folder)
    assert [(*place_of(mismatch), mismatch.field) for mismatch in verdict.mismatches] == [
        ("transition", decision, None, "rewards[0]"),
        ("transition", decision, None, "rewards[3]"),
        ("frame", decision, 4 * decision + 1, "reward"),
    ]


@pytest.mark.parametrize("value", [0, -0.0, False, {"dtype": "<f4", "value": 0.0}])
def test_a_reward_of_another_type_is_found(value, edit):
    for field, holder in (("reward", edit.transitions[DECISION]), (1, edit.transitions[DECISION]["rewards"])):
        holder[field] = value
    edit.frame(FIRST + 1)["reward"] = value
    write(edit.folder, TRANSITIONS, edit.transitions)
    write(edit.folder, FRAMES, edit.frames)
    verdict = judge_both(edit.folder)
    assert place_of(verdict.mismatches[0]) == ("transition", DECISION, None)
    assert {"reward", "rewards[1]"} <= {mismatch.field for mismatch in verdict.mismatches}


SUMMARY_EDITS = [
    ("end_reason", "terminated"),
    ("end_reason", "truncated"),
    ("end_reason", "point_limit"),
    ("end_reason", "decision_limit"),
    ("decisions", DECISIONS - 1),
    ("raw_frames", RAW_FRAMES + 2),
    ("return", 0.0),
    ("return", -1),
    ("terminated", True),
    ("truncated", True),
    ("status", "incomplete"),
]


@pytest.mark.parametrize(("field", "value"), SUMMARY_EDITS)
def test_edited_totals_are_found(field, value, edit):
    edit.summary[field] = value
    write(edit.folder, SUMMARY, edit.summary)
    verdict = judge_both(edit.folder)
    assert field in {mismatch.field for mismatch in verdict.mismatches}
    assert {place_of(mismatch) for mismatch in verdict.mismatches} == {("summary", None, None)}


def test_an_episode_that_is_shortened_everywhere_is_not_called_whole(edit):
    """Its limit was not reached: what is left is a prefix, whatever its summary says."""
    edit.transitions, edit.frames = edit.transitions[:70], edit.frames[:280]
    edit.summary |= {"decisions": 70, "raw_frames": 280}
    edit.write()
    verdict = judge_both(edit.folder)
    assert {mismatch.field for mismatch in verdict.mismatches} == {"end_reason", "status"}
    edit.summary |= {"end_reason": "closed", "status": "incomplete"}
    edit.write()
    redo_digests(edit.folder)
    assert judge(edit.folder)[1].name == "verified prefix"
    edit.manifest["limits"]["raw_frames"] = 280  # then the limit is another one, and it was reached
    edit.summary |= {"end_reason": "frame_limit", "status": "complete"}
    edit.write()
    redo_digests(edit.folder)
    assert judge(edit.folder)[1].name == "verified"


def append_decision(edit):
    """A decision behind the end, with raw frames of its own."""
    edit.transitions.append({**edit.transitions[-1], "decision": DECISIONS})
    edit.frames += [
        {**frame, "decision": DECISIONS, "raw_frame": RAW_FRAMES + 1 + number}
        for number, frame in enumerate(edit.frames[-2:])
    ]


@pytest.mark.parametrize("with_totals", [False, True])
def test_decisions_behind_the_end_are_found(with_totals, edit):
    append_decision(edit)
    if with_totals:
        edit.summary |= {"decisions": DECISIONS + 1, "raw_frames": RAW_FRAMES + 2}
    edit.write()
    verdict = judge_both(edit.folder)
    (mismatch,) = verdict.mismatches
    assert (*place_of(mismatch), mismatch.field) == ("transition", DECISIONS, None, "decision")


@pytest.mark.parametrize("surplus", [1, 2, 40])
def test_raw_frames_behind_the_end_are_found(surplus, edit):
    for number in range(surplus):
        edit.frames.append({**edit.frames[-1], "decision": DECISIONS, "raw_frame": RAW_FRAMES + 1 + number})
    edit.write()
    verdict = judge_both(edit.folder)
    assert place_of(verdict.mismatches[0]) == ("frame", DECISIONS, RAW_FRAMES + 1)


LIMIT_EDITS = {
    "fewer raw frames": ({"raw_frames": 200}, ("transition", 50, None), "decision"),
    "a raw frame less": ({"raw_frames": RAW_FRAMES - 1}, ("transition", LAST_DECISION, None), "raw_frames"),
    "a decision less": ({"raw_frames": RAW_FRAMES - 2}, ("transition", LAST_DECISION, None), "decision"),
    "within a decision": ({"raw_frames": FIRST + 1}, ("transition", DECISION, None), "raw_frames"),
    "a raw frame more": ({"raw_frames": RAW_FRAMES + 1}, ("transition", LAST_DECISION, None), "raw_frames"),
    "none": ({"raw_frames": None}, ("transition", LAST_DECISION, None), "raw_frames"),
    "a point": ({"points": 1}, ("transition", POINT + 1, None), "decision"),
    "decisions": ({"decisions": 50}, ("transition", 50, None), "decision"),
}


@pytest.mark.parametrize("name", LIMIT_EDITS)
def test_edited_limits_are_found_where_they_bite(name, edit):
    changes, place, field = LIMIT_EDITS[name]
    limits = edit.manifest["limits"] | changes
    edit.manifest["limits"] = {key: limit for key, limit in limits.items() if limit is not None or key == "decisions"}
    edit.write()
    verdict = judge_both(edit.folder)
    assert place_of(verdict.mismatches[0]) == place
    assert field in {mismatch.field for mismatch in verdict.mismatches}


@pytest.mark.parametrize("limits", [{"raw_frames": 0}, {"raw_frames": -1}, {"points": 0}, {"raw_frames": 1.5}])
def test_limits_that_no_recorder_writes_are_damage(limits, edit):
    edit.manifest["limits"] |= limits
    edit.write()
    for _ in range(2):
        code, error = judge(edit.folder)
        assert code == DAMAGED
        assert MANIFEST in str(error)
        redo_digests(edit.folder)


@pytest.mark.parametrize("value", [1, 2, 0.0, "deleted", None, -1])
def test_edited_reset_frames_are_found(value, edit):
    edit.reset["reset_frames"] = value
    if value == "deleted":
        del edit.reset["reset_frames"]
    write(edit.folder, RESET, edit.reset)
    codes = []
    for _ in range(2):
        code, verdict = judge(edit.folder)
        codes.append(code)
        if code == DIVERGED:
            (mismatch,) = verdict.mismatches
            assert (mismatch.place.record, mismatch.field) == ("reset", "reset_frames")
        redo_digests(edit.folder)
    assert codes == [DAMAGED, DAMAGED if value in {None, -1} else DIVERGED]


SETTING_EDITS = {
    "seed": lambda manifest: manifest["reset"].__setitem__("seed", 2),
    "sticky": lambda manifest: kwargs_of(manifest).__setitem__("repeat_action_probability", 0.0),
    "mode": lambda manifest: kwargs_of(manifest).__setitem__("mode", 1),
    "difficulty": lambda manifest: kwargs_of(manifest).__setitem__("difficulty", 3),
    "full action space": lambda manifest: kwargs_of(manifest).__setitem__("full_action_space", True),
    "hold": lambda manifest: hold_of(manifest).__setitem__("hold_frames", 3),
    "no-ops": lambda manifest: hold_of(manifest).__setitem__("noop_max", 30),
    "clock": lambda manifest: manifest["clocks"].__setitem__("raw_frame_hz", 30.0),
    "clock of the hold": lambda manifest: hold_of(manifest).__setitem__("raw_frame_hz", 30.0),
    "space": lambda manifest: manifest["environment"].__setitem__("action_space", "Discrete(18)"),
}


def kwargs_of(manifest):
    return manifest["environment"]["spec"]["kwargs"]["dict"]


def hold_of(manifest):
    return manifest["environment"]["spec"]["additional_wrappers"][-1]["kwargs"]["dict"]


@pytest.mark.parametrize("name", SETTING_EDITS)
def test_edited_settings_of_the_game_are_found(name, edit):
    SETTING_EDITS[name](edit.manifest)
    edit.write()
    assert judge_both(edit.folder).mismatches


def test_frames_that_the_game_is_told_to_skip_are_found_or_refused(edit):
    kwargs_of(edit.manifest)["frameskip"] = 2
    edit.write()
    assert judge(edit.folder)[0] == DAMAGED
    redo_digests(edit.folder)
    assert judge(edit.folder)[0] in {DIVERGED, REFUSED}


@pytest.mark.parametrize(
    ("decision", "action"), [(0, 0), (0, 3), (20, 2), (DECISION, 3), (LAST_DECISION - 1, 5), (LAST_DECISION, 2)]
)
def test_an_action_that_is_changed_everywhere_is_found_where_the_emulator_first_differs(decision, action, edit):
    before = decode_value(edit.transitions[decision]["action"])
    action = np.int64(action if action != before else (action + 1) % 6)
    edit.transitions[decision]["action"] = encode_value(action)
    for frame in edit.frames:
        if frame["decision"] == decision:
            frame["requested_action"] = encode_value(action)
    edit.write()
    expected = first_difference(edit)
    if expected is None:
        redo_digests(edit.folder)
        assert judge(edit.folder)[0] == VERIFIED
        return
    verdict = judge_both(edit.folder)
    assert {mismatch.place.decision for mismatch in verdict.mismatches} == {(expected - 1) // 4}
    assert {mismatch.place.raw_frame for mismatch in verdict.mismatches} - {None} == {expected}


def first_difference(edit):
    """The first raw frame in which a bare emulator that is given these actions differs from the record."""
    env = gymnasium.make(PONG, frameskip=1, obs_type="ram", render_mode="rgb_array")
    env.reset(seed=1)
    for frame in edit.frames:
        env.step(decode_value(edit.transitions[frame["decision"]]["action"]))
        ale = env.unwrapped.ale
        screen = hashlib.sha256(ale.getScreenRGB().tobytes()).hexdigest()
        if (frame["ram"], frame["rgb_sha256"]) != (ale.getRAM().tobytes().hex(), screen):
            return frame["raw_frame"]
    return None


@pytest.mark.parametrize("action", [6, 77, -1, 2**53])
def test_an_action_that_the_game_does_not_have_is_found_at_its_decision(action, edit):
    edit.transitions[DECISION]["action"] = encode_value(np.int64(action))
    edit.write()
    (mismatch,) = judge_both(edit.folder).mismatches
    assert (*place_of(mismatch), mismatch.field) == ("transition", DECISION, None, "exception")
    assert "InvalidAction" in mismatch.replayed


def test_another_rom_is_refused_with_both_digests(edit, tmp_path, pong):
    (asset,) = edit.manifest["environment"]["assets"]
    here, recorded = asset["sha256"], "ab" * 32
    asset["sha256"] = recorded
    edit.write()
    code, error = judge(edit.folder)
    assert code == DAMAGED
    redo_digests(edit.folder)
    code, error = judge(edit.folder)
    assert code == REFUSED
    assert f"recorded with pong.bin of SHA-256 {recorded}, here it has {here}" in str(error)
    arguments = ["--episode", str(edit.folder), "--out", str(tmp_path / "replay")]
    assert replay.cli.replay_main(arguments) == REFUSED
    assert not (tmp_path / "replay").exists()
    asset["name"] = "tetris.bin"
    write(edit.folder, MANIFEST, edit.manifest)
    redo_digests(edit.folder)
    code, error = judge(edit.folder)
    assert code == REFUSED
    assert "tetris.bin" in str(error)
    assert "is missing" in str(error)


# The first divergence, whatever differs first: raw frames are compared up to four decisions later than transitions


def change_reward(edit, decision):
    edit.transitions[decision]["reward"] = 5.0


def change_observation(edit, decision):
    edit.transitions[decision]["next_observation"]["values"][3] ^= 1


def change_prediction_form(edit, decision):
    edit.transitions[decision]["prediction"] = 7


def ask_too_much(edit, decision):
    edit.transitions[decision]["action"] = encode_value(np.int64(77))


def spoil_line(edit, decision):
    """A line that is no JSON; see `write_lines`."""
    edit.transitions[decision] = b"spoilt\n"


def spoil_action(edit, decision):
    edit.transitions[decision]["action"] = {"dtype": "<i8", "value": "x"}


def cut_transitions(edit, decision):
    del edit.transitions[decision:]


def write_lines(edit):
    lines = (row if isinstance(row, bytes) else encode_line(row) for row in edit.transitions)
    (edit.folder / TRANSITIONS).write_bytes(b"".join(lines))
    write(edit.folder, FRAMES, edit.frames)


LATER_EDITS = [
    change_reward,
    change_observation,
    change_prediction_form,
    ask_too_much,
    spoil_line,
    spoil_action,
    cut_transitions,
]


@pytest.mark.parametrize(("change", "later"), [(change, later) for change in LATER_EDITS for later in range(-2, 7)])
def test_the_first_divergence_is_that_of_the_earliest_decision(change, later, edit):
    raw_frame = LAST if later % 2 else FIRST
    flip_ram(edit, raw_frame)
    change(edit, DECISION + later)
    write_lines(edit)
    redo_digests(edit.folder)
    code, verdict = judge(edit.folder)
    is_spoilt = change in {spoil_line, spoil_action, change_prediction_form}
    if later <= 0 and is_spoilt:
        assert code == DAMAGED
        assert any(f"{TRANSITIONS} line {DECISION + later + 1} " in fault for fault in verdict.faults)
        if later < 0:
            assert not verdict.mismatches
        return
    first = verdict.mismatches[0]
    if later > 0 or (later == 0 and change is cut_transitions):
        assert code in {DIVERGED, DAMAGED} if is_spoilt else code == DIVERGED
        if change is cut_transitions and later == 0:
            assert place_of(first) == ("frame", DECISION, FIRST)
        else:
            assert (*place_of(first), first.field) == ("frame", DECISION, raw_frame, "ram")
            assert (verdict.decisions, verdict.raw_frames) == (DECISION + 1, LAST)
    else:
        assert code == DIVERGED
        assert first.place.decision == DECISION + later
        assert first.place.record == ("frame" if change is cut_transitions else "transition")
        assert verdict.decisions == DECISION + later + (change not in {ask_too_much, cut_transitions})
    assert {mismatch.place.decision for mismatch in verdict.mismatches} == {DECISION + min(later, 0)}


@pytest.mark.parametrize("earlier", range(6))
def test_a_raw_frame_that_differs_before_a_decision_behind_the_end_is_the_first_divergence(earlier, edit):
    decision = DECISIONS - 1 - earlier
    flip_ram(edit, 4 * decision + 2)
    append_decision(edit)
    edit.write()
    verdict = judge_both(edit.folder)
    assert place_of(verdict.mismatches[0]) == ("frame", decision, 4 * decision + 2)


@pytest.mark.parametrize("earlier", range(6))
def test_a_raw_frame_that_differs_before_the_totals_is_the_first_divergence(earlier, edit):
    decision = DECISIONS - 1 - earlier
    flip_ram(edit, 4 * decision + 2)
    edit.summary["return"] = 0.0
    edit.write()
    (mismatch,) = judge_both(edit.folder).mismatches
    assert place_of(mismatch) == ("frame", decision, 4 * decision + 2)


@pytest.mark.parametrize("earlier", range(6))
def test_a_raw_frame_that_differs_before_a_torn_tail_is_the_first_divergence(earlier, edit):
    decision = 49 - earlier
    flip_ram(edit, 4 * decision + 2)
    edit.frames = edit.frames[:220]
    del edit.transitions[50:]
    edit.write()
    (edit.folder / SUMMARY).unlink()
    with (edit.folder / TRANSITIONS).open("ab") as stream:
        stream.write(b'{"decision":50,"obser')
    code, verdict = judge(edit.folder)
    assert code == DIVERGED
    assert place_of(verdict.mismatches[0]) == ("frame", decision, 4 * decision + 2)


@pytest.mark.parametrize("decisions", range(DECISION, DECISION + 6))
def test_a_replay_that_is_stopped_early_has_compared_the_raw_frames_of_all_its_decisions(decisions, edit):
    flip_ram(edit, LAST)
    edit.write()
    redo_digests(edit.folder)
    verdict = Replay(edit.folder).run(decisions=decisions)
    if decisions == DECISION:
        assert (verdict.mismatches, verdict.compared["raw_frames"]) == ([], 4 * DECISION)
    else:
        assert place_of(verdict.mismatches[0]) == ("frame", DECISION, LAST)


@pytest.mark.parametrize("later", range(7))
@pytest.mark.parametrize("error", [SimulatorError, MemoryError])
def test_an_environment_that_raises_later_does_not_hide_the_first_divergence(error, later, edit, monkeypatch):
    flip_ram(edit, FIRST)
    edit.write()
    redo_digests(edit.folder)
    real = HoldAction.step
    steps = []

    def step(self, action):
        steps.append(action)
        if len(steps) == DECISION + later + 1:
            raise error
        return real(self, action)

    monkeypatch.setattr(HoldAction, "step", step)
    code, verdict = judge(edit.folder)
    if later == 0:
        if error is MemoryError:
            assert code == REFUSED
        else:
            assert (place_of(verdict.mismatches[0]), verdict.mismatches[0].field) == (
                ("transition", DECISION, None),
                "exception",
            )
        return
    assert code == DIVERGED
    (mismatch,) = verdict.mismatches
    assert place_of(mismatch) == ("frame", DECISION, FIRST)


def test_a_raw_frame_that_differs_is_reported_the_same_with_and_without_pictures(edit):
    flip_ram(edit, FIRST)
    edit.write()
    redo_digests(edit.folder)
    with_pictures = replay_episode(edit.folder, frame_sink=lambda _: None).to_json()
    assert with_pictures["compared"]["observations"] == DECISION + 1
    assert replay_episode(edit.folder).to_json() == with_pictures


def test_no_picture_is_drawn_beyond_the_first_divergence(edit):
    flip_ram(edit, FIRST)
    edit.write()
    redo_digests(edit.folder)
    pictures, lines = [], []
    replay_episode(edit.folder, frame_sink=lambda picture: pictures.append(picture.shape), line_sink=lines.append)
    assert len(pictures) == 1 + LAST
    assert b"".join(lines).count(b"\n") == LAST
    lines.clear()
    replay_episode(edit.folder, line_sink=lines.append)
    assert b"".join(lines).count(b"\n") == LAST


def test_the_reconstructed_lines_are_the_recorded_ones(pong):
    lines = []
    replay_episode(pong, line_sink=lines.append)
    assert b"".join(lines) == (pong / FRAMES).read_bytes()


# Processes that are killed

KILLED = """
import os, random, signal, sys, time
from pathlib import Path
from recorder import RecordEpisode
from recorder.games import GameSettings, make_game

def record(env, folder, durability):
    with RecordEpisode(env, folder, durability=durability) as recorder:
        recorder.reset(seed=1)
        while True:
            recorder.step(recorder.decisions % 6)

moments = random.Random(5)
envs = [make_game("ALE/Pong-v5", GameSettings(hold_frames=hold), render_mode="rgb_array") for hold in (1, 3, 4, 16)]
for number in range(20):
    folder = Path(sys.argv[1]) / str(number)
    child = os.fork()
    if child == 0:
        record(envs[number % 4], folder, ("batch", "batch", "process")[number % 3])
    # An emulator takes a while to start: a few are killed before, most in mid-episode.
    deadline = time.monotonic() + 5
    while number % 5 and not (folder / "episode-0000" / "reset.json").exists() and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(moments.uniform(0.0, 0.06) if number % 5 else moments.uniform(0.0, 0.3))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
"""


def test_a_recording_that_is_killed_at_any_moment_leaves_a_prefix_that_verifies(tmp_path, quick_emulator):
    program = [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{KILLED}", str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    lengths = []
    for number in range(20):
        folder = tmp_path / str(number) / "episode-0000"
        if not (folder / RESET).exists():
            code, result = judge(folder)
            said = result.notes if code != USAGE else [str(result)]
            assert code in {USAGE, REFUSED}
            assert any(words in line for line in said for words in ("does not exist", "is not an episode", "was never"))
            continue
        verdict = replay_episode(folder)
        assert (verdict.name, verdict.exit_code) == ("verified prefix", VERIFIED), verdict.to_json()
        assert verdict.decisions == (folder / TRANSITIONS).read_bytes().count(b"\n")
        assert verdict.compared["rgb"] == verdict.raw_frames + 1
        lengths.append(verdict.decisions)
    assert len(lengths) >= 16
    assert sum(length > 0 for length in lengths) > 8
