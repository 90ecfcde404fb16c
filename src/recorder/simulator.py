"""The seam through which a simulator shows the bytes of its state (RAM) and its inner raw frames.

An environment, or a wrapper around it, may implement either part; nothing is inherited:

- `state_bytes(self) -> bytes`: the simulator's state as bytes that two equal states share.
- `raw_frame_hz: float` and `set_raw_frame_listener(listener)`: while a listener is set, the environment calls
  `listener(reward, terminated, truncated)` after every raw frame inside `step`; `reward` is None where that
  clock has none. The listener may call `state_bytes()` and `render()`.
- `keep_raw_frames(is_keeping)` and `take_raw_frames()`: the same without a call a frame, for simulators that can
  keep the state of each raw frame more cheaply than a listener reads it. Used when no pictures are asked for.
- `reset_frames: int`: raw frames that passed within the reset.
- `limit_holds(limits)`: cut the last hold short at `limits.Limits`.

For environments that implement neither, a RAM source is named when recording starts and kept in the manifest:
`ale` (the emulator's RAM), `numpy:ATTRIBUTE[,ATTRIBUTE]` (arrays and numbers), `pymunk:ATTRIBUTE` (a
`pymunk.Space`), or `module:function`, a function of the unwrapped environment that returns bytes.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, SupportsFloat, TypeAlias, TypeGuard

import gymnasium
import numpy as np

from recorder.atari import emulator_ram, emulator_screen, is_emulator
from recorder.encoding import array_bytes
from recorder.errors import CannotRunError, UntrustedCodeError, UsageError

if TYPE_CHECKING:
    from recorder.limits import Limits
    from recorder.records import Row

RawFrameListener: TypeAlias = Callable[[SupportsFloat | None, bool, bool], None]
RamReader: TypeAlias = Callable[[], bytes]

# Reward (None where that clock has none), terminated, truncated, state bytes.
RawFrame: TypeAlias = tuple[SupportsFloat | None, bool, bool, bytes]

# A longer state is recorded as its digest and length: 4096 bytes are 8 KiB a line.
INLINE_RAM_BYTES = 4096

ENVIRONMENT = "environment"
EMULATOR = "ale"

# Wrappers that pass on what the environment renders.
_PLAIN_RENDERS = frozenset(
    layer.render
    for layer in (gymnasium.Wrapper, gymnasium.wrappers.OrderEnforcing, gymnasium.wrappers.PassiveEnvChecker)
)

_NUMBER_KINDS = "biufc"


class ShowsState(Protocol):
    """An environment that publishes the bytes of its simulator state."""

    def state_bytes(self) -> bytes:
        """The state now, as bytes."""
        ...


class ShowsRawFrames(Protocol):
    """An environment that publishes the raw frames within a decision."""

    raw_frame_hz: float

    def set_raw_frame_listener(self, listener: RawFrameListener | None) -> None:
        """Call the listener after every raw frame, or stop calling it."""
        ...


class KeepsRawFrames(Protocol):
    """An environment that keeps the raw frames of a decision until they are taken."""

    def keep_raw_frames(self, is_keeping: bool) -> None:
        """Keep the raw frames of each step from now on, or stop keeping them."""
        ...

    def take_raw_frames(self) -> list[RawFrame]:
        """The raw frames of the last step, in order, each with what a listener would have seen."""
        ...


# Attributes are looked for by name: checking against a runtime protocol costs 20 us, and each episode asks.


def layers_of(env: gymnasium.Env[Any, Any]) -> Iterator[gymnasium.Env[Any, Any]]:
    """An environment's layers, from the outermost wrapper down to the environment itself."""
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env
    yield env


def find_publisher(env: gymnasium.Env[Any, Any]) -> ShowsRawFrames | None:
    """The outermost layer of an environment that publishes raw frames, or None."""
    return next((layer for layer in layers_of(env) if shows_raw_frames(layer)), None)


def picture_drawer(env: gymnasium.Env[Any, Any]) -> Callable[[np.ndarray[Any, Any]], object] | None:
    """A function that draws what `env.render()` returns into an array of that shape, or None.

    It saves a copy of each picture where the environment can do it and no wrapper changes what is rendered.
    """
    *wrappers, simulator = layers_of(env)
    is_plain = all(type(wrapper).render in _PLAIN_RENDERS for wrapper in wrappers)
    is_drawing = is_emulator(simulator) and simulator.render_mode == "rgb_array"
    return emulator_screen(simulator) if is_plain and is_drawing else None


def set_limits(env: gymnasium.Env[Any, Any], limits: Limits) -> None:
    """Tell the layer that holds actions, if there is one, where to cut a hold short."""
    publisher = find_publisher(env)
    if publisher is not None and hasattr(publisher, "limit_holds"):
        publisher.limit_holds(limits)


def shows_state(simulator: object) -> TypeGuard[ShowsState]:
    """Whether an environment publishes the bytes of its state."""
    return hasattr(simulator, "state_bytes")


