"""One decision of an episode, as it was recorded."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from recorder.errors import DamagedError, DivergedError, UsageError
from recorder.pong import GAME
from recorder.pong_play import KIND
from recorder.reading import EpisodeReader, digest_file, find_episodes, require_episode
from recorder.records import FRAMES, MANIFEST, SUMMARY, TRANSITIONS, Row, read_strict_json, validate_row
from replay.opening import open_replay
from replay.origin import Origin, find_historical_origin, find_origin
from replay.video import write_picture

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

# White columns between the pictures of a strip.
GAP_PX = 4


@dataclass(frozen=True)
class Inspection:
    """A recorded decision.

    Attributes:
        episode: Folder of the episode.
        environment: What was run, by name.
        manifest: Its manifest.
        seed: Of its reset.
        transition: The decision's row.
        frames: The rows of its raw frames.
        faults: What is wrong with the files that it was read from.
        origin: What a model was asked and answered, and where that comes from; None if no model decided.
    """

    episode: Path
    environment: str
    manifest: Row
    seed: int
    transition: Row
    frames: list[Row]
    faults: list[str]
    origin: Origin | None = None

    def to_json(self) -> Row:
        """As `--json` shows it."""
        origin = self.origin
        asked = {} if origin is None else {"request": origin.request, "response": origin.response}
        return {
            "kind": "inspection",
            "episode": str(self.episode),
            "environment": self.environment,
            "seed": self.seed,
            "policy": self.manifest["policy"],
            "transition": self.transition,
            "frames": self.frames,
            "faults": self.faults,
            **asked,
            "input_origin": None if origin is None else origin.label,
        }


def inspect_decision(folder: Path, decision: int, *, log: Path | None = None) -> Inspection:
    """Read one decision and hold the line files against the digests of the summary; nothing is replayed.

    Raises:
        UsageError: There is no such decision.
        DamagedError: Its lines cannot be read, or another decision stands in its place.
    """
    reader = EpisodeReader(folder)
    if reader.read_foreign_kind() == KIND:
        return _inspect_historical(reader, decision, log)
    manifest = reader.read_document(MANIFEST)
    transition = _read_transition(reader, decision, "transition")
    frames = _read_frames(reader, decision, "frame")
    faults = _find_faults(reader)
    if len(frames) != transition["raw_frames"]:
        faults.append(f"{folder / FRAMES} holds {len(frames)} of the decision's {transition['raw_frames']} raw frames")
    environment = manifest["environment"]
    name = str(environment["id"] or (environment["factory"] or {}).get("entry_point"))
    origin = find_origin(folder, manifest, transition, log)
    return Inspection(folder, name, manifest, manifest["reset"]["seed"], transition, frames, faults, origin)


def _inspect_historical(reader: EpisodeReader, decision: int, log: Path | None) -> Inspection:
    folder = reader.folder
    manifest = reader.read_document(MANIFEST, schema=f"{KIND}.manifest")
    transition = _read_transition(reader, decision, f"{KIND}.transition")
    frames = _read_frames(reader, decision, f"{KIND}.frame")
    faults = []
    if reader.has(FRAMES) and len(frames) != transition["raw_frames"]:
        faults.append(f"{folder / FRAMES} holds {len(frames)} of the decision's {transition['raw_frames']} raw frames")
    origin = find_historical_origin(folder, manifest, transition, log)
    return Inspection(folder, GAME, manifest, manifest["seed"], transition, frames, faults, origin)


def _read_transition(reader: EpisodeReader, decision: int, schema: str) -> Row:
    folder = reader.folder
    transitions = reader.lines(TRANSITIONS)
    line = next(itertools.islice(transitions, decision, None), b"")
    where = f"{folder / TRANSITIONS} line {decision + 1}"
    if not line.endswith(b"\n"):
        whole = transitions.number - bool(line)
        held = f"decisions 0 to {whole - 1}" if whole else "no decision"
        message = f"{folder} has no decision {decision}: it holds {held}"
        raise UsageError(message)
    transition = read_strict_json(line, where=where)
    validate_row(schema, transition, where=where)
    if transition["decision"] != decision:
        message = (
            f"{where} holds decision {transition['decision']} where decision {decision} should be: lines are missing"
        )
        raise DamagedError(message)
    row: Row = transition
    return row


def _find_faults(reader: EpisodeReader) -> list[str]:
    """Line files that do not have the digest that the summary states; none where there is no summary."""
    if not reader.has(SUMMARY):
        return []
    try:
        files = reader.read_document(SUMMARY)["files"]
    except DamagedError as error:
        return [str(error)]
    return [
        f"{reader.folder / name} was changed after the recording: run `replay --episode {reader.folder}`"
        for name in (TRANSITIONS, FRAMES)
        if reader.has(name) and digest_file(reader.folder / name) != files.get(name)
    ]


def render_strip(
    folder: Path,
    inspection: Inspection,
    image: Path,
    *,
    trust: Collection[str] = (),
    allow_other_versions: bool = False,
) -> None:
    """Replay up to the decision and write its raw frames side by side as a picture.

    Raises:
        UsageError: The picture exists already.
        DamagedError: The episode is damaged.
        DivergedError: The replay leaves the record before the decision is over, so there is no such picture.
        CannotRunError: The environment cannot be built or rendered here.
    """
    if image.exists():
        message = f"{image} exists already: choose another name or remove it"
        raise UsageError(message)
    pictures: deque[np.ndarray[Any, Any]] = deque(maxlen=inspection.transition["raw_frames"])
    render_mode = None if is_drawing(inspection.manifest) else "rgb_array"
    replay = open_replay(folder, trust=trust, allow_other_versions=allow_other_versions, render_mode=render_mode)
    decision = inspection.transition["decision"]
    verdict = replay.run(frame_sink=lambda picture: pictures.append(picture.copy()), decisions=decision + 1)
    if verdict.faults:
        raise DamagedError("; ".join(verdict.faults))
    if verdict.mismatches or verdict.decisions != decision + 1:
        place = verdict.mismatches[0].place.decision if verdict.mismatches else verdict.decisions
        at = "the reset" if place is None else f"decision {place}"
        message = f"the replay leaves the record at {at}: run `replay --episode {folder}`"
        raise DivergedError(message)
    write_picture(image, _join(list(pictures)))


def is_drawing(manifest: Row) -> bool:
    """Whether the environment draws pictures as it was recorded."""
    return bool(manifest["kind"] == KIND or manifest["environment"]["render_mode"] == "rgb_array")


def find_episode(folder: Path) -> Path:
    """The folder itself if it is an episode, else the newest episode under it.

    Raises:
        UsageError: There is none.
    """
    if (folder / MANIFEST).is_file():
        return folder
    episodes = find_episodes(folder)
    if not episodes:
        require_episode(folder)
    return max(episodes, key=lambda path: ((path / MANIFEST).stat().st_mtime_ns, str(path)))


def _read_frames(reader: EpisodeReader, decision: int, schema: str) -> list[Row]:
    frames: list[Row] = []
    for number, line in enumerate(reader.lines(FRAMES)):
        if not line.endswith(b"\n"):
            break
        # A line's decision stands first; parsing only the wanted lines keeps long episodes quick.
        is_other = line.startswith((b'{"decision":', b'{"decision": ')) and not line.startswith(
            (b'{"decision":%d,' % decision, b'{"decision": %d,' % decision)
        )
        if is_other:
            if frames:
                break
            continue
        where = f"{reader.folder / FRAMES} line {number + 1}"
        frame = read_strict_json(line, where=where)
        validate_row(schema, frame, where=where)
        if frame["decision"] == decision:
            frames.append(frame)
    return frames


def _join(pictures: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    gap = np.full((pictures[0].shape[0], GAP_PX, 3), 255, np.uint8)
    parts = [part for picture in pictures for part in (picture, gap)]
    return np.concatenate(parts[:-1], axis=1)
