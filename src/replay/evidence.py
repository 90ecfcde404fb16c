"""An episode's files under judgement: what they hold line by line, and every fault of their bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recorder.errors import DamagedError
from recorder.reading import ArrayFile, EpisodeReader, LineStream, digest_file
from recorder.records import (
    FRAMES,
    MANIFEST,
    RECORD_FILES,
    RESET,
    SUMMARY,
    TRANSITIONS,
    Row,
    digest_of,
    read_strict_json,
    validate_row,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from replay.verdict import Verdict


class Evidence:
    """Reads an episode for a replay and notes in its verdict what is wrong with the bytes.

    Args:
        folder: The episode.
        verdict: Takes faults and notes.

    Raises:
        UsageError: The folder is not an episode.
        DamagedError: The manifest cannot be read, so that nothing can be run.
    """

    def __init__(self, folder: Path, verdict: Verdict) -> None:
        """Read the manifest and the summary; the lines come when they are asked for."""
        self.folder = folder
        self._verdict = verdict
        self._reader = EpisodeReader(folder)
        self.manifest = self._reader.read_document(MANIFEST)
        self._check_digest(MANIFEST, self.manifest)
        self.summary = self._read_summary()
        self.transitions = self._reader.lines(TRANSITIONS)
        self.frames = self._reader.lines(FRAMES)
        self.arrays = ArrayFile(folder)

    @property
    def ended_in_reset(self) -> bool:
        """Whether the summary says that the environment raised before the first decision."""
        return self.summary is not None and self.summary["end_reason"] == "error" and not self.summary["decisions"]

    def read_reset(self) -> Row | None:
        """The recorded reset; None, with a note or a fault, if it cannot be had."""
        if not self._reader.has(RESET):
            has_decisions = self._reader.has(TRANSITIONS) and (self.folder / TRANSITIONS).stat().st_size > 0
            if not has_decisions and (self.summary is None or self.ended_in_reset):
                self._verdict.notes.append(f"{RESET} was never written: the run ended in its reset")
            else:
                self._verdict.add_fault(f"{self.folder / RESET} is missing")
            return None
        try:
            return self._reader.read_document(RESET)
        except DamagedError as error:
            self._verdict.faults.append(str(error))
            return None

    def read_row(self, record: str, stream: LineStream, line: bytes, ahead: Sequence[bytes] = ()) -> Row | None:
        """A line as a valid row; None, with a fault, if it is not one. `ahead` are lines that were read after it."""
        where = self.where(stream, line, ahead)
        try:
            row = read_strict_json(line, where=where)
            validate_row(record, row, where=where)
        except DamagedError as error:
            self._verdict.faults.append(str(error))
            return None
        valid: Row = row
        return valid

    def note_torn_tail(self, stream: LineStream, line: bytes) -> None:
        """An unterminated last line: what a kill leaves, and damage in an episode that was finished."""
        start = stream.offset - len(line)
        text = f"{stream.path.name} has a torn tail of {len(line)} bytes from byte {start}, left alone"
        (self._verdict.notes if self.summary is None else self._verdict.faults).append(text)

    def judge_files(self) -> None:
        """Hold the bytes of every record file against the digests of the summary; read each once, in all."""
        if self.summary is None:
            return
        read = {}
        for name, stream in ((TRANSITIONS, self.transitions), (FRAMES, self.frames)):
            stream.drain()
            read[name] = stream.digest.facts()
        for name, stated in self.summary["files"].items():
            path = self.folder / name
            if name not in RECORD_FILES:
                self._verdict.faults.append(f"{SUMMARY} answers for {name!r}, which is no record file")
            elif not path.is_file():
                self._verdict.add_fault(f"{path} is missing")
            elif (found := read.get(name) or digest_file(path)) != stated:
                self._verdict.faults.append(
                    f"{path} was changed after the recording: it has {found['bytes']} bytes with SHA-256 "
                    f"{found['sha256']}, the summary says {stated['bytes']} bytes with {stated['sha256']}"
                )
        for name in RECORD_FILES:
            if self._reader.has(name) and name not in self.summary["files"]:
                self._verdict.faults.append(f"{self.folder / SUMMARY} does not answer for {name}")

    def close(self) -> None:
        """Close the files."""
        for file in (self.transitions, self.frames, self.arrays):
            file.close()

    def where(self, stream: LineStream, line: bytes, ahead: Sequence[bytes] = ()) -> str:
        """A line's place for a message."""
        start = stream.offset - sum(map(len, ahead)) - len(line)
        return f"{stream.path} line {stream.number - len(ahead)} (byte {start})"

    def _read_summary(self) -> Row | None:
        verdict = self._verdict
        if not self._reader.has(SUMMARY):
            verdict.notes.append(
                f"there is no {SUMMARY}: the run was interrupted, or it was removed; what is there is a prefix"
            )
            return None
        try:
            summary = self._reader.read_document(SUMMARY)
        except DamagedError as error:
            verdict.faults.append(str(error))
            return None
        self._check_digest(SUMMARY, summary)
        verdict.is_complete = summary["status"] == "complete"
        if not verdict.is_complete:
            verdict.notes.append(f"the episode ended as {summary['end_reason']!r}: what it holds is a prefix")
        return summary

    def _check_digest(self, name: str, document: Row) -> None:
        found = digest_of(document)
        if document["digest"] != found:
            self._verdict.faults.append(
                f"{self.folder / name} was edited: its digest says {document['digest']}, its content gives {found}"
            )
