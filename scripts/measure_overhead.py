"""Measure what recording and replaying cost against the bare environment, in one run.

Bare, recorded, replayed and (where it is installed) Minari's DataCollector take turns, five times each, over the
same actions; medians are printed. Peak memory is that of a process of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from rich.console import Console
from rich.table import Table

from recorder import RecordEpisode
from recorder.atari import register_atari
from recorder.errors import MissingExtraError
from recorder.games import GameSettings, make_game
from recorder.pong import Tracker, ram_boxes
from recorder.pong_policies import make_pong_policy
from replay.opening import replay_episode

if TYPE_CHECKING:
    from collections.abc import Callable

    Array = np.ndarray[Any, Any]
    Environment = gym.Env[Any, Any]
    Choose = Callable[[int, Any], Any]

SEED = 50
# 200,000 raw frames each.
MEMORY_DECISIONS = {"CartPole-v1": 200_000, "ALE/Pong-v5": 50_000}
FILES_CREATED = EMPTY_EPISODES = 200
DRAWN = 4096
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a private folder is made in it
LEFT, RIGHT = np.int64(0), np.int64(1)
# Its collector needs jax too: pip install "minari[create,hdf5]".
HAS_MINARI = all(importlib.util.find_spec(name) is not None for name in ("minari", "jax", "h5py"))


@dataclass(frozen=True)
class Work:
    """One environment, one fixed way of acting, and its share of the command line's decisions."""

    name: str
    env_id: str
    choose: Choose
    decisions: float
    hold_frames: int | None = None

    def make_bare(self) -> Environment:
        """The environment without this project; a game gives an RGB observation every raw frame."""
        return gym.make(self.env_id) if self.hold_frames is None else gym.make(self.env_id, frameskip=1)

    def make_recorded(self) -> Environment:
        """What is recorded: a game's RAM and RGB of every raw frame."""
        if self.hold_frames is None:
            return gym.make(self.env_id)
        return make_game(self.env_id, GameSettings(self.hold_frames), render_mode="rgb_array")

    def hold(self, env: Environment) -> Environment:
        """A bare environment, or a collector around it, whose actions are repeated by the plainest loop."""
        return env if self.hold_frames is None else Repeat(env, self.hold_frames)


class Repeat(gym.Wrapper[Any, Any, Any, Any]):
    """Sends an action several times, up to an end."""

    def __init__(self, env: Environment, times: int) -> None:
        """Nothing is sent yet."""
        super().__init__(env)
        self.times = times

    def step(self, action: Any) -> Any:  # noqa: ANN401 - any environment's
        """The last answer."""
        for _ in range(self.times):
            result = self.env.step(action)
            if result[2] or result[3]:
                break
        return result


def balance(_: int, observation: Array) -> np.int64:
    """CartPole's pole stays up for the whole 500 decisions."""
    x, x_dot, theta, theta_dot = observation.tolist()  # quick, as its time counts as the environment's
    return RIGHT if theta + 0.5 * theta_dot + 0.05 * x + 0.1 * x_dot > 0 else LEFT


def seek_block(number: int, observation: Array) -> Array:
    """Push-T in contact: towards random places around the block."""
    move: Array = (observation[2:4] + SPREAD[number % DRAWN] - observation[:2]) / 100
    return move.clip(-1, 1).astype(np.float32)


class Tracked:
    """Pong's ball followed for 5,000 decisions: the same actions for every way, whatever it observes.

    A seeded reset loads the ROM anew, which takes as long as a thousand raw frames, and at random Pong is over
    after four thousand.
    """

    def __init__(self) -> None:
        """Play once when the first action is asked for."""
        self._actions: list[int] = []

    def __call__(self, number: int, _: Any) -> int:  # noqa: ANN401 - any observation
        """The action of a decision after `reset(seed=SEED)`."""
        if number >= len(self._actions):
            self._play(number + 1000)
        return self._actions[number]

    def _play(self, decisions: int) -> None:
        env = make_game("ALE/Pong-v5", GameSettings(4))
        policy = make_pong_policy("track-4px", 0)
        tracker = Tracker()
        ram, _ = env.reset(seed=SEED)
        observation = tracker.reset(ram_boxes(ram))
        self._actions = []
        for _ in range(decisions):
            action, _ = policy(observation)
            self._actions.append(action)
            ram, _, terminated, truncated, info = env.step(action)
            observation = tracker.observe(
                ram_boxes(ram), rewards=info["rewards"], raw_frames=len(info["rewards"]), requested_action=action
            )
            if terminated or truncated:
                env.reset()
        env.close()


