"""The historical layout `pong-play-v1`: the records of a public Pong lab of September 2026, written byte for byte.

`schemas/pong-play-v1.md` is the layout's description. The rows come out of one `PongStepper`, here and in a replay.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from recorder.atari import emulator_ram, rom_sha256
from recorder.errors import CannotRunError, UsageError
from recorder.games import GameSettings, make_game
from recorder.limits import LimitReason, Limits
from recorder.pong import EXTRACTOR_VERSION, GAME
from recorder.pong_objects import ObserveObjects
from recorder.pong_policies import RECORDED_NAMES
from recorder.provenance import describe_provenance, find_version
from recorder.records import FRAMES, MANIFEST, SUMMARY, TRANSITIONS, Row, validate_row
from recorder.storage import require_new_folder, write_all, write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy as np

    from recorder.pong_policies import PongPolicy

KIND = "pong-play-v1"

# Distributions whose versions the protocol states.
PROTOCOL_VERSIONS = ("ale-py", "gymnasium", "numpy")

RAW_FRAME_HZ = 60

# The last digit of a seed says what its episodes may be used for.
_SPLITS = ("train",) * 6 + ("development",) * 2 + ("test",) * 2

_VIDEO_CLOCK = "60 fps of simulation time; waiting for a policy takes none"


@dataclass(frozen=True)
class PongSettings:
    """What a protocol fixes.

    Attributes:
        hold_frames: Raw frames a decision, 1 to 16.
        sticky: Probability, at each raw frame, that the emulator repeats the action before.
        noop_max: Most reset no-ops, 0 to 60.
        observe: Where the objects come from.
    """

    hold_frames: int = 4
    sticky: float = 0.25
    noop_max: int = 30
    observe: Literal["ram", "vision"] = "ram"

    @classmethod
    def from_protocol(cls, protocol: Row) -> PongSettings:
        """The settings that a protocol states.

        Raises:
            CannotRunError: It is another game, or one set up in a way that no known record was.
        """
        fixed = {**_fixed_protocol(), "observation": protocol["observation"]}
        for field, value in fixed.items():
            if protocol[field] != value and field != "observation":
                message = f"this {KIND} episode has {field} {protocol[field]!r}, and only {value!r} can be replayed"
                raise CannotRunError(message)
        return cls(protocol["hold_frames"], protocol["sticky"], protocol["noop_max"], protocol["observation"])


def make_pong(settings: PongSettings) -> ObserveObjects:
    """Pong as the layout has it: objects observed, actions held, pictures drawn."""
    game = GameSettings(
        hold_frames=settings.hold_frames,
        sticky=settings.sticky,
        noop_max=settings.noop_max,
        mode=0,
        difficulty=0,
    )
    env = make_game(GAME, game, render_mode="rgb_array")
    return ObserveObjects(env, settings.observe, sticky_probability=settings.sticky)


def describe_protocol(settings: PongSettings, versions: dict[str, str | None] | None = None) -> Row:
    """The manifest's `protocol`, its hash included.

    Args:
        settings: What it fixes.
        versions: Version of each of `PROTOCOL_VERSIONS`; those installed here by default.
    """
    fixed = _fixed_protocol()
    protocol = {
        "hold_frames": settings.hold_frames,
        "sticky": settings.sticky,
        "observation": settings.observe,
        "noop_max": settings.noop_max,
        **{name: fixed[name] for name in ("game", "mode", "difficulty", "frameskip", "full_action_space", "extractor")},
        "rom_sha256": rom_sha256("pong"),
        "versions": versions or {name: find_version(name) for name in PROTOCOL_VERSIONS},
    }
    return {**protocol, "protocol_hash": canonical_digest(protocol)}


def _fixed_protocol() -> Row:
    return {
        "game": GAME,
        "mode": 0,
        "difficulty": 0,
        "frameskip": 1,
        "full_action_space": False,
        "extractor": EXTRACTOR_VERSION,
    }


def split_of(seed: int) -> str:
    """`train`, `development` or `test`, by the seed's last digit."""
    return _SPLITS[seed % 10]


