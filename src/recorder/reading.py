"""An episode's folder read without changing it and without trusting it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from recorder.errors import CannotRunError, DamagedError, UsageError
from recorder.records import ARRAYS, FORMAT_VERSION, MANIFEST, Row, read_strict_json, validate_row

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import FileIO
    from typing import BinaryIO

    from recorder.records import JsonValue

CHUNK_BYTES = 1 << 20

# Longer than any honest line (arrays of more than 256 elements are kept aside), short enough to hold in memory.
LINE_LIMIT_BYTES = 64 << 20

OWN_KIND = "episode"

# How many episodes an error names.
LISTED_EPISODES = 3


class EpisodeReader:
    """Reads an episode's folder without changing it and without trusting it.

    Raises:
        UsageError: The folder does not exist or holds no manifest.
    """

    def __init__(self, folder: Path) -> None:
        """Only look whether this is an episode; nothing is read yet."""
        self.folder = folder
        require_episode(folder)

    def read_foreign_kind(self) -> str | None:
        """The `kind` that the manifest of another layout states; None for the own one, which has a format version.

        Raises:
            DamagedError: The manifest is missing or is not strict JSON.
        """
        manifest = self._read_json(MANIFEST)
        kind = manifest.get("kind") if isinstance(manifest, dict) and "format_version" not in manifest else None
        return kind if isinstance(kind, str) and kind != OWN_KIND else None

    def read_document(self, name: str, *, schema: str | None = None) -> Row:
        """A whole-file record, strict and valid under its schema; its digest is not checked here.

        Args:
            name: `MANIFEST`, `RESET` or `SUMMARY`.
            schema: Its schema, where the file name does not say it.

        Raises:
            CannotRunError: It is of a newer format.
            DamagedError: It is missing, is not strict JSON or breaks its schema.
        """
        path = self.folder / name
        document = self._read_json(name)
        version = document.get("format_version") if isinstance(document, dict) else None
        if type(version) is int and version > FORMAT_VERSION:
            message = (
                f"{path} has format version {version}; this release reads up to {FORMAT_VERSION}: "
                "install a newer replay-recorder"
            )
            raise CannotRunError(message)
        validate_row(schema or name.partition(".")[0], document, where=str(path))
        row: Row = document
        return row

    def _read_json(self, name: str) -> JsonValue:
        path = self.folder / name
        if not path.is_file():
            message = f"{path} is missing"
            raise DamagedError(message)
        if path.stat().st_size > LINE_LIMIT_BYTES:
            message = f"{path} is longer than {LINE_LIMIT_BYTES} bytes, which no honest one is"
            raise DamagedError(message)
        return read_strict_json(path.read_bytes(), where=str(path))

    def has(self, name: str) -> bool:
        """Whether the episode has this file."""
        return (self.folder / name).is_file()

    def lines(self, name: str) -> LineStream:
        """The lines of a record file; none if the file is not there."""
        return LineStream(self.folder / name)


class LineStream:
    r"""The lines of a file, split at `\n` only, with the digest of all that was read.

    Iterating yields each line with its newline; a last line without one is torn.

    Attributes:
        number: How many lines were yielded.
        offset: Byte offset behind the last line yielded.
        digest: SHA-256 and length of the bytes read so far.
    """

    def __init__(self, path: Path) -> None:
        """Nothing is opened before the first line is asked for."""
        self.path = path
        self.number = 0
        self.offset = 0
        self.digest = StreamDigest()
        self._lines = self._read()
        self._stream: FileIO | None = None
        self._buffer = b""
        self._at = 0
        self._is_open = False

    def __iter__(self) -> Iterator[bytes]:
        """The lines that were not read yet; a stream is read once.

        Raises:
            DamagedError: A line is longer than any honest one.
        """
        return self._lines

    def drain(self) -> None:
        """Read the rest for its digest only."""
        for _ in self._lines:
            pass

    def skip(self, expected: bytes, lines: int) -> bool:
        """Go past whole lines if they are what comes next; say whether they were."""
        while len(self._buffer) - self._at < len(expected):
            if not self._fill():
                return False
        if not self._buffer.startswith(expected, self._at):
            return False
        self._at += len(expected)
        self.offset += len(expected)
        self.number += lines
        return True

    def close(self) -> None:
        """Read no more."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _fill(self) -> bool:
        if not self._is_open:
            self._is_open = True
            if self.path.is_file():
                self._stream = self.path.open("rb", buffering=0)
        if self._stream is None:
            return False
        chunk = self._stream.read(CHUNK_BYTES)
        if not chunk:
            self.close()
            return False
        self.digest.update(chunk)
        self._buffer = self._buffer[self._at :] + chunk
        self._at = 0
        return True

    def _read(self) -> Iterator[bytes]:
        while True:
            end = self._buffer.find(b"\n", self._at) + 1
            if not end:
                if len(self._buffer) - self._at > LINE_LIMIT_BYTES:
                    message = f"{self.path} line {self.number + 1} is longer than {LINE_LIMIT_BYTES} bytes"
                    raise DamagedError(message)
                if self._fill():
                    continue
                end = len(self._buffer)
                if end == self._at:
                    return
            line = self._buffer[self._at : end]
            self._at = end
            self.number += 1
            self.offset += len(line)
            yield line


