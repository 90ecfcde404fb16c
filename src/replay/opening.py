"""Opens an episode for a replay, whichever layout it is in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from recorder.errors import CannotRunError
from recorder.pong_play import KIND
from recorder.reading import OWN_KIND, EpisodeReader
from replay.engine import Replay
from replay.pong_play import PongReplay

if TYPE_CHECKING:
    from collections.abc import Collection

    from recorder.stepping import FrameSink
    from replay.engine import LineSink
    from replay.verdict import Verdict

AnyReplay: TypeAlias = Replay | PongReplay


def open_replay(
    folder: Path | str,
    *,
    trust: Collection[str] = (),
    allow_other_versions: bool = False,
    render_mode: str | None = None,
) -> AnyReplay:
    """Open an episode; see `Replay` for arguments and errors.

    Raises:
        CannotRunError: It is of a layout that cannot be replayed.
    """
    kind = EpisodeReader(Path(folder)).read_foreign_kind()
    if kind == KIND:
        return PongReplay(folder, allow_other_versions=allow_other_versions)
    if kind is not None:
        message = f"{folder} is of the kind {kind!r}, which cannot be replayed: {OWN_KIND!r} and {KIND!r} can"
        raise CannotRunError(message)
    return Replay(folder, trust=trust, allow_other_versions=allow_other_versions, render_mode=render_mode)


def replay_episode(
    folder: Path | str,
    *,
    trust: Collection[str] = (),
    allow_other_versions: bool = False,
    frame_sink: FrameSink | None = None,
    line_sink: LineSink | None = None,
) -> Verdict:
    """Replay an episode and return the verdict; see `Replay` for arguments and errors."""
    replay = open_replay(folder, trust=trust, allow_other_versions=allow_other_versions)
    return replay.run(frame_sink=frame_sink, line_sink=line_sink)
