"""SHA-256 of big pictures on a second core, while the simulator goes on.

Hashing a 210x160x3 picture takes as long as the emulator's own step, and a thread for it waits for the interpreter's
lock at every picture, so that it costs more than it saves. Here the pictures lie in memory that is shared with a
worker process: two pipes carry which slots are filled and the digests of what was in them, in order.

Run as a script this file is the worker; it imports nothing but the standard library, so that it starts in 15 ms.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import struct
import subprocess
import sys
import tempfile
import weakref
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from typing import Any

    import numpy as np

# Smaller pictures are hashed before a worker could be told of them.
WORKER_PICTURE_BYTES = 1 << 15

# What the slots may take in all, and how many there are at least.
SLOTS_BYTES = 1 << 23
LEAST_SLOTS = 4
MOST_SLOTS = 256

DIGEST_BYTES = 32
_FILLED = struct.Struct("=IQ")  # slot, length in bytes

Ticket: TypeAlias = int | str


class PictureHasher(Protocol):
    """Takes pictures, and gives the SHA-256 of each when it is asked for it."""

    def submit(self, picture: np.ndarray[Any, Any]) -> Ticket:
        """Take a picture before its buffer is reused; what `digest` wants to know of it later."""
        ...

    def digest(self, ticket: Ticket) -> str:
        """The SHA-256 of a picture, as hex; to be asked once."""
        ...

    def close(self) -> None:
        """Take no more."""
        ...


def open_hasher(picture: np.ndarray[Any, Any]) -> PictureHasher:
    """The quickest hasher for pictures like this one: a worker where a second core would carry it."""
    if picture.nbytes >= WORKER_PICTURE_BYTES and os.name == "posix" and sys.executable and _usable_cores() > 1:
        with contextlib.suppress(OSError):  # no memory or no process to be had: it goes without
            return _WorkerHasher(picture.nbytes)
    return _OwnHasher()


class _OwnHasher:
    """Hashes at once, in this process."""

    def submit(self, picture: np.ndarray[Any, Any]) -> Ticket:
        return hashlib.sha256(picture.tobytes()).hexdigest()

    def digest(self, ticket: Ticket) -> str:
        return str(ticket)

    def close(self) -> None:
        pass


class _WorkerHasher:
    """Hands pictures to a worker process; whatever becomes of it, every digest is given."""

    def __init__(self, slot_bytes: int) -> None:
        self._slot_bytes = slot_bytes
        self._slots = max(LEAST_SLOTS, min(SLOTS_BYTES // slot_bytes, MOST_SLOTS))
        self._lengths = [0] * self._slots
        self._submitted = 0
        self._received = 0
        self._digests: dict[int, str] = {}
        self._answers = b""
        self._owner = os.getpid()
        with tempfile.TemporaryFile() as file:
            file.truncate(self._slots * slot_bytes)
            self._memory = mmap.mmap(file.fileno(), self._slots * slot_bytes)
            process = _start_worker(file.fileno(), slot_bytes)
        self._requests, self._results = _own_pipes(process)
        self._is_alone = False
        self._stop = weakref.finalize(self, _stop_worker, process)

    def submit(self, picture: np.ndarray[Any, Any]) -> Ticket:
        data = (picture if picture.flags.c_contiguous else picture.copy()).data.cast("B")
        length = len(data)
        if length > self._slot_bytes or os.getpid() != self._owner:  # of another size, or in a forked child
            return hashlib.sha256(data).hexdigest()
        ticket = self._submitted
        slot = ticket % self._slots
        if ticket - self._received >= self._slots:
            self._receive()
        start = slot * self._slot_bytes
        self._memory[start : start + length] = data
        self._lengths[slot] = length
        self._submitted = ticket + 1
        if not self._is_alone:
            try:
                os.write(self._requests, _FILLED.pack(slot, length))
            except OSError:
                self._is_alone = True
        return ticket

    def digest(self, ticket: Ticket) -> str:
        if isinstance(ticket, str):
            return ticket
        while ticket >= self._received:
            self._receive()
        return self._digests.pop(ticket)

    def close(self) -> None:
        if os.getpid() == self._owner:
            self._stop()

    def _receive(self) -> None:
        """Take the digests that are there, at least one; if the worker was killed, make it from the slot."""
        answers = b"" if self._is_alone else os.read(self._results, self._slots * DIGEST_BYTES)
        if not answers:
            self._is_alone = True
            slot = self._received % self._slots
            start = slot * self._slot_bytes
            data = self._memory[start : start + self._lengths[slot]]
            self._digests[self._received] = hashlib.sha256(data).hexdigest()
            self._received += 1
            return
        answers = self._answers + answers
        whole = len(answers) - len(answers) % DIGEST_BYTES
        for start in range(0, whole, DIGEST_BYTES):
            self._digests[self._received] = answers[start : start + DIGEST_BYTES].hex()
            self._received += 1
        self._answers = answers[whole:]


def _start_worker(memory: int, slot_bytes: int) -> subprocess.Popen[bytes]:
    # In a session of its own Ctrl-C does not reach it; it ends when the pipe of requests does.
    return subprocess.Popen(  # noqa: S603 - this very file
        [sys.executable, "-I", "-S", __file__, str(memory), str(slot_bytes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pass_fds=(memory,),
        start_new_session=True,
        bufsize=0,
    )


def _own_pipes(process: subprocess.Popen[bytes]) -> tuple[int, int]:
    if process.stdin is None or process.stdout is None:
        message = "the hashing worker has no pipes"
        raise OSError(message)
    return process.stdin.fileno(), process.stdout.fileno()


def _stop_worker(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    process.wait()


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _serve(memory: int, slot_bytes: int) -> None:
    """The worker: hash what lies in the slots that are named on stdin, write the digests to stdout."""
    view = memoryview(mmap.mmap(memory, 0, prot=mmap.PROT_READ))
    pending = b""
    while requests := os.read(0, 1 << 16):
        pending += requests
        whole = len(pending) - len(pending) % _FILLED.size
        for slot, length in _FILLED.iter_unpack(pending[:whole]):
            start = slot * slot_bytes
            os.write(1, hashlib.sha256(view[start : start + length]).digest())
        pending = pending[whole:]


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):  # whoever asked is gone
        _serve(int(sys.argv[1]), int(sys.argv[2]))
