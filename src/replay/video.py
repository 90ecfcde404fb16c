"""Pictures on disk: the video of an episode at simulation time, and single images."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import imageio.v2 as imageio
import imageio_ffmpeg
import numpy as np

from recorder.errors import CannotRunError, UsageError
from recorder.storage import write_atomically

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

# Rate where the environment states none, as players expect some.
DEFAULT_RATE_HZ = 30.0


class VideoWriter:
    """Writes pictures to an MP4 one by one, in flat memory; the file appears when it is whole.

    H.264 with 4:2:0 colours plays everywhere and needs even sides, so odd ones get one more row or column.

    Args:
        path: The `.mp4` to write.
        rate_hz: Pictures per second of simulation time.
    """

    def __init__(self, path: Path, rate_hz: float | None) -> None:
        """Nothing is written before the first picture."""
        self.path = path
        self.rate_hz = rate_hz or DEFAULT_RATE_HZ
        self.pictures = 0
        self._temporary = path.with_name(f".{path.stem}.part.mp4")
        self._writer: Any = None
        self._shape: tuple[int, ...] | None = None

    def append(self, picture: np.ndarray[Any, Any]) -> None:
        """Add one picture, (height, width, 3) uint8.

        Raises:
            CannotRunError: Its size is not that of the first.
        """
        if self._writer is None:
            self._shape = picture.shape
            self._writer = imageio.get_writer(
                self._temporary,
                format="FFMPEG",
                mode="I",
                fps=self.rate_hz,
                codec="libx264",
                pixelformat="yuv420p",
                macro_block_size=1,
                ffmpeg_log_level="error",
                output_params=["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2"],
            )
        if picture.shape != self._shape:
            message = f"picture {self.pictures} is {picture.shape}, the first was {self._shape}: no video"
            raise CannotRunError(message)
        self._writer.append_data(np.ascontiguousarray(picture))
        self.pictures += 1

    def __enter__(self) -> VideoWriter:
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finish the file, or remove what there is of it after an error."""
        if self._writer is not None:
            self._writer.close()
            if error is None:
                self._temporary.replace(self.path)
            else:
                self._temporary.unlink(missing_ok=True)


def write_picture(path: Path, picture: np.ndarray[Any, Any]) -> None:
    """Write one picture, (height, width, 3) uint8, as PNG.

    Raises:
        UsageError: The name does not end in `.png`.
    """
    if path.suffix.lower() != ".png":
        message = f"{path} is not named as a picture: end it in .png"
        raise UsageError(message)
    encoded = io.BytesIO()
    imageio.imwrite(encoded, picture, format="png")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, encoded.getvalue())


def require_ffmpeg() -> None:
    """Raise before any work is done if no video can be written here.

    Raises:
        CannotRunError: ffmpeg is missing.
    """
    try:
        imageio_ffmpeg.get_ffmpeg_exe()
    except RuntimeError as error:
        message = f"no ffmpeg for the video: reinstall imageio-ffmpeg, which ships it, or go without --video ({error})"
        raise CannotRunError(message) from error