# At random CartPole falls after about 22 decisions, so that starting an episode is what costs; and Push-T has few
# contacts, so that its simulator is quick and recording weighs most.
TOSSES = np.random.default_rng(0).integers(0, 2, DRAWN)
MOVES = np.random.default_rng(0).uniform(-1, 1, (DRAWN, 2)).astype(np.float32)
SPREAD = np.random.default_rng(0).uniform(-60, 60, (DRAWN, 2))
WORKS = (
    Work("CartPole-v1, 500 decisions an episode", "CartPole-v1", balance, 1.0),
    Work("CartPole-v1, 22 decisions an episode", "CartPole-v1", lambda number, _: TOSSES[number % DRAWN], 0.25),
    Work("LewmPushT-v1, 10 raw frames, random", "recorder/LewmPushT-v1", lambda number, _: MOVES[number % DRAWN], 0.1),
    Work("LewmPushT-v1, 10 raw frames, in contact", "recorder/LewmPushT-v1", seek_block, 0.1),
    Work("ALE/Pong-v5, 4 raw frames, RAM and RGB", "ALE/Pong-v5", Tracked(), 0.25, 4),
)


def play(env: Environment, choose: Choose, decisions: int) -> float:
    """Seconds for so many decisions, resets included; the same loop for every way."""
    gc.collect()
    started = time.perf_counter()
    observation, _ = env.reset(seed=SEED)
    for number in range(decisions):
        observation, _, terminated, truncated, _ = env.step(choose(number, observation))
        if (terminated or truncated) and number < decisions - 1:
            observation, _ = env.reset()
    return time.perf_counter() - started


def play_recorded(work: Work, decisions: int, out: Path) -> float:
    """With `RecordEpisode`, validating every line, up to the last summary."""
    with RecordEpisode(work.make_recorded(), out) as env:
        seconds = play(env, work.choose, decisions)
        started = time.perf_counter()
    return seconds + time.perf_counter() - started


def play_collected(work: Work, decisions: int, folder: Path) -> float:
    """With Minari's DataCollector, up to the dataset on disk: nothing is kept before."""
    os.environ["MINARI_DATASETS_PATH"] = str(folder.resolve())  # read when Minari is imported
    import minari  # noqa: PLC0415 - optional

    with warnings.catch_warnings():  # hundreds, and printing them would be measured
        warnings.simplefilter("ignore")
        env = minari.DataCollector(work.make_bare())
        seconds = play(work.hold(env), work.choose, decisions)
        started = time.perf_counter()
        dataset_id = f"measure/run{time.time_ns()}-v0"
        env.create_dataset(dataset_id=dataset_id, algorithm_name="none", author="none", author_email="none")
        seconds += time.perf_counter() - started
        env.close()
    return seconds


def replay_all(out: Path) -> float:
    """Seconds for replaying every episode of a run, reading and comparing everything."""
    gc.collect()
    started = time.perf_counter()
    for episode in sorted(out.iterdir()):
        replay_episode(episode).raise_unless_verified()
    return time.perf_counter() - started


def take_turns(work: Work, decisions: int, folder: Path) -> dict[str, float]:
    """Seconds of each way once, and the bytes and episodes of the recording."""
    out = folder / "run"
    turn = {"bare": play(work.hold(work.make_bare()), work.choose, decisions)}
    turn["recorded"] = play_recorded(work, decisions, out)
    turn["replayed"] = replay_all(out)
    if HAS_MINARI:
        turn["minari"] = play_collected(work, decisions, folder / "minari")
    turn["bytes"] = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    turn["episodes"] = len(list(out.iterdir()))
    shutil.rmtree(out)
    return turn


