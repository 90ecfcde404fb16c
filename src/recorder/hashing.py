"""SHA-256 of big pictures on a second core, while the simulator goes on.

Hashing a 210x160x3 picture takes as long as the emulator's own step, and a thread for it waits for the interpreter's
lock at every picture, so that it costs more than it saves. Here the pictures lie in memory that is shared with a
worker process: one pipe tells it which slots are filled, another brings the digests back, in order.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import subprocess
import sys
import tempfile
import weakref
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from recorder.hash_worker import QUIT, REQUEST

if TYPE_CHECKING:
    from collections.abc import Iterable

Picture: TypeAlias = np.ndarray[Any, Any]

# What `digest` wants to know: the number of a picture that a worker has, or a digest that is known already.
Ticket: TypeAlias = int | str

# Smaller pictures are hashed before a worker could be told of them.
WORKER_PICTURE_BYTES = 1 << 15

# What the slots take in all, so that they stay in a cache, within a least and a most number of them.
SLOTS_BYTES = 1 << 22
LEAST_SLOTS = 8
MOST_SLOTS = 256

# Waking a process that sleeps takes 8 us, as long as everything else that is left to do for a picture.
TOLD_TOGETHER = 8

DIGEST_BYTES = 32

# How long a worker may take to end.
STOP_S = 5.0


class PictureHasher(Protocol):
    """Takes pictures of one shape, and gives the SHA-256 of each when it is asked for it."""

    def reserve(self) -> Picture:
        """Where the next picture may be drawn; it stays as drawn until the next call."""
        ...

    def commit(self) -> Ticket:
        """Take what was drawn there."""
        ...

    def submit(self, picture: Picture) -> Ticket:
        """Take a picture before its buffer is reused."""
        ...

    def digest(self, ticket: Ticket) -> str:
        """The SHA-256 of a picture, as hex."""
        ...

    def release(self, tickets: Iterable[Ticket]) -> None:
        """Forget digests that nobody will ask for again."""
        ...

    def close(self) -> None:
        """Take no more."""
        ...


def open_hasher(picture: Picture) -> PictureHasher:
    """The quickest hasher for pictures like this one: a worker where a second core would carry it."""
    if picture.nbytes >= WORKER_PICTURE_BYTES and os.name == "posix" and sys.executable and usable_cores() > 1:
        with contextlib.suppress(OSError):  # no process or no space to be had: it goes without
            return _WorkerHasher(picture.shape)
    return _OwnHasher(picture.shape)


class _OwnHasher:
    """Hashes at once, in this process."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._drawn = np.empty(shape, np.uint8)

    def reserve(self) -> Picture:
        return self._drawn

    def commit(self) -> Ticket:
        return hashlib.sha256(self._drawn.data).hexdigest()

    def submit(self, picture: Picture) -> Ticket:
        return hashlib.sha256(picture.tobytes()).hexdigest()

    def digest(self, ticket: Ticket) -> str:
        return str(ticket)

    def release(self, tickets: Iterable[Ticket]) -> None:
        pass

    def close(self) -> None:
        pass