class StreamDigest:
    """SHA-256 and length of a file, taken while it is read."""

    def __init__(self) -> None:
        """Start with nothing read."""
        self._digest = hashlib.sha256()
        self.length_bytes = 0

    def update(self, data: bytes) -> None:
        """Take the next bytes."""
        self._digest.update(data)
        self.length_bytes += len(data)

    def facts(self) -> Row:
        """`sha256` and `bytes` of what was taken."""
        return {"sha256": self._digest.hexdigest(), "bytes": self.length_bytes}


class ArrayFile:
    """The side file of big arrays, read by offset (`encoding.ArraySource`)."""

    def __init__(self, folder: Path) -> None:
        """Remember the place; the file is opened when the first array is asked for."""
        self._path = folder / ARRAYS
        self._stream: BinaryIO | None = None

    def get(self, entry: Row, length_bytes: int) -> bytes:
        """The verified bytes of one array.

        Raises:
            DamagedError: They are missing or do not have the digest that the line states.
        """
        if self._stream is None:
            if not self._path.is_file():
                message = f"{self._path} is missing, though a line refers to it"
                raise DamagedError(message)
            self._stream = self._path.open("rb")
        held_bytes = self._path.stat().st_size
        # Asked before reading: the numbers are a stranger's.
        if entry["offset"] < 0 or entry["offset"] + length_bytes > held_bytes:
            message = (
                f"{self._path} has {held_bytes} bytes, a line refers to {length_bytes} of them from {entry['offset']}"
            )
            raise DamagedError(message)
        self._stream.seek(entry["offset"])
        data = self._stream.read(length_bytes)
        found = hashlib.sha256(data).hexdigest()
        if found != entry["sha256"]:
            message = (
                f"{self._path} at byte {entry['offset']}: {length_bytes} bytes have SHA-256 {found}, "
                f"the line says {entry['sha256']}"
            )
            raise DamagedError(message)
        return data

    def close(self) -> None:
        """Close the file, if it was opened."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def require_episode(folder: Path) -> None:
    """Raise, with the next step, unless the folder is an episode."""
    if not folder.exists():
        message = f"{folder} does not exist: give the folder of an episode, the one that holds {MANIFEST}"
        raise UsageError(message)
    if (folder / MANIFEST).is_file():
        return
    if folder.is_file():
        message = f"{folder} is a file: give the folder that it lies in"
        raise UsageError(message)
    inside = find_episodes(folder) if folder.is_dir() else []
    if inside:
        more = ", ..." if len(inside) > LISTED_EPISODES else ""
        listed = ", ".join(str(path) for path in inside[:LISTED_EPISODES]) + more
        message = f"{folder} is not an episode but holds {len(inside)}: name one of {listed}"
    else:
        message = f"{folder} is not an episode: it holds no {MANIFEST}; record one with `record play`"
    raise UsageError(message)


def find_episodes(folder: Path) -> list[Path]:
    """The episode folders at or under a folder, sorted by path."""
    return sorted(path.parent for path in folder.rglob(MANIFEST) if path.is_file())


def digest_file(path: Path) -> Row:
    """`sha256` and `bytes` of a file, in bounded memory."""
    digest = StreamDigest()
    with path.open("rb") as stream:
        for data in iter(lambda: stream.read(CHUNK_BYTES), b""):
            digest.update(data)
    return digest.facts()