def measure(work: Work, decisions: int, repeats: int, folder: Path) -> dict[str, Any]:
    """Medians of alternating repetitions, per decision."""
    take_turns(work, decisions // 10 + 1, folder)  # warm up: imports, validators, what provenance asks git
    turns = [take_turns(work, decisions, folder) for _ in range(repeats)]
    median = {key: statistics.median(turn[key] for turn in turns) for key in turns[0]}
    return {
        "work": work.name,
        "decisions": decisions,
        "episodes": int(median["episodes"]),
        "steps_per_s": {way: decisions / median[way] for way in median if way not in {"bytes", "episodes"}},
        "recorded_over_bare": median["recorded"] / median["bare"],
        "replayed_over_bare": median["replayed"] / median["bare"],
        "replayed_over_recorded": median["replayed"] / median["recorded"],
        "minari_over_bare": median["minari"] / median["bare"] if HAS_MINARI else None,
        "overhead_us_per_decision": (median["recorded"] - median["bare"]) / decisions * 1e6,
        "bytes_per_decision": median["bytes"] / decisions,
    }


def reset_often(env: Environment) -> float:
    """Microseconds a reset."""
    env.reset(seed=0)
    started = time.perf_counter()
    for _ in range(EMPTY_EPISODES):
        env.reset()
    return (time.perf_counter() - started) / EMPTY_EPISODES * 1e6


def measure_empty_episode(repeats: int, folder: Path) -> float:
    """Microseconds that an episode without decisions takes beyond a bare reset."""
    outs = [folder / f"empty-{number}" for number in range(repeats)]
    makers = ((RecordEpisode(gym.make("CartPole-v1"), out), gym.make("CartPole-v1")) for out in outs)
    return statistics.median(reset_often(recorded) - reset_often(bare) for recorded, bare in makers)


def measure_creation(folder: Path) -> float:
    """Microseconds for creating a file in a folder."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".measure-") as place:
        started = time.perf_counter()
        for number in range(FILES_CREATED):
            Path(place, str(number)).touch()
        return (time.perf_counter() - started) / FILES_CREATED * 1e6


def measure_memory(name: str, decisions: int, folder: Path) -> dict[str, Any]:
    """Peak memory in MB of a bare and of a recorded run, each in its own process."""
    command = [sys.executable, __file__, "--decisions", str(decisions), "--folder", str(folder), "--only", name]
    bare, recorded = (
        float(subprocess.run([*command, "--memory-of", way], check=True, capture_output=True, text=True).stdout)  # noqa: S603 - this script itself
        for way in ("bare", "recorded")
    )
    return {"work": name, "decisions": decisions, "bare": bare, "recorded": recorded, "difference": recorded - bare}


def print_peak(way: str, name: str, decisions: int, folder: Path) -> None:
    """Run one way in this process and print its peak memory in MB; CartPole in one episode of any length."""
    work = next(work for work in WORKS if work.env_id.startswith(name or "CartPole"))
    is_recorded = way == "recorded"
    if work.hold_frames is not None:
        register_atari()
        env = work.make_recorded() if is_recorded else work.hold(work.make_bare())
    else:
        env = gym.make(work.env_id, max_episode_steps=decisions + 1)
    if is_recorded:
        env = RecordEpisode(env, folder / "memory")
    play(env, work.choose if work.hold_frames is None else cycle_actions, decisions)
    env.close()
    # Not getrusage: its ru_maxrss starts at that of the process that started this one, which may hold jax.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    print(int(status.partition("VmHWM:")[2].split()[0]) / 1024)


def cycle_actions(number: int, _: Any) -> int:  # noqa: ANN401 - any observation
    """Every action of Pong in turn."""
    return number % 6


def show(measured: dict[str, Any]) -> None:
    """The results as a table."""
    table = Table(title="medians; ratios within the same run")
    for heading in ("work", "bare steps/s", "recorded", "overhead", "replayed", "Minari", "on disk"):
        table.add_column(heading, justify="left" if heading == "work" else "right")
    for row in measured["rows"]:
        minari = row["minari_over_bare"]
        table.add_row(
            row["work"],
            f"{row['steps_per_s']['bare']:,.0f}",
            f"{row['recorded_over_bare']:.2f}x bare",
            f"{row['overhead_us_per_decision']:.1f} us a decision",
            f"{row['replayed_over_bare']:.2f}x bare, {row['replayed_over_recorded']:.2f}x recording",
            "not installed" if minari is None else f"{minari:.1f}x bare",
            f"{row['bytes_per_decision']:,.0f} B a decision",
        )
    Console(width=170).print(table)
    places = ", ".join(f"{cost:.0f} us in {place}" for place, cost in measured["file_creation_us"].items())
    print(f"an episode without decisions costs {measured['empty_episode_us']:.0f} us: five files and a folder")
    print(f"creating a file takes {places}; episodes were written to the first")
    for memory in measured["memory_mb"]:
        print(
            f"peak memory of {memory['decisions']:,} decisions of {memory['work']}: "
            f"bare {memory['bare']:.0f} MB, recorded {memory['difference']:+.1f} MB"
        )


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decisions", type=int, default=20_000, help="a repetition of the first row (default 20000)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--folder", type=Path, help="where episodes are written (default: /dev/shm, else here)")
    parser.add_argument("--memory", action=argparse.BooleanOptionalAction, default=True, help="of 200,000 raw frames")
    parser.add_argument("--memory-of", choices=["bare", "recorded"], help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    parsed = parser.parse_args()
    if parsed.memory_of:
        print_peak(parsed.memory_of, parsed.only, parsed.decisions, parsed.folder)
        return 0
    with contextlib.suppress(MissingExtraError):
        register_atari()
    works = [work for work in WORKS if parsed.only in work.name]
    for work in [work for work in works if work.env_id not in gym.registry]:
        print(f"left out, as there is no {work.env_id}: {work.name}", file=sys.stderr)
        works.remove(work)
    if not works:
        parser.error(f"no row to measure; there are: {'; '.join(work.name for work in WORKS)}")
    # Memory where there is some: what is measured is the recorder, and not how a disk feels today.
    place = parsed.folder or (SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else Path())
    with tempfile.TemporaryDirectory(dir=place, prefix=".measure-") as name:
        folder = Path(name)
        measured = {
            "rows": [measure(w, max(1, int(parsed.decisions * w.decisions)), parsed.repeats, folder) for w in works],
            "empty_episode_us": measure_empty_episode(parsed.repeats, folder),
            "file_creation_us": {str(path.resolve()): measure_creation(path) for path in (place, Path())},
            "memory_mb": [
                measure_memory(name, count, folder / name.replace("/", "-"))
                for name, count in MEMORY_DECISIONS.items()
                if parsed.memory and any(work.env_id == name for work in works)
            ],
        }
    print(json.dumps(measured, allow_nan=False)) if parsed.json else show(measured)
    return 0


if __name__ == "__main__":
    sys.exit(main())
