"""Recording and replaying: every space, real environments, boundaries of episodes, seeds, clocks and refusals."""

import json
import os
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import environments
from recorder import RecordEpisode
from recorder.errors import (
    CannotRunError,
    DamagedError,
    DivergedError,
    EncodingError,
    NotRebuildableError,
    UntrustedCodeError,
    UsageError,
)
from recorder.policies import make_policy
from replay.engine import replay_episode

SRC = Path(__file__).resolve().parents[1] / "src"
RECORD_BYTES = ("reset.json", "transitions.jsonl", "frames.jsonl", "arrays.bin")


def make(name, **kwargs):
    return getattr(environments, name)(**kwargs), {"factory": f"environments:{name}", "factory_kwargs": kwargs}


def play(env, out, decisions=20, seed=0, **options):
    """Record random decisions, through as many episodes as they take; the folders of the episodes."""
    policy = make_policy("random", env, seed)
    with RecordEpisode(env, out, **options) as recorded:
        observation, _ = recorded.reset(seed=seed)
        for _ in range(decisions):
            observation, _, terminated, truncated, _ = recorded.step(policy(observation))
            if terminated or truncated:
                observation, _ = recorded.reset()
    return sorted(Path(out).iterdir())


def replay(folder, **options):
    return replay_episode(folder, trust=["environments"], **options)


def rows(folder, name="transitions.jsonl"):
    return [json.loads(line) for line in (folder / name).read_bytes().splitlines()]


def document(folder, name):
    return json.loads((folder / name).read_bytes())


def bytes_of(folder):
    return {name: (folder / name).read_bytes() for name in RECORD_BYTES if (folder / name).exists()}


def assert_recorded_faithfully(first, second):
    """Two recordings are the same bytes, and every episode verifies."""
    assert [bytes_of(folder) for folder in first] == [bytes_of(folder) for folder in second]
    for folder in first:
        verdict = replay(folder)
        assert verdict.exit_code == 0, verdict.to_json()
        assert verdict.compared["resets"] == 1


@pytest.mark.parametrize("space", environments.SPACES)
def test_every_space_is_recorded_and_verified_and_recorded_again_with_the_same_bytes(tmp_path, space):
    runs = []
    for run in ("first", "second"):
        env, options = make("SpaceEnv", name=space)
        runs.append(play(env, tmp_path / run, 16, **options))
    assert len(runs[0]) == 3
    assert_recorded_faithfully(*runs)


CLASSIC = (
    "CartPole-v1",
    "Acrobot-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Pendulum-v1",
    "FrozenLake-v1",
    "Taxi-v4",
    "CliffWalking-v1",
    "Blackjack-v1",
    "recorder/CartPole-v1",
    "recorder/LewmPushT-v1",
    "LunarLander-v3",
    "BipedalWalker-v3",
)


@pytest.mark.parametrize("env_id", CLASSIC)
def test_real_environments_are_recorded_and_verified_and_recorded_again_with_the_same_bytes(tmp_path, env_id):
    if env_id.startswith(("Lunar", "Bipedal")):
        pytest.importorskip("Box2D")
    assert_recorded_faithfully(*(play(gym.make(env_id), tmp_path / run, 60, seed=7) for run in ("first", "second")))


def test_an_atari_game_is_recorded_and_verified(tmp_path):
    pytest.importorskip("ale_py")
    (first,) = play(gym.make("ALE/Pong-v5", obs_type="rgb"), tmp_path / "first", 12)
    assert (first / "arrays.bin").stat().st_size == 13 * 210 * 160 * 3
    assert replay(first).exit_code == 0


