"""An episode's folder written so that whatever ends the process leaves a prefix that verifies."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from recorder.errors import DamagedError, UsageError
from recorder.records import (
    ARRAYS,
    FORMAT_VERSION,
    FRAMES,
    MANIFEST,
    RESET,
    SUMMARY,
    TRANSITIONS,
    Row,
    digest_of,
    encode_document,
    encode_line,
    row_validator,
    validate_row,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from recorder.frames import DecisionFrames

Durability = Literal["batch", "process", "power"]

# A batch is handed to the operating system when it is full, or when this much time has passed since the last one.
BATCH_DECISIONS = 32
BATCH_S = 0.005

# So many decisions may wait for the hasher of their pictures when the others are handed over.
WAITING_DECISIONS = 2

HASH_BATCH_BYTES = 1 << 16


class EpisodeWriter:
    """Appends whole, validated lines to the files of one episode.

    What a returned `append_decision` survives is its durability:

    - `batch`: the end of the program in any orderly way. Killing the process loses at most the last 31
      decisions, and only those that were taken within 5 ms of each other: a slower one hands all over at once.
    - `process`: killing the process; every decision is handed to the operating system.
    - `power`: a power cut; every decision is flushed to the disk.

    Args:
        folder: The episode's folder; created, must not exist.
        durability: As above.
        is_validating: Check each record against its schema before it is written.
        clock: Seconds that only go forwards.

    Attributes:
        totals: What the decisions that were handed over add up to.

    Raises:
        UsageError: The folder exists already.
    """

    def __init__(
        self,
        folder: Path,
        *,
        durability: Durability = "batch",
        is_validating: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the folder; the files appear with their first record."""
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            require_new_folder(folder)
        self.folder = folder
        self._is_flushing = durability == "power"
        self._is_validating = is_validating
        self._clock = clock
        self._batch_limit = BATCH_DECISIONS if durability == "batch" else 1
        self._batch: list[tuple[Row, DecisionFrames, float]] = []
        self.totals = Totals()
        self._is_whole = True
        self._process = os.getpid()
        self._handed_over_at = self._appended_at = clock()
        self._are_transitions = row_validator("transitions")
        self._are_frames = row_validator("frames")
        self._documents: dict[str, Row] = {}
        self._transitions: _AppendedFile | None = None
        self._frames: _AppendedFile | None = None
        self._arrays: _AppendedFile | None = None

    def write_manifest(self, manifest: Row) -> None:
        """Write the manifest, completed by its own digest, and open the line files."""
        self._write_document(MANIFEST, "manifest", {**manifest, "digest": digest_of(manifest)})
        self._transitions = _AppendedFile(self.folder / TRANSITIONS)
        self._frames = _AppendedFile(self.folder / FRAMES)
        if self._is_flushing:
            _flush_folder(self.folder)
        atexit.register(self._hand_over_at_exit)

    def write_reset(self, reset: Row) -> None:
        """Write what the environment returned when the episode began."""
        self._write_document(RESET, "reset", reset)

    def append_decision(self, transition: Row, frames: DecisionFrames, reward: float) -> None:
        """Append a decision, its raw frames and its reward; they are the writer's from now on."""
        batch = self._batch
        batch.append((transition, frames, reward))
        now = self._clock()
        since_last, self._appended_at = now - self._appended_at, now
        if len(batch) >= self._batch_limit or now - self._handed_over_at >= BATCH_S:
            # The pictures of the latest decisions may still be hashed elsewhere. They wait for the next ones rather
            # than have everything wait for them, unless decisions are slow.
            waiting: list[tuple[Row, DecisionFrames, float]] = []
            while since_last < BATCH_S and batch and len(waiting) < WAITING_DECISIONS and batch[-1][1].is_pending:
                waiting.append(batch.pop())
            self.hand_over()
            self._batch += reversed(waiting)

    def hand_over(self) -> None:
        """Validate what is held back and hand it to the operating system: raw frames first, then transitions.

        A transition completes its decision, so that whatever comes between the two leaves raw frames too many,
        and never a decision without its raw frames.

        Raises:
            DamagedError: A row breaks its schema; the decisions before it were handed over.
        """
        if not self._batch:
            return
        fault = self._find_fault() if self._is_validating else None
        if fault is None:
            self._write_batch()
            return
        valid, error = fault
        del self._batch[valid:]
        if self._batch:
            self._write_batch()
        raise error

    def _write_batch(self) -> None:
        batch = self._batch
        if self._transitions is None or self._frames is None:
            message = f"{self.folder} is not open for decisions: write the manifest first"
            raise UsageError(message)
        raw_frames = b"".join([frames.block() for _, frames, _ in batch])
        transitions = b"".join([encode_line(transition) for transition, _, _ in batch])
        self._batch = []
        with self._writing():
            self._frames.append(raw_frames)
            if self._is_flushing:
                for file in (self._arrays, self._frames):
                    if file is not None:
                        file.flush()
            self._transitions.append(transitions)
            if self._is_flushing:
                self._transitions.flush()
            self.totals.add(batch)
        self._handed_over_at = self._clock()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """What fails within is never tried again: what is on disk then is a prefix, and has to stay one."""
        was_whole, self._is_whole = self._is_whole, False
        yield
        self._is_whole = was_whole

    def _find_fault(self) -> tuple[int, DamagedError] | None:
        """The number of the first held decision that breaks a schema, and how; None if all are valid."""
        batch = self._batch
        rows: list[Row] = []
        is_quiet_valid = False
        for _, frames, _ in batch:
            rows += frames.rows_to_validate(is_quiet_valid=is_quiet_valid)
            is_quiet_valid = is_quiet_valid or frames.has_quiet
        if self._are_transitions([transition for transition, _, _ in batch]) and self._are_frames(rows):
            return None
        for number, (transition, frames, _) in enumerate(batch):
            try:
                for row in frames.rows_to_validate(is_quiet_valid=False):
                    validate_row("frame", row, where="a raw frame that was to be written")
                validate_row("transition", transition, where="a transition that was to be written")
            except DamagedError as error:
                return number, error
        return None

    def put(self, data: bytes) -> Row:
        """Keep the bytes of an array that is too big for a line (`encoding.ArrayStore`)."""
        if self._arrays is None:
            self._arrays = _AppendedFile(self.folder / ARRAYS)
        offset = self._arrays.length_bytes
        with self._writing():
            self._arrays.append(data)
        return {"file": ARRAYS, "offset": offset, "sha256": hashlib.sha256(data).hexdigest()}

    def finish(self, summary: Row) -> None:
        """Write the summary with the digests of all files, and close them.

        After a write that failed there is no summary: the episode is a prefix, as after a kill.
        """
        self.hand_over()
        if not self._is_whole:
            self.abandon()
            return
        files = {name: file.facts() for name, file in self._open_files().items()}
        files |= {name: facts for name, facts in self._documents.items() if (self.folder / name).exists()}
        self._close(is_flushing=self._is_flushing)
        whole = {"format_version": FORMAT_VERSION, **summary, "files": dict(sorted(files.items()))}
        self._write_document(SUMMARY, "summary", {**whole, "digest": digest_of(whole)})

    def abandon(self) -> None:
        """Close the files without a summary, as a kill would leave them."""
        self._batch.clear()
        self._close(is_flushing=False)

    def _hand_over_at_exit(self) -> None:
        """What a program that never closes its recorder leaves; a forked child leaves it to its parent."""
        if os.getpid() == self._process:
            self.hand_over()

    def _open_files(self) -> dict[str, _AppendedFile]:
        files = {TRANSITIONS: self._transitions, FRAMES: self._frames, ARRAYS: self._arrays}
        return {name: file for name, file in files.items() if file is not None}

    def _close(self, *, is_flushing: bool) -> None:
        atexit.unregister(self._hand_over_at_exit)
        files = self._open_files()
        # Forgotten first: an interruption must not make anyone close a descriptor twice.
        self._transitions = self._frames = self._arrays = None
        for file in files.values():
            file.close(is_flushing=is_flushing)

    def _write_document(self, name: str, schema: str, document: Row) -> None:
        if self._is_validating:
            validate_row(schema, document, where=name)
        data = encode_document(document)
        self._documents[name] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
        write_atomically(self.folder / name, data, is_flushing=self._is_flushing)