def canonical_digest(document: Any) -> str:  # noqa: ANN401 - any JSON value
    """SHA-256 of JSON with sorted keys, without spaces, in ASCII."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def encode_historical_line(row: Row) -> bytes:
    """A row as a line of the layout, with its newline."""
    return f"{json.dumps(row, allow_nan=False)}\n".encode("ascii")


class PongStepper:
    """Steps Pong and makes the rows of the layout.

    Args:
        env: What `make_pong` gives.
        limits: Where an episode ends from outside.
        frame_sink: Gets the picture of the reset and of every raw frame.

    Attributes:
        limits: As given.
        decisions: Decisions taken.
        raw_frames: Raw frames stepped, those of the reset not counted.
        points: The rewards other than zero, in order.
    """

    def __init__(
        self,
        env: ObserveObjects,
        *,
        limits: Limits,
        frame_sink: Callable[[np.ndarray[Any, Any]], None] | None = None,
    ) -> None:
        """Listen to the raw frames."""
        self._env = env
        self._hold: Any = env.env
        self.limits = limits
        self._frame_sink = frame_sink
        self._read_ram = emulator_ram(env.unwrapped)
        self._frames: list[Row] = []
        self._observation: Row = {}
        self._action = 0
        self._ended = (False, False)
        self.decisions = self.raw_frames = 0
        self.points: list[float] = []

    def reset(self, seed: int) -> Row:
        """Begin the episode; the first observation."""
        self._hold.limit_holds(self.limits)
        self._observation, _ = self._env.reset(seed=seed)
        self._hold.set_raw_frame_listener(self._on_raw_frame)
        if self._frame_sink is not None:
            self._frame_sink(self._draw())
        return self._observation

    @property
    def reset_frames(self) -> int:
        """No-ops of the reset."""
        return int(self._hold.reset_frames)

    @property
    def observation(self) -> Row:
        """What the policy sees now."""
        return self._observation

    @property
    def reached_limit(self) -> LimitReason | None:
        """The limit from outside that the episode is at."""
        return self.limits.reached(decisions=self.decisions, raw_frames=self.raw_frames, points=len(self.points))

    @property
    def end_reason(self) -> str | None:
        """Why the episode is over, or None; an end of the game goes before a limit."""
        terminated, truncated = self._ended
        if terminated or truncated:
            return "native_termination" if terminated else "environment_truncation"
        return self.reached_limit

    def step(self, action: int, prediction: Row) -> tuple[Row, list[Row]]:
        """Take a decision; its transition row and the rows of its raw frames."""
        frames: list[Row] = []
        self._frames = frames
        self._action = action
        observation = self._observation
        next_observation, _, terminated, truncated, info = self._env.step(action)
        self._observation = next_observation
        self._ended = (terminated, truncated)
        self.decisions += 1
        self.points += [reward for reward in info["rewards"] if reward]
        transition = {
            "decision": self.decisions - 1,
            "observation": observation,
            "action": action,
            "prediction": prediction,
            "rewards": info["rewards"],
            "raw_frames": len(frames),
            "next_observation": next_observation,
            "terminated": terminated,
            "truncated": truncated or (not terminated and self.reached_limit is not None),
        }
        return transition, frames

    def summarize(self, status: str) -> Row:
        """The summary, as far as a replay can know it."""
        terminated, truncated = self._ended
        return {
            "status": status,
            "reward": float(sum(self.points)),
            "decisions": self.decisions,
            "raw_frames": self.raw_frames,
            "points_scored": sum(1 for reward in self.points if reward > 0),
            "points_lost": sum(1 for reward in self.points if reward < 0),
            "terminated": terminated,
            "truncated": truncated or (not terminated and self.reached_limit is not None),
            "backend": "local",
            "end_reason": self.end_reason,
            "reset_frames": self.reset_frames,
            "simulated_seconds": self.raw_frames / RAW_FRAME_HZ,
        }

    def _on_raw_frame(self, reward: Any, terminated: bool, truncated: bool) -> None:  # noqa: ANN401 - a float
        self.raw_frames += 1
        picture = self._draw()
        if self._frame_sink is not None:
            self._frame_sink(picture)
        self._frames.append(
            {
                "decision": self.decisions,
                "raw_frame": self.reset_frames + self.raw_frames,
                "requested_action_id": self._action,
                "ram_bytes": list(self._read_ram()),
                "rgb_sha256": hashlib.sha256(picture.tobytes()).hexdigest(),
                "reward": reward,
                "terminated": terminated,
                "truncated": truncated,
            }
        )

    def _draw(self) -> np.ndarray[Any, Any]:
        picture: np.ndarray[Any, Any] = self._env.render()  # type: ignore[assignment] # rgb_array
        return picture


def record_pong(
    out: Path,
    *,
    settings: PongSettings,
    policy_name: str,
    policy: PongPolicy,
    seed: int,
    max_decisions: int,
    point_limit: int | None = None,
    on_decision: Callable[[int], None] = lambda _: None,
) -> Row:
    """Play one episode and write it in the layout.

    Every decision is handed to the operating system before the next: its raw frames, then its transition.

    Args:
        out: Folder of the episode; must not exist.
        settings: The protocol's.
        policy_name: As on the command line.
        policy: Decides.
        seed: Of the episode.
        max_decisions: Ends the episode.
        point_limit: Ends it on the raw frame of the so-manieth point, won or lost.
        on_decision: Told the number of decisions after each.

    Returns:
        The summary.

    Raises:
        UsageError: `out` exists.
        MissingExtraError: ale-py is not installed.
    """
    require_new_folder(out)
    limits = Limits(decisions=max_decisions, points=point_limit)
    limits.to_manifest()
    if not 0 <= seed < 2**64:
        message = f"seed must be a whole number from 0 to 2^64 - 1, not {seed!r}: nothing was recorded"
        raise UsageError(message)
    env = make_pong(settings)  # refuses settings that are out of range
    try:
        return _record(out, PongStepper(env, limits=limits), settings, policy_name, policy, seed, on_decision)
    finally:
        env.close()


def _record(  # noqa: PLR0917 - those of `record_pong`
    out: Path,
    stepper: PongStepper,
    settings: PongSettings,
    policy_name: str,
    policy: PongPolicy,
    seed: int,
    on_decision: Callable[[int], None],
) -> Row:
    manifest = {
        "kind": KIND,
        "protocol": describe_protocol(settings),
        "seed": seed,
        "split": split_of(seed),
        "policy": RECORDED_NAMES[policy_name],
        "max_decisions": stepper.limits.decisions,
        "point_limit": stepper.limits.points,
        "video_clock": _VIDEO_CLOCK,
        "record_files": [TRANSITIONS, FRAMES],
        "provenance": describe_provenance(),
    }
    validate_row(f"{KIND}.manifest", manifest, where=MANIFEST)
    out.mkdir(parents=True)
    write_document(out / MANIFEST, manifest)
    return _play(out, stepper, policy, seed, on_decision)


def write_document(path: Path, document: Row) -> None:
    """Write a whole-file record of the layout: indented, in the order of its keys, under a temporary name first."""
    write_atomically(path, f"{json.dumps(document, indent=2, allow_nan=False)}\n".encode("ascii"))


def _play(out: Path, stepper: PongStepper, policy: PongPolicy, seed: int, on_decision: Callable[[int], None]) -> Row:
    started = time.perf_counter()
    error_type: str | None = None
    summary = stepper.summarize("running")
    write_document(out / SUMMARY, summary)
    frames, transitions = _LineFile(out / FRAMES), _LineFile(out / TRANSITIONS)
    try:
        observation = stepper.reset(seed)
        while stepper.end_reason is None:
            transition, rows = stepper.step(*policy(observation))
            _write_decision(frames, transitions, transition, rows, stepper.summarize("running"))
            observation = transition["next_observation"]
            on_decision(stepper.decisions)
    except BaseException as error:
        error_type = type(error).__name__
        raise
    finally:
        # Of what is on disk: a decision that could not be written is not in the totals.
        summary = transitions.totals() or summary
        for file in (frames, transitions):
            file.close()
        ended: Row = {"status": "complete"}
        if error_type is not None:
            ended = {"status": "incomplete", "end_reason": "error", "error_type": error_type}
        summary = {**summary, **ended, "wall_seconds": time.perf_counter() - started}
        write_document(out / SUMMARY, summary)
    return summary


class _LineFile:
    """A file of lines, each handed to the operating system at once, and what they add up to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._length_bytes = 0
        # Totals by the length that the file has then: of the lines so far, and with the one that is being written.
        self._totals: dict[int, Row] = {}

    def append(self, data: bytes, totals: Row | None = None) -> None:
        self._totals = {length: row for length, row in self._totals.items() if length == self._length_bytes}
        self._length_bytes += len(data)
        if totals is not None:
            self._totals[self._length_bytes] = totals
        write_all(self._descriptor, data, self._path)

    def totals(self) -> Row | None:
        """What the whole lines on disk add up to; None if there are none."""
        length = os.fstat(self._descriptor).st_size
        return max((pair for pair in self._totals.items() if pair[0] <= length), default=(0, None))[1]

    def close(self) -> None:
        os.close(self._descriptor)


def _write_decision(frames: _LineFile, transitions: _LineFile, transition: Row, rows: list[Row], totals: Row) -> None:
    where = f"decision {transition['decision']} that was to be written"
    for row in rows:
        validate_row(f"{KIND}.frame", row, where=where)
    validate_row(f"{KIND}.transition", transition, where=where)
    frames.append(b"".join(map(encode_historical_line, rows)))
    transitions.append(encode_historical_line(transition), totals)
