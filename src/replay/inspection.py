"""One decision of an episode, as it was recorded."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from recorder.errors import DamagedError, DivergedError, UsageError
from recorder.reading import EpisodeReader, digest_file, find_episodes, require_episode
from recorder.records import FRAMES, MANIFEST, SUMMARY, TRANSITIONS, Row, read_strict_json, validate_row
from replay.engine import Replay
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
        manifest: Its manifest.
        transition: The decision's row.
        frames: The rows of its raw frames.
        faults: What is wrong with the files that it was read from.
    """

    episode: Path
    manifest: Row
    transition: Row
    frames: list[Row]
    faults: list[str]

    def to_json(self) -> Row:
        """As `--json` shows it."""
        environment = self.manifest["environment"]
        return {
            "kind": "inspection",
            "episode": str(self.episode),
            "environment": environment["id"] or (environment["factory"] or {}).get("entry_point"),
            "seed": self.manifest["reset"]["seed"],
            "policy": self.manifest["policy"],
            "transition": self.transition,
            "frames": self.frames,
            "faults": self.faults,
        }


def inspect_decision(folder: Path, decision: int) -> Inspection:
    """Read one decision and hold the line files against the digests of the summary; nothing is replayed.

    Raises:
        UsageError: There is no such decision.
        DamagedError: Its lines cannot be read, or another decision stands in its place.
    """
    reader = EpisodeReader(folder)
    manifest = reader.read_document(MANIFEST)
    transitions = reader.lines(TRANSITIONS)
    line = next(itertools.islice(transitions, decision, None), b"")
    where = f"{folder / TRANSITIONS} line {decision + 1}"
    if not line.endswith(b"\n"):
        held = f"decisions 0 to {transitions.number - 1}" if transitions.number else "no decision"
        message = f"{folder} has no decision {decision}: it holds {held}"
        raise UsageError(message)
    transition = read_strict_json(line, where=where)
    validate_row("transition", transition, where=where)
    if transition["decision"] != decision:
        message = (
            f"{where} holds decision {transition['decision']} where decision {decision} should be: lines are missing"
        )
        raise DamagedError(message)
    frames = _read_frames(reader, decision)
    faults = _find_faults(reader)
    if len(frames) != transition["raw_frames"]:
        faults.append(f"{folder / FRAMES} holds {len(frames)} of the decision's {transition['raw_frames']} raw frames")
    return Inspection(folder, manifest, transition, frames, faults)


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
        DivergedError: The replay leaves the record before the decision is over, so there is no such picture.
        CannotRunError: The environment cannot be built or rendered here.
    """
    if image.exists():
        message = f"{image} exists already: choose another name or remove it"
        raise UsageError(message)
    pictures: deque[np.ndarray[Any, Any]] = deque(maxlen=inspection.transition["raw_frames"])
    replay = Replay(
        folder, trust=trust, allow_other_versions=allow_other_versions, render_mode=picture_mode(inspection.manifest)
    )
    decision = inspection.transition["decision"]
    verdict = replay.run(frame_sink=lambda picture: pictures.append(picture.copy()), decisions=decision + 1)
    if verdict.mismatches or verdict.decisions != decision + 1:
        place = verdict.mismatches[0].place.decision if verdict.mismatches else verdict.decisions
        at = "the reset" if place is None else f"decision {place}"
        message = f"the replay leaves the record at {at}: run `replay --episode {folder}`"
        raise DivergedError(message)
    write_picture(image, _join(list(pictures)))


def picture_mode(manifest: Row) -> str | None:
    """The render mode to build with for pictures: None if the recorded one gives them."""
    return None if manifest["environment"]["render_mode"] == "rgb_array" else "rgb_array"


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


def _read_frames(reader: EpisodeReader, decision: int) -> list[Row]:
    frames: list[Row] = []
    for number, line in enumerate(reader.lines(FRAMES)):
        if not line.endswith(b"\n"):
            break
        # A line's decision stands first; parsing only the wanted lines keeps long episodes quick.
        if line.startswith(b'{"decision":') and not line.startswith(b'{"decision":%d,' % decision):
            if frames:
                break
            continue
        where = f"{reader.folder / FRAMES} line {number + 1}"
        frame = read_strict_json(line, where=where)
        validate_row("frame", frame, where=where)
        if frame["decision"] == decision:
            frames.append(frame)
    return frames


def _join(pictures: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    gap = np.full((pictures[0].shape[0], GAP_PX, 3), 255, np.uint8)
    parts = [part for picture in pictures for part in (picture, gap)]
    return np.concatenate(parts[:-1], axis=1)
