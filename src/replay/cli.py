"""The commands `replay` and `inspect-step`."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
from rich.console import Console

from recorder.atari import quiet_roms
from recorder.command import run_command, say, whole_number
from recorder.errors import CannotRunError, DamagedError
from recorder.policies import import_from_here
from recorder.reading import require_episode
from recorder.records import FRAMES
from recorder.storage import require_new_folder, require_outside_episodes
from replay.engine import Replay
from replay.inspection import find_episode, inspect_decision, render_strip
from replay.opening import AnyReplay, open_replay
from replay.report import describe_verdict, show_inspection, write_report
from replay.video import VideoWriter, require_ffmpeg

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recorder.records import Row

VERIFICATION = "verification.json"
VIDEO = "replay.mp4"


def replay_main(arguments: Sequence[str] | None = None) -> int:
    """`replay`: run an episode again and compare it bit for bit."""
    parser = argparse.ArgumentParser(
        prog="replay",
        description="Run a recorded episode again, without its agent, and compare everything bit for bit.",
        epilog="Exit codes: 0 verified, 1 diverged, 2 usage, 3 damaged, 4 could not run, 70 unforeseen.",
    )
    parser.add_argument("--episode", type=Path, required=True, metavar="DIR", help="folder of the episode")
    parser.add_argument("--video", action="store_true", help="also write replay.mp4, at simulation time")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for the results (default: replays/EPISODE)")
    parser.add_argument(
        "--policy", action="store_true", help="let a recorded model policy decide again, from its recorded exchanges"
    )
    _add_permissions(parser)
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON")
    parsed = parser.parse_args(arguments)
    _draw_off_screen()
    return run_command(lambda: _replay(parsed), interrupted="nothing was decided, and no result is kept")


def inspect_main(arguments: Sequence[str] | None = None) -> int:
    """`inspect-step`: show one decision."""
    parser = argparse.ArgumentParser(prog="inspect-step", description="Show one recorded decision; nothing is run.")
    parser.add_argument("--decision", type=_index, required=True, metavar="N", help="number of the decision, from 0")
    parser.add_argument(
        "--episode", type=Path, metavar="DIR", help="episode (default: the newest at or under this folder)"
    )
    parser.add_argument(
        "--exchanges",
        type=Path,
        metavar="FILE",
        help="log of the model's exchanges (default: beside the episode, else at the root of its run)",
    )
    parser.add_argument("--image", type=Path, metavar="FILE", help="replay up to it and write its raw frames as a PNG")
    _add_permissions(parser)
    parser.add_argument("--json", action="store_true", help="print the decision as JSON")
    parsed = parser.parse_args(arguments)
    _draw_off_screen()
    return run_command(lambda: _inspect(parsed), interrupted="nothing was shown")


def _add_permissions(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trust",
        action="append",
        default=[],
        metavar="MODULE",
        help="let the episode run code of this module (it is searched in the current folder too)",
    )
    parser.add_argument(
        "--allow-other-versions", action="store_true", help="replay though package versions differ; the verdict says so"
    )


def _replay(parsed: argparse.Namespace) -> int:
    folder: Path = parsed.episode
    require_episode(folder)
    out = _choose_out(folder, parsed.out)
    if parsed.trust:
        import_from_here()
    replay = open_replay(folder, trust=parsed.trust, allow_other_versions=parsed.allow_other_versions)
    if parsed.video:
        require_ffmpeg()
        _require_pictures(replay)
    out.mkdir(parents=True)
    try:
        return _write_results(parsed, replay, out)
    except BaseException:
        shutil.rmtree(out, ignore_errors=True)  # half a result would stand in the way of the next try
        raise


def _write_results(parsed: argparse.Namespace, replay: AnyReplay, out: Path) -> int:
    rate_hz = replay.rate_hz
    # A historical episode's local policy decides again anyway.
    run = partial(replay.run, is_asking_policy=parsed.policy) if isinstance(replay, Replay) else replay.run
    written: Row = {"reconstructed_frames": str(out / FRAMES)}
    video: VideoWriter | None = None
    with (out / FRAMES).open("xb") as frames, quiet_roms():
        if parsed.video and replay.is_drawing:
            with VideoWriter(out / VIDEO, rate_hz) as video:
                verdict = run(frame_sink=video.append, line_sink=frames.write)
        else:
            verdict = run(line_sink=frames.write)
            if parsed.video:
                video = _render_again(parsed, out / VIDEO, rate_hz)
    if video is not None and video.pictures:
        written |= {"video": str(video.path), "video_frames": video.pictures, "video_hz": video.rate_hz}
    elif video is not None:
        verdict.notes.append("no video was written: the replay ended before a picture was drawn")
    written |= replay.facts
    write_report(verdict, out / VERIFICATION, written)
    _show(replay, out, written, is_json=parsed.json)
    return verdict.exit_code


def _render_again(parsed: argparse.Namespace, path: Path, rate_hz: float | None) -> VideoWriter:
    """Run once more, only to draw: the verdict never depends on the pictures of an episode recorded without."""
    replay = open_replay(parsed.episode, trust=parsed.trust, allow_other_versions=True, render_mode="rgb_array")
    with VideoWriter(path, rate_hz) as video:
        replay.run(frame_sink=video.append)
    return video


def _require_pictures(replay: AnyReplay) -> None:
    modes = replay.env.metadata.get("render_modes", [])
    if "rgb_array" not in modes:
        replay.env.close()
        message = f"the environment draws no rgb_array pictures (it has {modes}): replay without --video"
        raise CannotRunError(message)


def _draw_off_screen() -> None:
    """Keep pygame from looking for a screen where there is none, and from complaining about it."""
    if not any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")):
        os.environ["SDL_VIDEODRIVER"] = "dummy"


def _choose_out(folder: Path, asked: Path | None) -> Path:
    if asked is None:
        base = Path("replays") / folder.resolve().name
        out, number = base, 1
        while out.exists():
            number += 1
            out = base.with_name(f"{base.name}-{number}")
    else:
        out = asked
    require_new_folder(out)
    return out


def _show(replay: AnyReplay, out: Path, written: Row, *, is_json: bool) -> None:
    verdict = replay.verdict
    if is_json:
        sys.stdout.write(orjson.dumps({**verdict.to_json(), **written, "out": str(out)}).decode() + "\n")
        return
    sys.stdout.write(describe_verdict(verdict, environment=replay.environment, seed=replay.seed))
    sys.stdout.write(f"  report: {out / VERIFICATION}\n")
    if "video" in written:
        pictures = f"{written['video_frames']} pictures at {written['video_hz']:g} Hz"
        sys.stdout.write(f"  video: {written['video']} ({pictures})\n")


def _inspect(parsed: argparse.Namespace) -> int:
    if parsed.episode is None:
        folder = find_episode(Path())
        which = "this folder" if folder == Path() else "the newest under this folder"
        say(f"episode: {folder} ({which}; name another with --episode)")
    else:
        folder = parsed.episode
    inspection = inspect_decision(folder, parsed.decision, log=parsed.exchanges)
    for fault in inspection.faults:
        say(f"damaged: {fault}")
    if parsed.image is not None:
        require_outside_episodes(parsed.image)
        if parsed.trust:
            import_from_here()
        with quiet_roms():
            render_strip(
                folder, inspection, parsed.image, trust=parsed.trust, allow_other_versions=parsed.allow_other_versions
            )
    exit_code = DamagedError.exit_code if inspection.faults else 0
    if parsed.json:
        image = {"image": str(parsed.image)} if parsed.image is not None else {}
        sys.stdout.write(orjson.dumps({**inspection.to_json(), **image}).decode() + "\n")
        return exit_code
    show_inspection(inspection, Console())
    if parsed.image is not None:
        sys.stdout.write(f"raw frames drawn in {parsed.image}\n")
    return exit_code


def _index(text: str) -> int:
    return whole_number(text, at_least=0)


if __name__ == "__main__":
    sys.exit(replay_main())