class _WorkerHasher:
    """Hands pictures to a worker process; whatever becomes of it, every digest is given.

    A slot keeps its picture until the digest is here, so that it can always be hashed here as well: when the worker
    was killed, after closing, in a forked process, and after an interruption that came in the midst of talking to
    the worker, when nobody knows what was said.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        length = int(np.prod(shape))
        self._shape = shape
        count = max(LEAST_SLOTS, min(SLOTS_BYTES // length, MOST_SLOTS))
        stride = -(-length // mmap.PAGESIZE) * mmap.PAGESIZE
        with _open_memory() as file:
            file.truncate(count * stride)
            memory = mmap.mmap(file.fileno(), count * stride)
            process = _start_worker(file.fileno(), stride)
        slots: Picture = np.frombuffer(memory, np.uint8).reshape(count, stride)
        self._slots: list[Picture] = [slot[:length].reshape(shape) for slot in slots]
        self._requests_of = [REQUEST.pack(slot, length) for slot in range(count)]
        self._submitted = 0
        self._received = 0
        self._untold: list[bytes] = []
        self._answers = b""
        self._digests: dict[int, str] = {}
        self._requests, self._results = _pipes_of(process)
        self._is_alone = False
        self._is_talking = False
        self._owner = os.getpid()
        self._stop = weakref.finalize(self, _stop_worker, process, self._owner)
        # A program that ends may still have decisions to write; the worker ends with it anyway.
        self._stop.atexit = False

    def reserve(self) -> Picture:
        while self._submitted - self._received >= len(self._slots):
            self._receive()
        if os.getpid() != self._owner:
            self._leave_worker()
        return self._slots[self._submitted % len(self._slots)]

    def commit(self) -> Ticket:
        ticket = self._submitted
        self._submitted = ticket + 1
        self._untold.append(self._requests_of[ticket % len(self._slots)])
        if len(self._untold) >= TOLD_TOGETHER:
            self._tell()
        return ticket

    def submit(self, picture: Picture) -> Ticket:
        if picture.shape != self._shape:
            return hashlib.sha256(picture.tobytes()).hexdigest()
        self.reserve()[...] = picture
        return self.commit()

    def digest(self, ticket: Ticket) -> str:
        if isinstance(ticket, str):
            return ticket
        while ticket >= self._received:
            self._receive()
        return self._digests[ticket]

    def release(self, tickets: Iterable[Ticket]) -> None:
        for ticket in tickets:
            if isinstance(ticket, int):
                self._digests.pop(ticket, None)

    def close(self) -> None:
        self._is_alone = True
        if os.getpid() == self._owner:
            self._stop()

    def _tell(self) -> None:
        """Tell the worker which slots were filled."""
        if not self._untold:
            return
        if self._begin_talk():
            try:
                os.write(self._requests, b"".join(self._untold))
            except OSError:
                self._is_alone = True
        self._untold.clear()
        self._is_talking = False

    def _receive(self) -> None:
        """Take the digests that are there, at least one."""
        self._tell()
        if self._begin_talk():
            answers = os.read(self._results, len(self._slots) * DIGEST_BYTES)
            if answers:
                self._keep(self._answers + answers)
                self._is_talking = False
                return
            self._is_alone = True
        self._is_talking = False
        slot = self._slots[self._received % len(self._slots)]
        self._digests[self._received] = hashlib.sha256(slot.data).hexdigest()
        self._received += 1

    def _keep(self, answers: bytes) -> None:
        whole = len(answers) - len(answers) % DIGEST_BYTES
        for start in range(0, whole, DIGEST_BYTES):
            self._digests[self._received] = answers[start : start + DIGEST_BYTES].hex()
            self._received += 1
        self._answers = answers[whole:]

    def _begin_talk(self) -> bool:
        """Whether the worker can be talked to, from here until `_is_talking` is taken back."""
        if os.getpid() != self._owner:
            self._leave_worker()
        if self._is_talking:  # the last time was interrupted
            self._is_alone = True
        self._is_talking = True
        return not self._is_alone

    def _leave_worker(self) -> None:
        """A fork shares slots and pipes with its parent: it goes on with copies of the slots, and alone."""
        self._is_alone = True
        self._slots = [slot.copy() for slot in self._slots]
        self._owner = os.getpid()
        self._stop.detach()


def _open_memory() -> IO[bytes]:
    """A file that only its descriptors reach; in memory where the system has such files."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("pictures"), "r+b")
    return tempfile.TemporaryFile()


def _start_worker(memory: int, slot_bytes: int) -> subprocess.Popen[bytes]:
    # In a session of its own Ctrl-C does not reach it; it ends when the pipe of requests does.
    return subprocess.Popen(  # noqa: S603 - a file of this package
        [sys.executable, "-I", "-S", str(Path(__file__).with_name("hash_worker.py")), str(memory), str(slot_bytes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pass_fds=(memory,),
        start_new_session=True,
        bufsize=0,
    )


def _pipes_of(process: subprocess.Popen[bytes]) -> tuple[int, int]:
    if process.stdin is None or process.stdout is None:
        message = "the hashing worker has no pipes"
        raise OSError(message)
    return process.stdin.fileno(), process.stdout.fileno()


def _stop_worker(process: subprocess.Popen[bytes], owner: int) -> None:
    is_owner = os.getpid() == owner  # a fork that drops its copy leaves the worker to its parent
    if process.stdin is not None and is_owner:
        # Said, and not only shown by closing: a fork may hold the pipe open.
        with contextlib.suppress(OSError):
            os.write(process.stdin.fileno(), REQUEST.pack(QUIT, 0))
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    if not is_owner:
        return
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def usable_cores() -> int:
    """The cores that the scheduler gives this process, where the system says so."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
