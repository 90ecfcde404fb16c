"""The Arcade Learning Environment: made known to Gymnasium, and read where Gymnasium shows too little."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from recorder.errors import CannotRunError, MissingExtraError

NAMESPACE = "ALE/"


def register_atari() -> None:
    """Make `ALE/...` environments known.

    Raises:
        MissingExtraError: ale-py is not installed.
    """
    ale_py = _import_ale()
    # Its banner would stand before every verdict.
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)


def is_emulator(simulator: object) -> bool:
    """Whether an unwrapped environment is an Atari emulator."""
    return hasattr(getattr(simulator, "ale", None), "getRAM")


def emulator_ram(simulator: Any) -> Callable[[], bytes]:  # noqa: ANN401 - ale_py's class, which may be missing here
    """A reader of the emulator's 128 bytes of RAM."""
    ale = simulator.ale
    return lambda: ale.getRAM().tobytes()


def emulator_frames_per_step(simulator: object) -> object:
    """How many frames an emulator's step lasts: a number, or a range; None for what is no emulator."""
    return getattr(simulator, "_frameskip", 1) if is_emulator(simulator) else None


def emulator_screen(simulator: Any) -> Callable[[Any], object]:  # noqa: ANN401 - as above
    """A function that draws the emulator's screen, as its `render()` gives it, into an array of that shape."""
    draw: Callable[[Any], object] = simulator.ale.getScreenRGB
    return draw


def describe_assets(simulator: object) -> list[dict[str, str]]:
    """The files besides code that decide what an environment does: name and SHA-256 of an emulator's ROM."""
    if not is_emulator(simulator):
        return []
    game = getattr(simulator, "_game")  # noqa: B009 - private, and the only place where every build of it says so
    return [{"name": f"{game}.bin", "sha256": rom_sha256(game)}]


def rom_sha256(game: str) -> str:
    """SHA-256 of the ROM that the emulator loads for a game, such as `pong`.

    Raises:
        CannotRunError: There is no such ROM, or ale-py refuses it.
    """
    roms = _import_ale().roms
    try:
        with quiet_roms():
            path = roms.get_rom_path(game)
    except OSError as error:
        raise CannotRunError(describe_rom_error(game, error)) from error
    if path is None:
        message = f"ale-py has no ROM of {game!r}"
        raise CannotRunError(message)
    return _digest_rom(str(path))


def describe_rom_error(game: str, error: OSError) -> str:
    """What ale-py says of a ROM that it does not take, in one sentence."""
    return f"the ROM of {game} cannot be used: {' '.join(str(error).split())}"


@contextlib.contextmanager
def quiet_roms() -> Iterator[None]:
    """Send what an environment prints, as ale-py does about ALE_ROMS_DIR, to stderr: stdout belongs to results."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


@functools.cache
def _digest_rom(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _import_ale() -> Any:  # noqa: ANN401 - an optional module
    try:
        import ale_py  # noqa: PLC0415 - an optional package; importing it registers its environments
        import ale_py.roms  # noqa: PLC0415 - as above
    except ImportError as error:
        message = "ALE/ environments need the extra `atari`: pip install 'replay-recorder[atari]'"
        raise MissingExtraError(message) from error
    return ale_py
