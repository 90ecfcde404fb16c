"""The state of every body of a pymunk space as bytes."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pymunk.batch

if TYPE_CHECKING:
    from collections.abc import Callable

    import pymunk

_FIELDS = (
    pymunk.batch.BodyFields.POSITION
    | pymunk.batch.BodyFields.ANGLE
    | pymunk.batch.BodyFields.VELOCITY
    | pymunk.batch.BodyFields.ANGULAR_VELOCITY
    | pymunk.batch.BodyFields.FORCE
    | pymunk.batch.BodyFields.TORQUE
)

# Position (2), angle, velocity (2), angular velocity, force (2), torque, as float64.
BYTES_PER_BODY = 72


class BodyStates:
    """Reads the bodies of one space, again and again.

    A reading holds nine float64 a body, in the engine's order: moving bodies as they were added, then static
    ones. Per body: position (x, y), angle, velocity (x, y), angular velocity, force (x, y), torque.

    Attributes:
        keep: Appends a reading to those that `take` will return; takes no arguments.
    """

    def __init__(self, space: pymunk.Space) -> None:
        """Remember the space; nothing is read yet."""
        self._now = pymunk.batch.Buffer()
        self._kept = pymunk.batch.Buffer()
        self._read_now = _make_reader(space, self._now)
        self.keep: Callable[[], object] = _make_reader(space, self._kept)

    def read(self) -> bytes:
        """The bodies as they are now."""
        self._now.clear()
        self._read_now()
        return bytes(self._now.float_buf())

    def take(self) -> bytes:
        """All kept readings, one behind the other, and forget them."""
        data = bytes(self._kept.float_buf())
        self._kept.clear()
        return data


def body_state_bytes(space: pymunk.Space) -> bytes:
    """One reading of a space, for callers who do not keep a `BodyStates`."""
    return BodyStates(space).read()


def _make_reader(space: pymunk.Space, buffer: pymunk.batch.Buffer) -> Callable[[], object]:
    """A function that appends a reading to a buffer.

    `get_space_bodies` sets its C call up anew each time, 0.8 us for two bodies; with the call prepared once a
    reading takes 0.2 us, which counts where ten physics steps take 80. Where pymunk's inner names are not what
    they are in 7.x, the public function serves.
    """
    try:
        from pymunk._chipmunk_cffi import ffi, lib  # noqa: PLC0415 - private, so it may be missing

        data = ffi.new("pmBatchedData *")
        data.fields = _FIELDS.value
        data.floatArray = buffer._float_arr  # noqa: SLF001 - see above
        data.intArray = buffer._int_arr  # noqa: SLF001 - see above
        callback = ffi.addressof(lib, "pmSpaceBodyGetIteratorFuncBatched")
        return functools.partial(lib.cpSpaceEachBody, space._space, callback, data)  # noqa: SLF001 - see above
    except (ImportError, AttributeError, TypeError):
        return functools.partial(pymunk.batch.get_space_bodies, space, _FIELDS, buffer)
