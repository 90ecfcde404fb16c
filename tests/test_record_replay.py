"""Recording and replaying: every space, real environments, boundaries of episodes, seeds, clocks and refusals."""

import contextlib
import json
import os
import random
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import wrappers

import environments
from environments import (
    BIT_NAMES,
    SPACE_NAMES,
    CountingEnv,
    FillingWrapper,
    FragileEnv,
    ReusedBufferEnv,
    RotorEnv,
    drawn_actions,
    make_another,
    read_frame_number,
    record,
    record_factory,
)
from recorder import RecordEpisode
from recorder.encoding import decode_value
from recorder.errors import (
    CannotRunError,
    DamagedError,
    DivergedError,
    EncodingError,
    NotRebuildableError,
    UntrustedCodeError,
    UsageError,
)
from recorder.wrappers import derive_seed
from replay.opening import replay_episode

RECORDS = ("reset.json", "transitions.jsonl", "frames.jsonl", "arrays.bin")
GYMNASIUM_IDS = (
    "CartPole-v1",
    "Acrobot-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Pendulum-v1",
    "FrozenLake-v1",
    "Taxi-v4",
    "CliffWalking-v1",
    "Blackjack-v1",
    "LunarLander-v3",
    "LunarLanderContinuous-v3",
    "BipedalWalker-v3",
)
OWN_IDS = ("recorder/CartPole-v1", "recorder/LewmPushT-v1")


def make(env_id, **kwargs):
    if env_id.startswith(("LunarLander", "BipedalWalker")):
        pytest.importorskip("Box2D", reason="box2d is not installed")
    return gymnasium.make(env_id, **kwargs)


def replayed(folder, **kwargs):
    return replay_episode(folder, trust=["environments"], **kwargs)


def assert_verifies(folder):
    verdict = replayed(folder)
    assert verdict.exit_code == 0, verdict.to_json()
    status = read(folder, "summary.json")["status"]
    assert verdict.name == {"complete": "verified", "incomplete": "verified prefix"}[status]
    assert verdict.compared["resets"] == 1
    assert verdict.compared.get("observations", 0) == verdict.decisions == len(lines(folder, "transitions.jsonl"))
    assert verdict.compared.get("raw_frames", 0) == verdict.raw_frames == len(lines(folder, "frames.jsonl"))
    return verdict


def read(folder, name):
    return json.loads((folder / name).read_bytes())


def lines(folder, name):
    return [json.loads(line) for line in (folder / name).read_bytes().splitlines()]


def bytes_of(folders):
    return [{name: (f / name).read_bytes() for name in RECORDS if (f / name).exists()} for f in folders]


def assert_records_the_same_twice(make_folders):
    first, second = make_folders("first"), make_folders("second")
    assert bytes_of(first) == bytes_of(second)
    for folder in first:
        assert_verifies(folder)
    return first


# Spaces and environments


@pytest.mark.parametrize("space_name", [*SPACE_NAMES, *BIT_NAMES])
def test_every_space_as_observation_and_action_verifies_and_is_recorded_the_same_twice(space_name, tmp_path):
    folders = assert_records_the_same_twice(
        lambda run: record_factory("make_space_env", tmp_path / run, {"space_name": space_name}, decisions=15)
    )
    assert [len(lines(folder, "transitions.jsonl")) for folder in folders] == [6, 6, 3]
    for folder in folders:
        for row in lines(folder, "transitions.jsonl"):
            space = environments.SpaceEnv(space_name).action_space
            action = decode_value(row["action"], SideFile(folder))
            # Gymnasium's Text draws the empty text, which it does not contain.
            assert space_name.startswith(("bits", "text")) or space.contains(action)


class SideFile:
    """The side file, read without its digests."""

    def __init__(self, folder):
        self.path = folder / "arrays.bin"

    def get(self, entry, length_bytes):
        return self.path.read_bytes()[entry["offset"] : entry["offset"] + length_bytes]


@pytest.mark.parametrize("env_id", [*GYMNASIUM_IDS, *OWN_IDS])
def test_environments_of_gymnasium_verify_and_are_recorded_the_same_twice(env_id, tmp_path):
    folders = assert_records_the_same_twice(lambda run: record(make(env_id), tmp_path / run, decisions=50))
    assert sum(len(lines(folder, "transitions.jsonl")) for folder in folders) == 50


def test_pictures_of_a_real_environment_verify(tmp_path):
    pytest.importorskip("pygame", reason="pygame is not installed")
    (folder,) = record(make("CartPole-v1", render_mode="rgb_array"), tmp_path / "run", decisions=8)
    assert assert_verifies(folder).compared["rgb"] == 9


def test_an_atari_game_verifies(tmp_path):
    pytest.importorskip("ale_py", reason="ale-py is not installed")
    from recorder.rebuild import make_environment

    (folder,) = record(make_environment("ALE/Pong-v5", obs_type="rgb"), tmp_path / "run", decisions=8)
    assert (folder / "arrays.bin").stat().st_size == 9 * 210 * 160 * 3
    assert_verifies(folder)


RECORDING = """
import sys
sys.path[:0] = {paths!r}
import gymnasium, environments
from pathlib import Path
out = Path({out!r})
environments.record(gymnasium.make("CartPole-v1"), out / "cart", decisions=30)
environments.record(gymnasium.make("Taxi-v4"), out / "taxi", decisions=20)
environments.record_factory("make_space_env", out / "dict", {{"space_name": "dict"}}, decisions=8)
environments.record_factory("make_frames", out / "frames", decisions=5, info_keys=["mood", "map"])
"""
REPLAYING = """
import sys
sys.path[:0] = {paths!r}
from pathlib import Path
from replay.opening import replay_episode
for folder in sorted(Path({out!r}).glob("*/episode-*")):
    verdict = replay_episode(folder, trust=["environments"])
    assert verdict.exit_code == 0, verdict.to_json()
    assert verdict.compared["resets"] == 1
    print(folder.name)
"""


