"""The arrays that a replay makes and that are too big for a line."""

from __future__ import annotations

import hashlib
from collections import deque
from typing import TYPE_CHECKING

from recorder.records import ARRAYS

if TYPE_CHECKING:
    from recorder.records import Row

# The raw frames of so many decisions may wait for the hasher of their pictures.
BEHIND_DECISIONS = 4


class FreshArrays:
    """Digests of the arrays that a replay makes; keeps only those of a few decisions, for comparing elements."""

    def __init__(self) -> None:
        """Start with none."""
        self.length_bytes = 0
        self._latest: dict[int, tuple[Row, bytes]] = {}
        self._before: deque[dict[int, tuple[Row, bytes]]] = deque(maxlen=BEHIND_DECISIONS)

    def put(self, data: bytes) -> Row:
        """Take the bytes of one (`encoding.ArrayStore`)."""
        entry = {"file": ARRAYS, "offset": self.length_bytes, "sha256": hashlib.sha256(data).hexdigest()}
        self._latest[self.length_bytes] = entry, data
        self.length_bytes += len(data)
        return entry

    def get(self, entry: Row, length_bytes: int) -> bytes:
        """The bytes of one (`encoding.ArraySource`)."""
        offset = entry["offset"]
        held = next(arrays for arrays in (self._latest, *self._before) if offset in arrays)
        return held[offset][1][:length_bytes]

    def latest(self) -> list[tuple[Row, bytes]]:
        """The arrays of the last decision, each as a line refers to it and its bytes."""
        return list(self._latest.values())

    def forget(self) -> None:
        """Drop the arrays of a decision whose raw frames are compared by now."""
        if self._latest or self._before:
            self._before.append(self._latest)
            self._latest = {}