def test_hash_seed_folder_locale_and_time_zone_change_no_byte(tmp_path):
    """Record in one process and replay in another, under settings that differ in everything."""
    settings = [
        {"PYTHONHASHSEED": "0", "LC_ALL": "C", "TZ": "UTC"},
        {"PYTHONHASHSEED": "4242", "LC_ALL": "C.UTF-8", "TZ": "Pacific/Kiritimati"},
    ]
    recorded = {}
    for number, (setting, other) in enumerate(zip(settings, settings[::-1], strict=True)):
        cwd = tmp_path / f"cwd-{number}"
        cwd.mkdir()
        for env_id in ("LunarLander-v3", "recorder/LewmPushT-v1", "Taxi-v4"):
            out = tmp_path / f"run-{number}" / env_id.replace("/", "-")
            arguments = ["play", "--env", env_id, "--decisions", "120", "--seed", "3", "--out", str(out)]
            call("recorder.cli", "main", arguments, cwd, setting)
            for folder in sorted(out.iterdir()):
                call("replay.cli", "replay_main", ["--episode", str(folder)], cwd, other)
                recorded.setdefault((env_id, folder.name), []).append(bytes_of(folder))
    assert len(recorded) >= 3
    for first, second in recorded.values():
        assert first == second


def call(module, function, arguments, cwd, setting):
    code = f"import sys; from {module} import {function}; sys.exit({function}(sys.argv[1:]))"
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=cwd, env={**os.environ, **setting}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# Boundaries of episodes.


def test_three_steps_give_three_transitions_four_observations_and_a_return_of_three(tmp_path):
    env, options = make("Plain")
    folders = play(env, tmp_path / "run", 9, **options)
    for folder in folders[:3]:
        transitions = rows(folder)
        assert [row["decision"] for row in transitions] == [0, 1, 2]
        assert [row["terminated"] for row in transitions] == [False, False, True]
        assert document(folder, "reset.json")["observation"] == transitions[0]["observation"]
        for before, after in zip(transitions, transitions[1:], strict=False):
            assert before["next_observation"] == after["observation"]
        summary = document(folder, "summary.json")
        assert (summary["return"], summary["decisions"], summary["end_reason"]) == (3.0, 3, "terminated")
        assert summary["status"] == "complete"
        assert replay(folder).name == "verified"


def test_a_reset_in_mid_episode_abandons_it_and_leaves_truncated_as_it_was(tmp_path):
    env, options = make("Plain")
    with RecordEpisode(env, tmp_path / "run", **options) as recorded:
        recorded.reset(seed=1)
        recorded.step(0)
        recorded.reset(seed=2)
    first, second = sorted((tmp_path / "run").iterdir())
    summary = document(first, "summary.json")
    assert (summary["end_reason"], summary["status"], summary["truncated"]) == ("abandoned", "incomplete", False)
    assert rows(first)[-1]["truncated"] is False
    assert replay(first).name == "verified prefix"
    assert document(second, "summary.json")["end_reason"] == "closed"


def test_an_episode_without_a_decision_still_verifies_its_reset(tmp_path):
    env, options = make("Plain")
    with RecordEpisode(env, tmp_path / "run", **options) as recorded:
        recorded.reset(seed=1)
    verdict = replay(tmp_path / "run" / "episode-0000")
    assert (verdict.name, verdict.decisions, verdict.compared["resets"]) == ("verified prefix", 0, 1)


def test_a_step_after_the_end_or_before_the_reset_is_refused_in_one_sentence(tmp_path):
    env, options = make("Plain")
    with RecordEpisode(env, tmp_path / "run", **options) as recorded:
        with pytest.raises(UsageError, match=r"before reset\(\)"):
            recorded.step(0)
        recorded.reset(seed=1)
        for _ in range(3):
            recorded.step(0)
        with pytest.raises(UsageError, match="after the end of episode-0000"):
            recorded.step(0)
    assert len(rows(tmp_path / "run" / "episode-0000")) == 3


def test_both_flags_at_once_are_kept_and_verify(tmp_path):
    env, options = make("BothFlags")
    folder = play(env, tmp_path / "run", 3, **options)[0]
    assert (rows(folder)[-1]["terminated"], rows(folder)[-1]["truncated"]) == (True, True)
    assert replay(folder).name == "verified"