def test_processes_that_share_nothing_record_the_same_bytes_and_verify_each_others(tmp_path):
    settings = [
        {"PYTHONHASHSEED": "0", "LC_ALL": "C", "TZ": "UTC"},
        {"PYTHONHASHSEED": "4242", "LC_ALL": "C.UTF-8", "TZ": "Asia/Kathmandu"},
    ]
    runs = []
    for number, (here, there) in enumerate(zip(settings, reversed(settings), strict=True)):
        folder = tmp_path / f"folder {number} ä"
        folder.mkdir()
        out = tmp_path / f"run {number}"
        run_python(RECORDING, out, cwd=folder, **here)
        printed = run_python(REPLAYING, out, cwd=tmp_path, **there)
        folders = sorted(out.glob("*/episode-*"))
        assert printed.count("episode-") == len(folders) >= 7
        runs.append(bytes_of(folders))
    assert runs[0] == runs[1]


def run_python(program, out, *, cwd, **variables):
    source = program.format(paths=sys.path, out=str(out))
    done = subprocess.run(
        [sys.executable, "-c", source],
        cwd=cwd,
        env={**os.environ, **variables},
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# Boundaries of episodes


def counting(tmp_path, **kwargs):
    return RecordEpisode(
        CountingEnv(**kwargs), tmp_path / "run", factory="environments:make_counting", factory_kwargs=kwargs
    )


def test_three_steps_are_three_transitions_four_observations_and_a_return_of_three_every_time(tmp_path):
    folders = record_factory("make_counting", tmp_path / "run", decisions=9)
    assert len(folders) == 3
    for folder in folders:
        rows = lines(folder, "transitions.jsonl")
        observations = [read(folder, "reset.json")["observation"], *(row["next_observation"] for row in rows)]
        assert observations == [0, 1, 2, 3]
        assert [row["observation"] for row in rows] == observations[:-1]
        assert [row["decision"] for row in rows] == [0, 1, 2]
        assert [row["terminated"] for row in rows] == [False, False, True]
        assert [frame["raw_frame"] for frame in lines(folder, "frames.jsonl")] == [1, 2, 3]
        summary = read(folder, "summary.json")
        facts = [summary[key] for key in ("return", "decisions", "raw_frames", "end_reason", "status")]
        assert facts == [3.0, 3, 3, "terminated", "complete"]
        assert assert_verifies(folder).total_reward == 3.0


@pytest.mark.parametrize(("ends", "reason"), [("terminated",) * 2, ("truncated",) * 2, ("both", "terminated")])
@pytest.mark.parametrize("flags", ["bool", "numpy", "int"])
def test_flags_of_every_kind_are_recorded_as_they_were(ends, reason, flags, tmp_path):
    (folder,) = record_factory("make_counting", tmp_path / "run", {"ends": ends, "flags": flags}, decisions=3)
    last, summary = lines(folder, "transitions.jsonl")[-1], read(folder, "summary.json")
    for row in (last, summary, lines(folder, "frames.jsonl")[-1]):
        assert row["terminated"] is (ends in {"terminated", "both"})
        assert row["truncated"] is (ends in {"truncated", "both"})
    assert summary["end_reason"] == reason
    assert_verifies(folder)


def test_an_abandoned_episode_leaves_truncated_as_the_environment_gave_it(tmp_path):
    with counting(tmp_path) as recorder:
        recorder.reset(seed=1)
        recorder.step(0)
        recorder.reset()
        recorder.step(1)
    first, second = sorted(recorder.out.iterdir())
    for folder, reason in ((first, "abandoned"), (second, "closed")):
        summary = read(folder, "summary.json")
        assert [summary[key] for key in ("end_reason", "status", "truncated")] == [reason, "incomplete", False]
        assert lines(folder, "transitions.jsonl")[-1]["truncated"] is False
        assert assert_verifies(folder).name == "verified prefix"


def test_a_step_before_the_reset_or_after_the_end_is_refused_in_one_sentence(tmp_path):
    with counting(tmp_path) as recorder:
        with pytest.raises(UsageError, match=r"^step\(\) before reset\(\): call reset\(\) to begin an episode$"):
            recorder.step(0)
        recorder.reset(seed=0)
        for _ in range(3):
            recorder.step(0)
        with pytest.raises(UsageError, match=r"^step\(\) after the end of episode-0000: call reset\(\) [^.\n]*$"):
            recorder.step(0)
    (folder,) = recorder.out.iterdir()
    assert len(lines(folder, "transitions.jsonl")) == 3
    assert_verifies(folder)


def test_an_episode_without_a_step_is_a_prefix_whose_reset_is_compared(tmp_path):
    with counting(tmp_path) as recorder:
        recorder.reset(seed=0)
    (folder,) = recorder.out.iterdir()
    verdict = assert_verifies(folder)
    assert (verdict.name, verdict.decisions) == ("verified prefix", 0)
    assert (folder / "transitions.jsonl").read_bytes() == b""


def test_a_stated_limit_completes_an_episode_and_an_earlier_end_does_not(tmp_path):
    with counting(tmp_path) as recorder:
        for steps in (2, 1):
            recorder.limit(decisions=2)
            recorder.reset(seed=0)
            for _ in range(steps):
                recorder.step(0)
            recorder.end_episode()
            recorder.end_episode()
    whole, part = sorted(recorder.out.iterdir())
    assert read(whole, "summary.json")["end_reason"] == "decision_limit"
    assert assert_verifies(whole).name == "verified"
    assert read(part, "summary.json")["end_reason"] == "closed"
    assert assert_verifies(part).name == "verified prefix"


@pytest.mark.parametrize("reward", ["int", "float", "float32", "float64", "array"])
def test_rewards_keep_their_type_and_are_summed_in_float64(reward, tmp_path):
    (folder,) = record_factory("make_counting", tmp_path / "run", {"reward": reward}, decisions=3)
    given = CountingEnv(reward=reward).step(0)[1]
    row = lines(folder, "transitions.jsonl")[0]
    for spelled in (row["reward"], row["rewards"][0], lines(folder, "frames.jsonl")[0]["reward"]):
        value = decode_value(spelled)
        assert type(value) is type(given)
        assert np.asarray(value).tobytes() == np.asarray(given).tobytes()
    assert read(folder, "summary.json")["return"] == float(given) + float(given) + float(given)
    assert_verifies(folder)


@pytest.mark.parametrize("reward", ["none", "pair"])
def test_a_reward_that_is_no_number_is_refused_before_its_decision_is_written(reward, tmp_path):
    with counting(tmp_path, reward=reward) as recorder:
        recorder.reset(seed=0)
        with pytest.raises(EncodingError, match="reward"):
            recorder.step(0)
    (folder,) = recorder.out.iterdir()
    assert read(folder, "summary.json")["end_reason"] == "error"
    assert_verifies(folder)


# Seeds and options


def test_zero_is_a_seed_and_later_episodes_have_seeds_of_their_own(tmp_path):
    folders = record_factory("make_counting", tmp_path / "run", decisions=9, seed=0)
    resets = [read(folder, "manifest.json")["reset"] for folder in folders]
    assert resets[0] == {"seed": 0, "seed_origin": "given", "options": None}
    assert [reset["seed_origin"] for reset in resets[1:]] == ["derived:0:1", "derived:0:2"]
    assert [reset["seed"] for reset in resets[1:]] == [derive_seed(0, 1), derive_seed(0, 2)]
    assert len({reset["seed"] for reset in resets}) == 3
    assert [read(folder, "manifest.json")["episode_index"] for folder in folders] == [0, 1, 2]


def test_a_seed_is_drawn_recorded_and_derived_from_where_none_is_given(tmp_path):
    env = make("CartPole-v1")
    with RecordEpisode(env, tmp_path / "run", draw_seed=lambda: 123) as recorder:
        recorder.reset()
        recorder.reset()
        recorder.reset(seed=np.int64(5))
        recorder.reset()
    origins = [read(folder, "manifest.json")["reset"] for folder in sorted(recorder.out.iterdir())]
    assert [(reset["seed"], reset["seed_origin"]) for reset in origins] == [
        (123, "drawn"),
        (derive_seed(123, 1), "derived:123:1"),
        (5, "given"),
        (derive_seed(5, 3), "derived:5:3"),
    ]


def test_two_runs_without_a_seed_differ(tmp_path):
    seeds = set()
    for run in ("first", "second"):
        with RecordEpisode(make("CartPole-v1"), tmp_path / run) as recorder:
            recorder.reset()
        seeds.add(read(recorder.episode_folder, "manifest.json")["reset"]["seed"])
    assert len(seeds) == 2
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_the_last_episode_of_a_run_replays_without_the_others(tmp_path):
    folders = record(make("CartPole-v1"), tmp_path / "run", decisions=60)
    assert len(folders) >= 3
    alone = tmp_path / "alone"
    folders[-2].rename(alone)
    for folder in folders[:-2]:
        for path in folder.iterdir():
            path.unlink()
    assert assert_verifies(alone).name == "verified"


@pytest.mark.parametrize("seed", [True, False, -1, 1.0, "1", np.bool_(True), np.float64(2)], ids=repr)
def test_a_seed_that_is_none_is_refused_before_anything_is_written(seed, tmp_path):
    with counting(tmp_path) as recorder, pytest.raises(UsageError, match="from 0 to 2"):
        recorder.reset(seed=seed)
    assert not recorder.out.exists()


def test_reset_options_are_recorded_with_their_types_and_replayed(tmp_path):
    options = {"angle": np.float32(3.3), "unused": {"nested": (1, None), "big": np.arange(400)}}
    first, second = (
        record_factory("make_rotor", tmp_path / name, decisions=4, options=given)[0]
        for name, given in (("with", options), ("without", None))
    )
    recorded = decode_value(read(first, "manifest.json")["reset"]["options"])
    assert type(recorded["angle"]) is np.float32
    assert recorded["unused"]["nested"] == (1, None)
    assert recorded["unused"]["big"].tolist() == list(range(400))
    assert (first / "reset.json").read_bytes() != (second / "reset.json").read_bytes()
    assert_verifies(first)
    assert_verifies(second)


def test_an_option_without_a_spelling_is_refused_before_anything_is_written(tmp_path):
    with counting(tmp_path) as recorder, pytest.raises(EncodingError, match=r"\['level'\]"):
        recorder.reset(seed=0, options={"level": {1, 2}})
    assert not recorder.out.exists()


# Info, RAM, raw frames, pictures


def test_info_keys_are_recorded_where_they_are_given_and_compared(tmp_path):
    keys = ["speed", "label", "path", "odd", "never there"]
    (folder,) = record_factory("make_rotor", tmp_path / "run", decisions=4, info_keys=keys)
    rows = lines(folder, "transitions.jsonl")
    assert read(folder, "manifest.json")["info_keys"] == keys
    assert [row["info"]["label"] for row in rows] == ["at 1", "at 2", "at 3", "at 4"]
    assert [row["info"].get("odd") for row in rows] == [True, None, True, None]
    assert all(row["info"]["speed"]["dtype"] == "<f8" for row in rows)
    assert rows[0]["info"]["path"]["file"] == "arrays.bin"
    assert set(read(folder, "reset.json")["info"]) == {"speed", "label", "path"}
    assert assert_verifies(folder).compared["info"] == 3 + 4 * 3 + 2


def test_info_that_nobody_asked_for_needs_no_spelling(tmp_path):
    (folder,) = record_factory("make_counting", tmp_path / "run", decisions=3)
    assert lines(folder, "transitions.jsonl")[0]["info"] == {}


def test_state_of_numpy_attributes_is_ram(tmp_path):
    (folder,) = record_factory("make_rotor", tmp_path / "run", decisions=4, ram="numpy:state,count")
    env = RotorEnv()
    env.reset(seed=0)
    actions = drawn_actions(RotorEnv(), 7)
    for frame in lines(folder, "frames.jsonl"):
        env.step(next(actions))
        assert frame["ram"] == env.state.tobytes().hex() + np.asarray(env.count).tobytes().hex()
    assert assert_verifies(folder).compared["ram"] == 5


def test_state_of_real_environments_is_ram(tmp_path):
    (folder, *_) = record(make("CartPole-v1"), tmp_path / "cart", decisions=10, ram="numpy:state")
    assert len(bytes.fromhex(lines(folder, "frames.jsonl")[0]["ram"])) == 32
    assert_verifies(folder)


def test_state_of_pymunk_bodies_is_ram(tmp_path):
    (folder,) = record_factory("make_bouncing", tmp_path / "run", decisions=12, ram="pymunk:space")
    states = [bytes.fromhex(frame["ram"]) for frame in lines(folder, "frames.jsonl")]
    # One body, nine float64.
    assert {len(state) for state in states} == {72}
    assert len(set(states)) == 12
    assert assert_verifies(folder).compared["ram"] == 13


def test_state_from_a_function_is_ram_and_runs_in_a_replay_only_if_trusted(tmp_path):
    env = make("CartPole-v1")
    (folder, *_) = record(env, tmp_path / "run", decisions=5, ram="environments:cart_state")
    with pytest.raises(UntrustedCodeError, match="--trust environments"):
        replay_episode(folder)
    assert assert_verifies(folder).compared["ram"] == 6


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        ("numpy:nothing", UsageError, "has no attribute nothing"),
        ("numpy:state,nothing", UsageError, "nothing"),
        ("pymunk:nothing", UsageError, "nothing"),
        ("state", UsageError, "is not known"),
        ("", UsageError, "is not known"),
        ("numpy:", UsageError, "is not known"),
        ("nowhere_at_all:f", CannotRunError, "cannot be imported"),
        ("environments:nothing", CannotRunError, "cannot be imported"),
    ],
)
def test_a_ram_source_that_is_not_there_is_refused_before_anything_is_written(source, error, words, tmp_path):
    with pytest.raises(error, match=words):
        record_factory("make_rotor", tmp_path / "run", ram=source)
    assert not (tmp_path / "run").exists()