def shows_raw_frames(simulator: object) -> TypeGuard[ShowsRawFrames]:
    """Whether an environment publishes its raw frames."""
    return hasattr(simulator, "raw_frame_hz") and hasattr(simulator, "set_raw_frame_listener")


def keeps_raw_frames(simulator: object) -> TypeGuard[KeepsRawFrames]:
    """Whether an environment keeps its raw frames until they are taken."""
    return hasattr(simulator, "keep_raw_frames") and hasattr(simulator, "take_raw_frames")


def describe_clocks(env: gymnasium.Env[Any, Any]) -> Row:
    """The manifest's `clocks`: who counts raw frames, and how many make a second of simulation time."""
    publisher = find_publisher(env)
    rate_hz = publisher.raw_frame_hz if publisher is not None else env.metadata.get("render_fps")
    return {
        "raw_frame_source": "decision" if publisher is None else "environment",
        "raw_frame_hz": float(rate_hz) if rate_hz else None,
    }


def choose_ram_source(env: gymnasium.Env[Any, Any], asked: str | None) -> Row:
    """The manifest's `channels.ram` for an environment.

    Args:
        env: The environment to be recorded.
        asked: `"auto"`, None for no RAM, or a source as the module's docstring spells it.
    """
    if asked is None:
        return {"source": None, "absent": "not asked for"}
    if not isinstance(asked, str):
        message = f"ram must be text, such as 'numpy:state' or 'module:function', not {type(asked).__name__}"
        raise UsageError(message)
    if asked != "auto":
        return {"source": asked, "absent": None}
    if shows_state(env.unwrapped):
        return {"source": ENVIRONMENT, "absent": None}
    if is_emulator(env.unwrapped):
        return {"source": EMULATOR, "absent": None}
    return {"source": None, "absent": "the environment has no state_bytes() and no RAM source was named"}


def open_ram_source(
    env: gymnasium.Env[Any, Any], source: str | None, *, is_trusted: Callable[[str], bool]
) -> RamReader | None:
    """A function that reads the state bytes of an environment, or None where there is no source.

    Raises:
        UsageError: The source is not one of the spellings, or the environment does not have what it names.
        UntrustedCodeError: It names a function in a module that is not trusted.
    """
    if source is None:
        return None
    simulator = env.unwrapped
    if source == ENVIRONMENT:
        if not shows_state(simulator):
            message = f"{simulator} has no state_bytes(), though the manifest says that its RAM comes from there"
            raise CannotRunError(message)
        return simulator.state_bytes
    if source == EMULATOR:
        if not is_emulator(simulator):
            message = f"{simulator} is no Atari emulator, though the manifest says that its RAM comes from one"
            raise CannotRunError(message)
        return emulator_ram(simulator)
    kind, _, target = source.partition(":")
    if not target:
        message = f"RAM source {source!r} is not known: use ale, numpy:ATTRIBUTE, pymunk:ATTRIBUTE or module:function"
        raise UsageError(message)
    if kind == "numpy":
        return _numpy_reader(simulator, target.split(","))
    if kind == "pymunk":
        return _pymunk_reader(simulator, target)
    return _function_reader(simulator, kind, target, is_trusted)


def spell_ram(data: bytes) -> str | Row:
    """State bytes as a frame line holds them: hex, or digest and length when they are long."""
    if len(data) <= INLINE_RAM_BYTES:
        return data.hex()
    return {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}


def _numpy_reader(simulator: object, names: list[str]) -> RamReader:
    _require_attributes(simulator, names)
    # Read by name each time: environments replace their state arrays.
    return lambda: b"".join(_number_bytes(name, getattr(simulator, name)) for name in names)


def _number_bytes(name: str, value: object) -> bytes:
    array = np.asarray(value)
    if array.dtype.kind not in _NUMBER_KINDS:  # the bytes of an object array are addresses
        message = f"attribute {name} holds {type(value).__name__}, not numbers: name one that holds the state"
        raise CannotRunError(message)
    return array_bytes(array)


def _pymunk_reader(simulator: object, name: str) -> RamReader:
    from recorder.pymunk_state import body_state_bytes  # noqa: PLC0415 - pymunk is imported in one module

    _require_attributes(simulator, [name])
    return lambda: body_state_bytes(getattr(simulator, name))


def _function_reader(simulator: object, module: str, name: str, is_trusted: Callable[[str], bool]) -> RamReader:
    if not is_trusted(module):
        message = f"the RAM source {module}:{name} would run code of {module!r}: allow it with --trust {module}"
        raise UntrustedCodeError(message)
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        message = f"the RAM source {module}:{name} cannot be imported: {error}"
        raise CannotRunError(message) from error
    return lambda: function(simulator)


def _require_attributes(simulator: object, names: list[str]) -> None:
    missing = [name for name in names if not hasattr(simulator, name)]
    if missing:
        message = f"{simulator} has no attribute {', '.join(missing)}: name one that holds its state"
        raise UsageError(message)