def test_the_decision_limit_completes_an_episode_and_leaves_truncated_as_it_was(tmp_path):
    env, options = make("Pendulum")
    with RecordEpisode(env, tmp_path / "run", **options) as recorded:
        recorded.limit_decisions(4)
        recorded.reset(seed=1)
        for _ in range(4):
            recorded.step(0)
        recorded.end_episode()
    folder = tmp_path / "run" / "episode-0000"
    summary = document(folder, "summary.json")
    assert (summary["end_reason"], summary["status"], summary["truncated"]) == ("decision_limit", "complete", False)
    assert replay(folder).name == "verified"


@pytest.mark.parametrize("at", [0, 1, 5])
def test_an_exception_of_the_environment_ends_the_episode_as_an_error_and_the_next_is_fine(tmp_path, at):
    env, options = make("Fails", at=at)
    recorded = RecordEpisode(env, tmp_path / "run", **options)
    with pytest.raises(RuntimeError, match="broken"):
        recorded.reset(seed=1)
        for _ in range(9):
            recorded.step(0)
    first = tmp_path / "run" / "episode-0000"
    summary = document(first, "summary.json")
    assert (summary["end_reason"], summary["error_type"]) == ("error", "RuntimeError")
    assert summary["decisions"] == max(at - 1, 0)
    verdict = replay(first)
    assert verdict.exit_code == (0 if at else CannotRunError.exit_code), verdict.to_json()
    if at:
        recorded.reset(seed=2)
        recorded.close()
        assert replay(tmp_path / "run" / "episode-0001").exit_code == 0


def test_an_exception_of_the_caller_ends_the_episode_as_an_error(tmp_path):
    env, options = make("Plain")
    with pytest.raises(ZeroDivisionError), RecordEpisode(env, tmp_path / "run", **options) as recorded:
        recorded.reset(seed=1)
        recorded.step(0)
        raise ZeroDivisionError
    assert document(tmp_path / "run" / "episode-0000", "summary.json")["error_type"] == "ZeroDivisionError"