def test_a_ram_function_that_returns_no_bytes_is_refused_at_the_reset(tmp_path):
    with pytest.raises(CannotRunError, match="str"):
        record_factory("make_rotor", tmp_path / "run", ram="environments:text_state")


def test_why_ram_and_pictures_are_absent_stands_in_the_manifest(tmp_path):
    (folder,) = record_factory("make_counting", tmp_path / "run", decisions=2)
    (other,) = record_factory("make_frames", tmp_path / "other", decisions=2, ram=None)
    assert "state_bytes" in read(folder, "manifest.json")["channels"]["ram"]["absent"]
    assert "render mode None" in read(folder, "manifest.json")["channels"]["rgb"]["absent"]
    assert read(other, "manifest.json")["channels"]["ram"] == {"source": None, "absent": "not asked for"}
    assert {line.partition(":")[0] for line in assert_verifies(folder).not_checked} == {"RAM", "RGB"}


def test_a_publisher_of_raw_frames_is_recorded_frame_by_frame(tmp_path):
    kwargs = {"render_mode": "rgb_array"}
    keys = ["mood", "pressure", "map"]
    folder, _ = record_factory("make_frames", tmp_path / "run", kwargs, decisions=5, info_keys=keys)
    frames, rows = lines(folder, "frames.jsonl"), lines(folder, "transitions.jsonl")
    assert [(frame["decision"], frame["raw_frame"]) for frame in frames] == [(n // 3, n + 1) for n in range(12)]
    assert [row["raw_frames"] for row in rows] == [3] * 4
    assert [row["rewards"] for row in rows] == [[f["reward"] for f in frames[3 * n : 3 * n + 3]] for n in range(4)]
    assert [frame["terminated"] for frame in frames] == [False] * 11 + [True]
    assert len({frame["ram"] for frame in frames}) == len({frame["rgb_sha256"] for frame in frames}) == 12
    clocks = read(folder, "manifest.json")["clocks"]
    assert clocks == {"raw_frame_source": "environment", "raw_frame_hz": 30.0}
    verdict = assert_verifies(folder)
    assert (verdict.compared["ram"], verdict.compared["rgb"]) == (13, 13)


def test_pictures_reach_the_sink_in_order_whether_or_not_they_were_recorded(tmp_path):
    for name, mode in (("with", "rgb_array"), ("without", None)):
        kwargs = {"render_mode": mode}
        (folder,) = record_factory("make_frames", tmp_path / name, kwargs, decisions=3)
        shown = []
        from replay.engine import Replay

        replay = Replay(folder, trust=["environments"], render_mode="rgb_array")
        verdict = replay.run(frame_sink=lambda picture, shown=shown: shown.append(read_frame_number(picture)))
        assert verdict.exit_code == 0
        assert shown == list(range(10))


def test_reconstructed_frames_are_the_recorded_bytes(tmp_path):
    (folder,) = record_factory("make_frames", tmp_path / "run", decisions=3)
    fresh = []
    replayed(folder, line_sink=fresh.append)
    assert b"".join(fresh) == (folder / "frames.jsonl").read_bytes()


def test_kept_raw_frames_are_the_same_lines_as_listened_ones(tmp_path):
    runs = []
    for mode in (None, "rgb_array"):
        env = make("recorder/LewmPushT-v1", render_mode=mode)
        (folder, *_) = record(env, tmp_path / str(mode), decisions=6)
        runs.append([{**row, "rgb_sha256": None} for row in lines(folder, "frames.jsonl")])
    assert len(runs[0]) > 6
    assert runs[0] == runs[1]


def test_an_observation_beyond_a_line_is_kept_once(tmp_path):
    kwargs = {"space_name": "box of an image"}
    (folder,) = record(
        environments.SpaceEnv(**kwargs),
        tmp_path / "run",
        decisions=3,
        factory="environments:make_space_env",
        factory_kwargs=kwargs,
    )
    # Four observations and three actions.
    assert (folder / "arrays.bin").stat().st_size == 7 * 96 * 96 * 3
    first, second, _ = lines(folder, "transitions.jsonl")
    assert first["next_observation"] == second["observation"]
    assert_verifies(folder)


def test_pictures_are_refused_where_there_are_none(tmp_path):
    with pytest.raises(UsageError, match="render_mode='rgb_array'"):
        record_factory("make_frames", tmp_path / "run", rgb=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("is_nested", [False, True])
def test_a_reused_buffer_is_recorded_as_it_was_when_it_was_returned(is_nested, tmp_path):
    kwargs = {"is_nested": is_nested}
    (folder,) = record_factory("make_reused_buffer", tmp_path / "run", kwargs, decisions=5, info_keys=["view"])
    env = ReusedBufferEnv(is_nested)
    env.reset(seed=0)
    actions = drawn_actions(ReusedBufferEnv(is_nested), 7)
    for row in lines(folder, "transitions.jsonl"):
        action = next(actions)
        assert decode_value(row["action"]) == action
        _, reward, *_ = env.step(action.copy())
        seen = decode_value(row["next_observation"])
        flat = seen["flat"] if is_nested else seen
        assert flat.tobytes() == env._buffer.tobytes()
        if is_nested:
            assert seen["deep"]["view"].tobytes() == env._buffer[1:].tobytes()
        assert decode_value(row["info"]["view"]).tobytes() == env._buffer[:1].tobytes()
        assert decode_value(row["reward"]) == reward
    assert_verifies(folder)


def test_a_policy_that_writes_into_what_it_was_given_changes_no_record(tmp_path):
    env = RotorEnv()
    with RecordEpisode(env, tmp_path / "run", factory="environments:make_rotor", policy="vandal") as recorder:
        observation, _ = recorder.reset(seed=0)
        for _ in range(4):
            prediction = {"why": ["because"]}
            recorder.predict(prediction)
            action = np.array([0.5])
            observation, _, _, _, info = recorder.step(action)
            observation[:] = action[:] = 9
            info["path"][:] = 9
            prediction["why"].append("not")
    assert lines(recorder.episode_folder, "transitions.jsonl")[3]["prediction"] == {"why": ["because"]}
    assert_verifies(recorder.episode_folder)


# Wrappers


def test_wrappers_of_gymnasium_are_rebuilt(tmp_path):
    env = make("CartPole-v1", max_episode_steps=7)
    env = wrappers.FrameStackObservation(env, 3, padding_type="zero")
    env = wrappers.FlattenObservation(env)
    env = wrappers.ClipReward(env, 0.0, 0.5)
    folders = record(env, tmp_path / "run", decisions=16)
    manifest = read(folders[0], "manifest.json")
    assert manifest["environment"]["wrappers"][:3] == ["ClipReward", "FlattenObservation", "FrameStackObservation"]
    assert read(folders[0], "summary.json")["end_reason"] == "truncated"
    for folder in folders:
        assert_verifies(folder)


def test_tuples_among_the_arguments_of_wrappers_stay_tuples(tmp_path):
    env = wrappers.ReshapeObservation(make("CartPole-v1"), (2, 2))
    (folder, *_) = record(env, tmp_path / "run", decisions=5)
    wrapper = read(folder, "manifest.json")["environment"]["spec"]["additional_wrappers"][-1]
    assert decode_value(wrapper["kwargs"]) == {"shape": (2, 2)}
    assert_verifies(folder)


def test_a_resized_picture_as_observation_verifies(tmp_path):
    pytest.importorskip("cv2", reason="opencv is not installed")
    env = wrappers.AddRenderObservation(make("CartPole-v1", render_mode="rgb_array"), render_only=True)
    (folder,) = record(wrappers.ResizeObservation(env, (32, 24)), tmp_path / "run", decisions=3)
    assert_verifies(folder)


@pytest.mark.parametrize("wrapper", [wrappers.NormalizeReward, wrappers.NormalizeObservation])
def test_a_wrapper_that_keeps_statistics_over_episodes_is_refused(wrapper, tmp_path):
    with pytest.raises(NotRebuildableError, match="keeps statistics over episodes"):
        record(wrapper(make("CartPole-v1")), tmp_path / "run", decisions=60)
    assert not (tmp_path / "run").exists()


def test_episodes_of_a_rebuilt_environment_stand_alone_though_something_survives_its_reset(tmp_path):
    folders = record_factory("make_leaking", tmp_path / "run", decisions=14, rebuild=True)
    assert len(folders) == 3
    for folder in folders:
        assert_verifies(folder)


def test_a_wrapper_around_a_factory_goes_into_the_factory(tmp_path):
    env = wrappers.TimeLimit(RotorEnv(), 5)
    with pytest.raises(NotRebuildableError, match="wrappers TimeLimit < RotorEnv became RotorEnv"):
        record(env, tmp_path / "run", factory="environments:make_rotor")
    assert not (tmp_path / "run").exists()


# What could not be built again


def refuse(env, tmp_path, words, **kwargs):
    with pytest.raises(NotRebuildableError, match=words) as caught:
        RecordEpisode(env, tmp_path / "run", **kwargs)
    assert not (tmp_path / "run").exists()
    return str(caught.value)


def test_an_environment_without_a_spec_is_refused_with_the_next_step(tmp_path):
    refuse(CountingEnv(), tmp_path, r"CountingEnv has no spec: .*factory='module:function'")


def test_a_function_among_the_arguments_of_a_wrapper_is_refused_with_the_next_step(tmp_path):
    env = wrappers.TransformReward(make("CartPole-v1"), lambda reward: reward * 2)
    refuse(env, tmp_path, r"argument 'func' of wrapper TransformReward .*factory='module:function'")


def test_a_wrapper_that_keeps_no_arguments_is_refused_with_the_next_step(tmp_path):
    refuse(FillingWrapper(make("CartPole-v1")), tmp_path, "FillingWrapper does not keep its arguments: .*factory=")


def test_an_argument_without_a_spelling_is_refused_with_its_name(tmp_path):
    refuse(RotorEnv(), tmp_path, "'gravity'", factory="environments:make_rotor", factory_kwargs={"gravity": {1}})


@pytest.fixture
def registered():
    """Register environments for one test only."""
    before = dict(gymnasium.registry)
    yield gymnasium.register
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


def test_a_class_of_the_main_module_is_refused(registered, tmp_path):
    local = type("LocalEnv", (CountingEnv,), {"__module__": "__main__"})
    registered("tests/Local-v0", local)
    refuse(make("tests/Local-v0"), tmp_path, "__main__:LocalEnv cannot be imported by a replay: put it into a module")


def test_a_nameless_entry_point_is_refused(registered, tmp_path):
    registered("tests/Nameless-v0", lambda: CountingEnv())  # noqa: PLW0108 - a lambda is the point
    refuse(make("tests/Nameless-v0"), tmp_path, "cannot be imported by name")


def test_a_registered_environment_of_ones_own_is_recorded_and_replayed_where_it_is_registered(registered, tmp_path):
    registered("tests/Counting-v0", "environments:CountingEnv", kwargs={"steps": 4})
    (folder,) = record(make("tests/Counting-v0"), tmp_path / "run", decisions=4)
    assert replay_episode(folder).name == "verified"
    del gymnasium.registry["tests/Counting-v0"]
    with pytest.raises(UntrustedCodeError, match="--trust environments"):
        replay_episode(folder)
    assert replayed(folder).name == "verified"


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("environments:make_another", "wrappers RotorEnv became CountingEnv"),
        ("environments:make_text", "returned str, not a gymnasium.Env"),
        ("environments:make_nothing", "make_nothing"),
        ("environments:", "cannot be imported"),
        ("environments", "cannot be imported"),
        (":make_rotor", "cannot be imported"),
        ("", "cannot be imported"),
        ("no_such_module_anywhere:make", "no module no_such_module_anywhere"),
        ("environments.inner:make", "environments.inner"),
        ("__main__:make_rotor", "module of its own"),
        ("environments:make_space_env", "unexpected keyword|could not build"),
    ],
)
def test_a_factory_that_builds_nothing_or_something_else_is_refused(factory, words, tmp_path):
    refuse(RotorEnv(2.0), tmp_path, words, factory=factory, factory_kwargs={"gravity": 2.0})


def test_a_factory_with_another_space_is_refused(tmp_path):
    env = environments.SpaceEnv("discrete")
    words = r"observation space Discrete\(5\) became Discrete\(5, start=-2\)"
    kwargs = {"space_name": "discrete with start"}
    refuse(env, tmp_path, words, factory="environments:make_space_env", factory_kwargs=kwargs)


def test_an_output_folder_that_exists_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "file"):
        (tmp_path / "file").touch()
        with pytest.raises(UsageError, match="exists already"):
            record_factory("make_rotor", path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# Code that an episode names


def rename_code(folder, change):
    manifest = read(folder, "manifest.json")
    change(manifest["environment"])
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


def name_a_factory(entry_point, kwargs):
    def change(environment):
        environment["factory"] = {"entry_point": entry_point, "kwargs": {"dict": kwargs}}

    return change


def name_an_entry_point(entry_point, kwargs):
    def change(environment):
        environment["spec"]["entry_point"] = entry_point
        environment["spec"]["kwargs"] = {"dict": kwargs}

    return change


def name_a_wrapper(entry_point, kwargs):
    def change(environment):
        wrapper = {"name": "TimeLimit", "entry_point": entry_point, "kwargs": {"dict": kwargs}}
        environment["spec"]["additional_wrappers"].append(wrapper)

    return change


@pytest.mark.parametrize("way", [name_a_factory, name_an_entry_point, name_a_wrapper])
@pytest.mark.parametrize("entry_point", ["subprocess:Popen", "os:system", "gymnasium.wrappersx:f", "intruder:build"])
def test_code_that_a_manifest_names_does_not_run_unasked(way, entry_point, tmp_path, monkeypatch):
    (folder, *_) = record(make("CartPole-v1"), tmp_path / "run", decisions=3)
    witness = tmp_path / "witness"
    (tmp_path / "intruder.py").write_text(f"open({str(witness)!r}, 'w').close()\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    rename_code(folder, way(entry_point, {"args": ["touch", str(witness)]}))
    with pytest.raises((UntrustedCodeError,)) as caught:
        replay_episode(folder, trust=["environments"])
    assert f"--trust {entry_point.partition(':')[0].partition('.')[0]}" in str(caught.value)
    assert not witness.exists()
    assert "intruder" not in sys.modules


def test_trusting_one_module_does_not_trust_another_of_a_similar_name(tmp_path):
    (folder,) = record_factory("make_rotor", tmp_path / "run", decisions=2)
    for trust in ([], ["environment"], ["environments.inner"], ["environmentsx"], [""]):
        with pytest.raises(UntrustedCodeError, match="--trust environments"):
            replay_episode(folder, trust=trust)


# Exceptions


@pytest.mark.parametrize("step", [1, 3])
def test_a_raising_step_closes_the_episode_as_an_error_and_the_next_one_is_fine(step, tmp_path):
    kwargs = {"step": step}
    with contextlib.closing(
        RecordEpisode(
            FragileEnv(**kwargs), tmp_path / "run", factory="environments:make_fragile", factory_kwargs=kwargs
        )
    ) as recorder:
        recorder.reset(seed=1)
        for _ in range(step - 1):
            recorder.step(0)
        with pytest.raises(RuntimeError, match="the simulator broke"):
            recorder.step(0)
        with pytest.raises(UsageError, match="after the end"):
            recorder.step(0)
        recorder.reset(seed=2)
    first, second = sorted(recorder.out.iterdir())
    summary = read(first, "summary.json")
    facts = [summary[key] for key in ("end_reason", "status", "error_type", "decisions", "raw_frames")]
    assert facts == ["error", "incomplete", "RuntimeError", step - 1, step - 1]
    assert "broke" not in (first / "summary.json").read_text(encoding="utf-8")
    assert assert_verifies(first).name == "verified prefix"
    assert assert_verifies(second).name == "verified prefix"


def test_a_raising_reset_closes_the_episode_as_an_error_and_the_next_one_is_fine(tmp_path):
    kwargs = {"seed": 7}
    env = FragileEnv(**kwargs)
    with RecordEpisode(env, tmp_path / "run", factory="environments:make_fragile", factory_kwargs=kwargs) as recorder:
        with pytest.raises(RuntimeError, match="the simulator broke"):
            recorder.reset(seed=7)
        with pytest.raises(UsageError):
            recorder.step(0)
        recorder.reset(seed=8)
        for _ in range(5):
            recorder.step(0)
    first, second = sorted(recorder.out.iterdir())
    assert read(first, "summary.json")["error_type"] == "RuntimeError"
    assert not (first / "reset.json").exists()
    verdict = replayed(first)
    assert verdict.exit_code in {0, CannotRunError.exit_code}
    assert any("raised RuntimeError, as it did in the recording" in note for note in verdict.notes)
    assert assert_verifies(second).name == "verified"


@pytest.mark.parametrize("fault", ["observation", "info", "reward"])
def test_a_value_without_a_spelling_ends_the_episode_and_what_was_before_verifies(fault, tmp_path):
    kwargs = {"step": 3, "fault": fault}
    with RecordEpisode(
        FragileEnv(**kwargs),
        tmp_path / "run",
        factory="environments:make_fragile",
        factory_kwargs=kwargs,
        info_keys=["note"],
    ) as recorder:
        recorder.reset(seed=1)
        recorder.step(0)
        recorder.step(0)
        with pytest.raises(EncodingError, match=rf"{'note' if fault == 'info' else fault}.*builtins\.object"):
            recorder.step(0)
    (folder,) = recorder.out.iterdir()
    summary = read(folder, "summary.json")
    assert [summary[key] for key in ("error_type", "decisions", "raw_frames")] == ["EncodingError", 2, 2]
    assert_verifies(folder)


def test_a_reset_without_a_spelling_ends_the_episode_and_does_so_in_the_replay(tmp_path):
    kwargs = {"seed": 7, "fault": "observation"}
    env = FragileEnv(**kwargs)
    options = {"factory": "environments:make_fragile", "factory_kwargs": kwargs}
    refused = pytest.raises(EncodingError, match=r"reset observation.*builtins\.set")
    with RecordEpisode(env, tmp_path / "run", **options) as recorder, refused:
        recorder.reset(seed=7)
    verdict = replayed(recorder.episode_folder)
    assert not verdict.mismatches
    assert any("raised EncodingError, as it did in the recording" in note for note in verdict.notes)


def test_an_action_without_a_spelling_does_not_reach_the_environment(tmp_path):
    with counting(tmp_path) as recorder:
        recorder.reset(seed=0)
        with pytest.raises(EncodingError, match="'action'"):
            recorder.step({1})
        assert recorder.unwrapped._count == 0
    assert_verifies(recorder.episode_folder)


@pytest.mark.parametrize("prediction", [{"p": {1}}, {"p": float("nan")}, {1: 2}, {"p": 2**70}, ["p"], {"p": "\ud800"}])
def test_a_prediction_that_is_no_json_object_is_refused_and_what_was_before_verifies(prediction, tmp_path):
    with counting(tmp_path) as recorder:
        recorder.reset(seed=0)
        recorder.predict({"p": 0.5})
        recorder.step(0)
        with pytest.raises(EncodingError, match="prediction"):
            recorder.predict(prediction)
            recorder.step(0)
    rows = lines(recorder.episode_folder, "transitions.jsonl")
    assert [row["prediction"] for row in rows] == [{"p": 0.5}]
    assert_verifies(recorder.episode_folder)


def test_an_exception_of_the_caller_closes_the_episode_as_an_error(tmp_path):
    with pytest.raises(ZeroDivisionError), counting(tmp_path) as recorder:
        recorder.reset(seed=0)
        recorder.step(0)
        raise ZeroDivisionError
    summary = read(recorder.episode_folder, "summary.json")
    assert [summary[key] for key in ("end_reason", "error_type", "decisions")] == ["error", "ZeroDivisionError", 1]
    assert_verifies(recorder.episode_folder)


INTERRUPTED = """
import os, resource, sys
sys.path[:0] = {paths!r}
import environments
from recorder import RecordEpisode
kwargs = {{"steps": 1000}}
env = RecordEpisode(
    environments.make_frames(1000),
    {out!r},
    factory="environments:make_frames",
    factory_kwargs=kwargs,
    durability={durability!r},
)
env.reset(seed=0)
env.action_space.seed(0)
"""


def interrupt(tmp_path, durability, ending):
    """Record in a process that comes to a bad end; return its result and the verdict."""
    out = str(tmp_path / "run")
    source = INTERRUPTED.format(paths=sys.path, out=out, durability=durability) + ending
    done = subprocess.run([sys.executable, "-c", source], check=False, capture_output=True, text=True)
    (folder,) = (tmp_path / "run").iterdir()
    assert not (folder / "summary.json").exists()
    return done, replayed(folder)


@pytest.mark.parametrize(("durability", "lost"), [("batch", 31), ("process", 0), ("power", 0)])
def test_a_killed_run_leaves_a_prefix_that_verifies(durability, lost, tmp_path):
    ending = "for _ in range(50): env.step(env.action_space.sample())\nos.kill(os.getpid(), 9)"
    done, verdict = interrupt(tmp_path, durability, ending)
    assert done.returncode == -9
    assert verdict.name == "verified prefix"
    assert 50 - lost <= verdict.decisions <= 50
    assert verdict.raw_frames == 3 * verdict.decisions


def test_a_run_that_just_ends_leaves_every_decision(tmp_path):
    done, verdict = interrupt(tmp_path, "batch", "for _ in range(50): env.step(env.action_space.sample())")
    assert done.returncode == 0, done.stderr
    assert (verdict.name, verdict.decisions) == ("verified prefix", 50)


@pytest.mark.parametrize("durability", ["batch", "process"])
def test_files_that_cannot_grow_any_more_leave_a_prefix_that_verifies(durability, tmp_path):
    ending = """
resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
try:
    for _ in range(900):
        env.step(env.action_space.sample())
except OSError as error:
    print(error.errno)
"""
    done, verdict = interrupt(tmp_path, durability, ending)
    assert done.stdout == "27\n", done.stderr
    assert verdict.name == "verified prefix", verdict.to_json()
    assert verdict.decisions >= 20


# Environments that do not keep their word


def test_an_ignored_seed_diverges_at_the_reset(tmp_path):
    (folder,) = record_factory("make_ignored_seed", tmp_path / "run", decisions=3)
    verdict = replayed(folder)
    (mismatch,) = verdict.mismatches
    assert (verdict.name, verdict.exit_code, verdict.decisions) == ("diverged", 1, 0)
    assert (mismatch.place.record, mismatch.place.decision, mismatch.field) == ("reset", None, "observation")


def test_state_that_outlives_a_reset_diverges_in_the_first_decision_and_not_at_the_reset(tmp_path):
    first, second = record_factory("make_leaking", tmp_path / "run", decisions=10)
    assert_verifies(first)
    verdict = replayed(second)
    assert verdict.name == "diverged"
    assert {mismatch.place.decision for mismatch in verdict.mismatches} == {0}
    assert verdict.mismatches[0].field == "next_observation"
    assert verdict.mismatches[0].recorded - verdict.mismatches[0].replayed == 5.0


def test_the_global_random_state_diverges_in_the_first_decision(tmp_path):
    random.seed(0)
    (folder,) = record_factory("make_global_random", tmp_path / "run", decisions=5)
    verdict = replayed(folder)
    assert verdict.name == "diverged"
    assert verdict.mismatches[0].place.decision == 0
    assert verdict.mismatches[0].field == "next_observation"


def test_an_exception_that_only_the_replay_meets_is_a_divergence(tmp_path):
    (folder,) = record_factory("make_fragile", tmp_path / "run", decisions=5)
    for kwargs, place in (({"step": 3}, ("transition", 2)), ({"seed": 0}, ("reset", None))):
        rename_code(folder, name_a_factory("environments:make_fragile", kwargs))
        verdict = replayed(folder)
        (mismatch,) = verdict.mismatches
        assert (mismatch.place.record, mismatch.place.decision) == place
        assert mismatch.replayed == "RuntimeError: the simulator broke"


def test_a_value_without_a_spelling_that_only_the_replay_meets_is_a_divergence(tmp_path):
    (folder,) = record_factory("make_fragile", tmp_path / "run", decisions=5)
    for kwargs, decision in (({"step": 3, "fault": "observation"}, 2), ({"seed": 0, "fault": "observation"}, None)):
        rename_code(folder, name_a_factory("environments:make_fragile", kwargs))
        verdict = replayed(folder)
        assert verdict.mismatches[0].place.decision == decision
        assert verdict.mismatches[0].field == "exception"
        assert "EncodingError" in verdict.mismatches[0].replayed


def test_a_reset_that_raised_only_in_the_recording_is_a_divergence(tmp_path):
    kwargs = {"seed": 7}
    env = FragileEnv(**kwargs)
    options = {"factory": "environments:make_fragile", "factory_kwargs": kwargs}
    with RecordEpisode(env, tmp_path / "run", **options) as recorder, pytest.raises(RuntimeError):
        recorder.reset(seed=7)
    rename_code(recorder.episode_folder, name_a_factory("environments:make_fragile", {}))
    verdict = replayed(recorder.episode_folder)
    (mismatch,) = verdict.mismatches
    assert (mismatch.place.record, mismatch.field, mismatch.recorded) == ("reset", "exception", "RuntimeError")


def test_a_verdict_raises_the_error_that_fits_it(tmp_path):
    (folder,) = record_factory("make_counting", tmp_path / "run", decisions=3)
    replayed(folder).raise_unless_verified()
    (stray,) = record_factory("make_ignored_seed", tmp_path / "stray", decisions=3)
    with pytest.raises(DivergedError, match="observation"):
        replayed(stray).raise_unless_verified()
    (folder / "reset.json").unlink()
    with pytest.raises(DamagedError, match=r"reset\.json is missing"):
        replayed(folder).raise_unless_verified()


def test_reading_and_replaying_change_nothing(tmp_path):
    (folder,) = record_factory("make_frames", tmp_path / "run", decisions=3)
    facts = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}
    replayed(folder)
    assert facts == {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}


def test_a_factory_that_builds_another_environment_of_the_same_kind_is_found_by_the_replay(tmp_path):
    assert isinstance(make_another(), CountingEnv)
    (folder,) = record_factory("make_counting", tmp_path / "run", decisions=3)
    rename_code(folder, name_a_factory("environments:make_another", {"steps": 9}))
    verdict = replayed(folder)
    assert verdict.name == "damaged"
    assert not verdict.mismatches


def test_an_action_reaches_the_environment_with_its_keys_in_the_order_in_which_they_were_sent(tmp_path):
    with RecordEpisode(environments.OrderEnv(), tmp_path / "run", factory="environments:OrderEnv") as recorder:
        recorder.reset(seed=0, options={"z": 1, "a": 2})
        for _ in range(3):
            recorder.step({"b": 1.0, "a": 2.0})
            recorder.step({"a": 2.0, "b": 1.0})
    verdict = replayed(tmp_path / "run" / "episode-0000")
    assert (verdict.name, verdict.decisions) == ("verified prefix", 6)


@pytest.mark.parametrize("moment", range(40))
def test_an_interruption_at_any_moment_leaves_an_episode_that_verifies(moment, tmp_path):
    code = f"""
import signal, sys, gymnasium
from recorder import RecordEpisode
signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
with RecordEpisode(gymnasium.make("CartPole-v1"), "run", ram="numpy:state") as env:
    signal.setitimer(signal.ITIMER_REAL, {0.004 + moment * 0.00073})
    while True:
        env.reset(seed=3)
        for number in range(9):
            env.step(number % 2)
"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=False)
    folders = sorted((tmp_path / "run").iterdir()) if (tmp_path / "run").exists() else []
    for folder in folders[-2:]:
        if (folder / "reset.json").exists():
            verdict = replayed(folder)
            assert verdict.exit_code == 0, verdict.to_json()