@dataclass
class Totals:
    """What the decisions that were handed over add up to.

    Attributes:
        decisions: How many.
        raw_frames: How many raw frames they lasted.
        total_reward: Sum of the rewards in order, in float64.
        terminated: Flag of the last decision.
        truncated: Flag of the last decision.
    """

    decisions: int = 0
    raw_frames: int = 0
    total_reward: float = 0.0
    terminated: bool = False
    truncated: bool = False

    def add(self, batch: list[tuple[Row, DecisionFrames, float]]) -> None:
        """Add decisions, in order."""
        total_reward, raw_frames = self.total_reward, self.raw_frames
        for _, frames, reward in batch:
            total_reward += reward
            raw_frames += len(frames)
        self.total_reward, self.raw_frames = total_reward, raw_frames
        self.decisions += len(batch)
        last = batch[-1][0]
        self.terminated, self.truncated = last["terminated"], last["truncated"]


class _AppendedFile:
    """One append-only file and the running digest of what was appended."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._digest = hashlib.sha256()
        # Hashed in batches: one update of 64 KiB costs less than many of a line each. (A hashing thread costs
        # more than it saves, at 256 KiB a batch too: it waits for the interpreter's lock.)
        self._unhashed: list[bytes] = []
        self._unhashed_bytes = 0
        self._hashed_bytes = 0

    @property
    def length_bytes(self) -> int:
        return self._hashed_bytes + self._unhashed_bytes

    def append(self, data: bytes) -> None:
        length = len(data)
        write_all(self._descriptor, data, self.path)
        self._unhashed.append(data)
        self._unhashed_bytes += length
        if self._unhashed_bytes >= HASH_BATCH_BYTES:
            self._hash()

    def facts(self) -> Row:
        self._hash()
        return {"sha256": self._digest.hexdigest(), "bytes": self._hashed_bytes}

    def flush(self) -> None:
        os.fsync(self._descriptor)

    def close(self, *, is_flushing: bool) -> None:
        if is_flushing:
            self.flush()
        os.close(self._descriptor)

    def _hash(self) -> None:
        self._digest.update(b"".join(self._unhashed))
        self._hashed_bytes += self._unhashed_bytes
        self._unhashed_bytes = 0
        self._unhashed.clear()


def require_new_folder(folder: Path) -> None:
    """Raise unless nothing is there yet and no episode is around it.

    Raises:
        UsageError: There is; nothing was written.
    """
    if folder.exists() or folder.is_symlink():
        message = f"{folder} exists already: choose another output folder or remove it"
        raise UsageError(message)
    require_outside_episodes(folder)


def require_outside_episodes(path: Path) -> None:
    """Raise if a file or folder would lie within an episode.

    Raises:
        UsageError: It would; nothing was written.
    """
    for folder in path.resolve().parents:
        if (folder / MANIFEST).is_file():
            message = f"{path} lies inside the episode {folder}, and evidence is never added to: choose another place"
            raise UsageError(message)


def write_atomically(path: Path, data: bytes, *, is_flushing: bool = False) -> None:
    """Write a file under a temporary name and rename it, so that it is whole or not there."""
    # System calls on plain strings: an episode of twenty decisions would notice the price of path objects.
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.part")  # noqa: PTH118 - see above
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        write_all(descriptor, data, path)
        if is_flushing:
            os.fsync(descriptor)
    except OSError as error:
        os.unlink(temporary)  # noqa: PTH108 - see above
        error.filename = str(path)
        raise
    finally:
        os.close(descriptor)
    os.replace(temporary, path)  # noqa: PTH105 - see above
    if is_flushing:
        _flush_folder(path.parent)


def _flush_folder(folder: Path) -> None:
    """Flush the names of new files, without which their flushed bytes could not be found after a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes, path: Path) -> None:
    """Write to the last byte: a disk that fills up, or a write beyond 2 GiB, takes more than one round.

    Raises:
        OSError: It failed; the error names the file.
    """
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError as error:
        error.filename = str(path)
        raise