def test_what_step_returned_is_on_disk_though_nothing_is_closed(tmp_path):
    code = f"""
import os, gymnasium
from recorder import RecordEpisode
env = RecordEpisode(gymnasium.make("CartPole-v1"), {str(tmp_path / "run")!r}, ram="numpy:state")
env.reset(seed=0)
for _ in range(7):
    env.step(0)
os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    folder = tmp_path / "run" / "episode-0000"
    assert len(rows(folder)) == len(rows(folder, "frames.jsonl")) == 7
    verdict = replay_episode(folder)
    assert (verdict.name, verdict.decisions) == ("verified prefix", 7)


def test_raw_frames_that_repeat_the_transitions_may_be_missing_after_a_kill(tmp_path):
    env, options = make("Plain", steps=100)
    recorded = RecordEpisode(env, tmp_path / "run", **options)
    recorded.reset(seed=1)
    for _ in range(70):
        recorded.step(0)
    folder = tmp_path / "run" / "episode-0000"
    assert (len(rows(folder)), len(rows(folder, "frames.jsonl"))) == (70, 64)
    verdict = replay(folder)
    assert (verdict.name, verdict.decisions) == ("verified prefix", 70)
    assert any("ends before raw frame 65" in note for note in verdict.notes)
    recorded.close()
    assert len(rows(folder, "frames.jsonl")) == 70


# Seeds and options.


def test_zero_is_a_seed_and_later_episodes_get_derived_ones(tmp_path):
    env, options = make("Plain")
    folders = play(env, tmp_path / "run", 7, seed=0, **options)
    seeds = [document(folder, "manifest.json")["reset"] for folder in folders]
    assert [seed["seed_origin"] for seed in seeds] == ["given", "derived:0:1", "derived:0:2"]
    assert seeds[0]["seed"] == 0
    assert len({seed["seed"] for seed in seeds}) == 3


def test_a_run_without_a_seed_draws_and_records_one(tmp_path):
    env, options = make("Plain")
    with RecordEpisode(env, tmp_path / "run", draw_seed=lambda: 99, **options) as recorded:
        recorded.reset()
    folder = tmp_path / "run" / "episode-0000"
    assert document(folder, "manifest.json")["reset"] == {"seed": 99, "seed_origin": "drawn", "options": None}
    assert replay(folder).exit_code == 0


def test_every_episode_of_a_run_replays_alone(tmp_path):
    env, options = make("LeaksState")
    for folder in play(gym.make("FrozenLake-v1"), tmp_path / "run", 60):
        assert replay(folder).exit_code == 0
    assert replay(play(env, tmp_path / "leaks", 7, **options)[0]).exit_code == 0


@pytest.mark.parametrize("seed", [True, -1, 1.0, "1"])
def test_a_bad_seed_is_refused_and_nothing_is_written(tmp_path, seed):
    env, options = make("Plain")
    recorded = RecordEpisode(env, tmp_path / "run", **options)
    with pytest.raises(UsageError, match="seed"):
        recorded.reset(seed=seed)
    assert not (tmp_path / "run").exists()


def test_reset_options_and_info_keys_are_recorded_and_replayed(tmp_path):
    env, options = make("Plain")
    with RecordEpisode(env, tmp_path / "run", info_keys=["steps", "start", "absent"], **options) as recorded:
        recorded.reset(seed=1, options={"shift": np.float64(5.0)})
        recorded.step(0)
    folder = tmp_path / "run" / "episode-0000"
    assert document(folder, "manifest.json")["reset"]["options"] == {"dict": {"shift": {"dtype": "<f8", "value": 5.0}}}
    assert document(folder, "reset.json")["info"]["start"] > 5
    assert rows(folder)[0]["info"] == {"steps": 1}
    verdict = replay(folder)
    assert (verdict.exit_code, verdict.compared["info"]) == (0, 2)


def test_numpy_flags_and_rewards_keep_their_kind(tmp_path):
    env, options = make("NumpyKinds")
    folder = play(env, tmp_path / "run", 3, **options)[0]
    row = rows(folder)[-1]
    assert (row["reward"], row["terminated"]) == ({"dtype": "<f4", "value": 1.0}, True)
    assert replay(folder).name == "verified"


# State bytes and raw frames.


def test_plain_numpy_state_is_recorded_as_ram(tmp_path):
    env, options = make("Pendulum")
    folder = play(env, tmp_path / "run", 5, ram="numpy:state", **options)[0]
    assert [len(row["ram"]) for row in rows(folder, "frames.jsonl")] == [32] * 5
    assert replay(folder).compared["ram"] == 6


def test_pymunk_bodies_are_recorded_as_ram(tmp_path):
    env, options = make("Engine")
    folder = play(env, tmp_path / "run", 3, ram="pymunk:space", **options)[0]
    assert [len(row["ram"]) for row in rows(folder, "frames.jsonl")] == [2 * 72] * 15
    assert replay(folder).compared["ram"] == 16


def test_a_function_of_ones_own_gives_ram_and_has_to_be_trusted(tmp_path):
    env, options = make("Plain")
    folder = play(env, tmp_path / "run", 2, ram="environments:state_of", **options)[0]
    assert rows(folder, "frames.jsonl")[1]["ram"] == np.float32(2).tobytes().hex()
    assert replay(folder).compared["ram"] == 3
    with pytest.raises(UntrustedCodeError, match="--trust environments"):
        replay_episode(folder)


def test_raw_frames_are_recorded_with_state_and_picture_on_the_simulators_clock(tmp_path):
    env, options = make("Engine", render_mode="rgb_array")
    folder = play(env, tmp_path / "run", 8, info_keys=["x", "note"], **options)[0]
    frames, transitions = rows(folder, "frames.jsonl"), rows(folder)
    assert [frame["raw_frame"] for frame in frames] == list(range(1, 41))
    assert [frame["decision"] for frame in frames] == [number // 5 for number in range(40)]
    assert len({frame["ram"] for frame in frames}) == len({frame["rgb_sha256"] for frame in frames}) == 40
    assert transitions[0]["rewards"] == [None, None, None, None, 0.5]
    assert document(folder, "manifest.json")["clocks"] == {"raw_frame_source": "environment", "raw_frame_hz": 100.0}
    shown = []
    verdict = replay(folder, frame_sink=lambda picture: shown.append(int(picture[0, 0, 0])))
    assert verdict.name == "verified"
    assert (verdict.compared["ram"], verdict.compared["rgb"]) == (41, 41)
    assert shown == [number * 6 for number in range(41)]


def test_kept_raw_frames_are_the_same_lines_as_listened_ones(tmp_path):
    kept, heard = (play(gym.make("recorder/LewmPushT-v1"), tmp_path / name, 12)[0] for name in ("kept", "heard"))
    env = gym.make("recorder/LewmPushT-v1", render_mode="rgb_array")
    heard = play(env, tmp_path / "drawn", 12)[0]
    drop = {"rgb_sha256"}
    without = [
        [{k: v for k, v in row.items() if k not in drop} for row in rows(f, "frames.jsonl")] for f in (kept, heard)
    ]
    assert without[0] == without[1]


def test_big_observations_go_to_the_side_file_once(tmp_path):
    env, options = make("Engine")
    folder = play(env, tmp_path / "run", 4, **options)[0]
    assert (folder / "arrays.bin").stat().st_size == 5 * 20 * 20 * 3
    transitions = rows(folder)
    assert transitions[0]["next_observation"] == transitions[1]["observation"]
    assert replay(folder).exit_code == 0


# What environments do to their arguments and buffers.


def test_an_environment_that_reuses_its_buffer_is_recorded_right(tmp_path):
    env, options = make("ReusesBuffer")
    folder = play(env, tmp_path / "run", 10, **options)[0]
    seen = [row["next_observation"]["dict"]["inner"]["values"][1] for row in rows(folder)]
    assert seen == [float(step) for step in range(1, 11)]
    assert replay(folder).exit_code == 0


def test_an_action_is_recorded_as_it_was_sent_though_the_environment_writes_into_it(tmp_path):
    env, options = make("WritesIntoActions")
    folder = play(env, tmp_path / "run", 3, **options)[0]
    assert all(abs(value) <= 1 for row in rows(folder) for value in row["action"]["values"])
    assert replay(folder).exit_code == 0


def test_a_value_without_an_exact_spelling_stops_the_recording_with_its_place(tmp_path):
    env, options = make("Plain")
    with (
        pytest.raises(EncodingError, match=r"'action'.*builtins\.set"),
        RecordEpisode(env, tmp_path / "run", **options) as recorded,
    ):
        recorded.reset(seed=0)
        recorded.step({1})
    assert document(tmp_path / "run" / "episode-0000", "summary.json")["end_reason"] == "error"


# Environments that do not repeat are caught where they first differ.


@pytest.mark.parametrize(
    ("name", "episode", "record", "decision"),
    [("IgnoresSeed", 0, "reset", None), ("LeaksState", 1, "transition", 0), ("GlobalRandom", 0, "transition", 0)],
)
def test_an_environment_that_does_not_repeat_diverges_at_its_true_place(tmp_path, name, episode, record, decision):
    env, options = make(name)
    verdict = replay(play(env, tmp_path / "run", 8, **options)[episode])
    place = verdict.mismatches[0].place
    assert (verdict.name, place.record, place.decision) == ("diverged", record, decision)
    with pytest.raises(DivergedError):
        verdict.raise_unless_verified()


# What could not be built again is refused when recording starts.


def test_an_environment_without_spec_is_refused_and_nothing_is_written(tmp_path):
    with pytest.raises(NotRebuildableError, match="factory="):
        RecordEpisode(environments.Plain(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_wrapper_that_does_not_keep_its_arguments_is_refused(tmp_path):
    with pytest.raises(NotRebuildableError, match="RecordConstructorArgs"):
        RecordEpisode(environments.NoConstructorArgs(gym.make("CartPole-v1")), tmp_path / "run")


def test_a_function_among_the_arguments_is_refused_with_its_name(tmp_path):
    env = gym.wrappers.TransformReward(gym.make("CartPole-v1"), lambda reward: reward)
    with pytest.raises(NotRebuildableError, match="argument 'func'"):
        RecordEpisode(env, tmp_path / "run")


def test_a_class_of_the_main_script_is_refused(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import gymnasium\nfrom environments import Plain\nfrom recorder import RecordEpisode\n"
        "class Mine(Plain): pass\n"
        "gymnasium.register('Mine-v0', Mine)\n"
        "RecordEpisode(gymnasium.make('Mine-v0'), 'run')\n",
        encoding="utf-8",
    )
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "module of its own" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_factory_that_builds_something_else_is_refused(tmp_path):
    env = gym.wrappers.TimeLimit(environments.Plain(), 5)
    with pytest.raises(NotRebuildableError, match="TimeLimit < Plain became Plain"):
        RecordEpisode(env, tmp_path / "run", factory="environments:Plain")


def test_a_factory_that_cannot_be_imported_is_refused(tmp_path):
    for factory in ("nowhere:make", "environments:nothing", "environments"):
        with pytest.raises(NotRebuildableError):
            RecordEpisode(environments.Plain(), tmp_path / "run", factory=factory)


def test_a_factory_covers_what_no_spec_can_hold(tmp_path):
    env, options = make("make_wrapped", gravity=9.5)
    assert replay(play(env, tmp_path / "run", 5, **options)[0]).exit_code == 0


def test_wrappers_of_gymnasium_and_tuples_among_arguments_are_built_again(tmp_path):
    env = gym.make("CartPole-v1", max_episode_steps=9)
    env = gym.wrappers.FrameStackObservation(gym.wrappers.FlattenObservation(env), 3)
    env = environments.Scale(env, scales=(1.0, 0.5))
    folder = play(env, tmp_path / "run", 9)[0]
    assert document(folder, "manifest.json")["environment"]["wrappers"][:2] == ["Scale", "FrameStackObservation"]
    assert rows(folder)[0]["reward"] == 0.5
    assert replay(folder).exit_code == 0
    with pytest.raises(UntrustedCodeError, match="--trust environments"):
        replay_episode(folder)


def test_rgb_without_pictures_and_a_taken_folder_are_refused(tmp_path):
    with pytest.raises(UsageError, match="render_mode='rgb_array'"):
        RecordEpisode(gym.make("CartPole-v1"), tmp_path / "run", rgb=True)
    (tmp_path / "run").mkdir()
    with pytest.raises(UsageError, match="exists already"):
        RecordEpisode(gym.make("CartPole-v1"), tmp_path / "run")


# Code that an episode names runs only if it is trusted.


@pytest.mark.parametrize("entry_point", ["subprocess:Popen", "os:system", "environments:Plain"])
def test_code_that_an_episode_names_does_not_run_unasked(tmp_path, entry_point):
    folder = play(gym.make("CartPole-v1"), tmp_path / "run", 3)[0]
    manifest = document(folder, "manifest.json")
    witness = tmp_path / "ran"
    manifest["environment"]["spec"] |= {
        "entry_point": entry_point,
        "kwargs": {"dict": {"args": ["touch", str(witness)]}},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(UntrustedCodeError, match="--trust"):
        replay_episode(folder)
    assert not witness.exists()


def test_a_verdict_raises_the_error_that_fits_it(tmp_path):
    folder = play(gym.make("CartPole-v1"), tmp_path / "run", 3)[0]
    replay_episode(folder).raise_unless_verified()
    (folder / "reset.json").unlink()
    with pytest.raises(DamagedError, match=r"reset\.json is missing"):
        replay_episode(folder).raise_unless_verified()
