"""`record games`: lists the Atari games, and finds out whether each can be recorded and replayed here."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.console import Console
from rich.table import Table
from rich.text import Text

from recorder.atari import NAMESPACE
from recorder.command import open_progress, printable, say
from recorder.errors import CannotRunError
from recorder.games import list_games, require_game
from recorder.hashing import usable_cores
from recorder.records import MANIFEST

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from recorder.records import Row

    Run: TypeAlias = Callable[[Sequence[str]], subprocess.CompletedProcess[str]]

FRAMES = 8
SEED = 1
STICKY = 0.25

# Of a recording and of a replay; on an idle core either takes a second, most of it for starting Python.
TIMEOUT_S = 120.0

VERIFIED = "verified"
FAILED = "failed"

# Without -P a file of the current folder could stand in for a module of the standard library.
_PYTHON = (sys.executable, "-P", "-m")

_DISCRETE = re.compile(r"Discrete\((\d+)\)")


@dataclass(frozen=True)
class GameResult:
    """How a game was recorded and replayed.

    Attributes:
        game: The game, such as `ALE/Pong-v5`.
        verdict: `verified` or `failed`.
        reason: Why it failed, in one sentence.
        decisions: Decisions that were recorded; None if it did not come to that, as below.
        raw_frames: Raw frames that were recorded, those of the reset not counted.
        actions: How many actions the game has.
        seconds: Time that recording and replaying took, in seconds.
    """

    game: str
    verdict: str
    reason: str | None = None
    decisions: int | None = None
    raw_frames: int | None = None
    actions: int | None = None
    seconds: float = 0.0


class _GameFailedError(Exception):
    """A game could not be recorded and replayed; the message is the reason."""


def add_games(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `record games`."""
    parser.add_argument(
        "games", nargs="*", metavar="GAME", help="only these games, such as ALE/Pong-v5 or Pong (default: all)"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help=f"record {FRAMES} raw frames of each game and replay them, in processes of their own",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run_games(parsed: argparse.Namespace) -> int:
    """List games, or check them; 1 if a checked game failed, else 0.

    Raises:
        CannotRunError: There is no such game.
        MissingExtraError: ale-py is not installed.
    """
    games = choose_games(parsed.games)
    if not parsed.check:
        _show_list(games, is_json=parsed.json)
        return 0
    results = check_games(games)
    _show_results(results, is_json=parsed.json)
    return 0 if all(result.verdict == VERIFIED for result in results) else 1


def choose_games(names: Sequence[str]) -> list[str]:
    """The ids of games that are named with or without namespace and version, in any case; all games for no name.

    Raises:
        CannotRunError: There is no game of such a name, or no game at all.
    """
    games = list_games()
    if not games:
        message = f"ale-py is installed but registers no {NAMESPACE} game: install another version of it"
        raise CannotRunError(message)
    known = {_short_name(game): game for game in games}
    chosen: dict[str, None] = {}
    for name in names:
        game = known.get(_short_name(name))
        if game is None:
            require_game(name if name.startswith(NAMESPACE) else f"{NAMESPACE}{name}")
            # What is registered and not in the list is a game of another version or for several players.
            message = f"{name!r} is no single-agent game of version 5: `record games` lists them"
            raise CannotRunError(message)
        chosen[game] = None
    return list(chosen) or games


def check_games(games: Sequence[str]) -> list[GameResult]:
    """Record and replay games, as many at a time as there are usable cores; the results in the order of the games."""
    results: dict[str, GameResult] = {}
    processes = _Processes()
    with (
        tempfile.TemporaryDirectory(prefix="record-games-", ignore_cleanup_errors=True) as folder,
        open_progress("checking", "games") as progress,
        ThreadPoolExecutor(max(1, min(usable_cores(), len(games)))) as pool,
    ):
        task = progress.add_task("", total=len(games))
        try:
            checks = [
                pool.submit(_check_game, game, Path(folder) / str(number), processes.run)
                for number, game in enumerate(games)
            ]
            for check in as_completed(checks):
                result = check.result()
                results[result.game] = result
                progress.advance(task)
        except BaseException:  # Ctrl-C: nobody waits for the rest
            pool.shutdown(wait=False, cancel_futures=True)
            processes.end()
            raise
    return [results[game] for game in games]


class _Processes:
    """Runs processes from several threads, and ends all of them at once."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[str]] = set()
        self._is_over = False
        self._lock = threading.Lock()

    def run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a command to its end.

        Raises:
            subprocess.TimeoutExpired: It took too long, and was killed.
        """
        with self._lock:
            if self._is_over:
                return subprocess.CompletedProcess(command, -signal.SIGKILL, "", "")
            process = subprocess.Popen(  # noqa: S603 - this Python and modules of this project
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="backslashreplace",
            )
            self._running.add(process)
        try:
            stdout, stderr = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()  # does nothing to one that has ended
            process.wait()
            with self._lock:
                self._running.discard(process)
        return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)

    def end(self) -> None:
        """Kill what runs, and start nothing more."""
        with self._lock:
            self._is_over = True
            for process in self._running:
                process.kill()


def _check_game(game: str, folder: Path, run: Run) -> GameResult:
    started = time.monotonic()
    facts: dict[str, Any] = {}
    reason = None
    try:
        _record_and_replay(game, folder, run, facts)
    except _GameFailedError as error:
        reason = str(error)
    except (OSError, ValueError, LookupError, TypeError) as error:  # what was printed or written is not what it was
        reason = f"its result cannot be read: {type(error).__name__}: {error}"
    verdict = VERIFIED if reason is None else FAILED
    return GameResult(game, verdict, reason, **facts, seconds=round(time.monotonic() - started, 2))


def _record_and_replay(game: str, folder: Path, run: Run, facts: dict[str, Any]) -> None:
    """Record a game and replay it; note its decisions, raw frames and actions in `facts`."""
    run_folder = folder / "run"
    options = {"--env": game, "--policy": "random", "--seed": SEED, "--frames": FRAMES, "--sticky": STICKY}
    asked = [str(word) for option in options.items() for word in option]
    recorded = _run_step("the recording", run, "recorder.cli", "play", *asked, "--out", str(run_folder))
    episodes = recorded["episodes"]
    facts.update({name: sum(episode[name] for episode in episodes) for name in ("decisions", "raw_frames")})
    if len(episodes) != 1 or facts["raw_frames"] != FRAMES:
        message = f"the recording has {facts['raw_frames']} raw frames in {len(episodes)} episodes, not {FRAMES} in one"
        raise _GameFailedError(message)
    facts["actions"] = _count_actions(Path(episodes[0]["episode"]))
    out = ("--out", str(folder / "replay"))
    verdict = _run_step("the replay", run, "replay.cli", "--episode", episodes[0]["episode"], *out)
    if verdict["verdict"] != VERIFIED:
        message = f"the verdict of the replay is {verdict['verdict']!r}"
        raise _GameFailedError(message)
    for channel in ("ram", "rgb"):
        compared = verdict["compared"].get(channel, 0)
        if compared != FRAMES + 1:  # that of the reset too
            message = f"the replay compared {channel.upper()} of {compared} raw frames, not of {FRAMES + 1}"
            raise _GameFailedError(message)


def _run_step(what: str, run: Run, module: str, *arguments: str) -> Row:
    """The JSON object that a command of this project printed."""
    try:
        ended = run([*_PYTHON, module, *arguments, "--json"])
    except subprocess.TimeoutExpired as error:
        message = f"{what} took longer than {TIMEOUT_S:g} s"
        raise _GameFailedError(message) from error
    except OSError as error:
        message = f"{what} could not be started: {error}"
        raise _GameFailedError(message) from error
    if ended.returncode:
        raise _GameFailedError(_describe_end(what, ended))
    printed: Row = json.loads(ended.stdout.splitlines()[-1])  # an emulator may have printed before it
    return printed


def _describe_end(what: str, ended: subprocess.CompletedProcess[str]) -> str:
    """How a process ended, and what it said last: errors are told last."""
    code = ended.returncode
    how = f"was ended by {_name_signal(-code)}" if code < 0 else f"ended with exit code {code}"
    lines = [line for line in ended.stderr.splitlines() if line.strip() and "error: unforeseen" not in line]
    said = _first_difference(ended.stdout) or next(iter(lines[::-1]), "")
    return f"{what} {how}: {said.removeprefix('error: ')}" if said else f"{what} {how}"


def _first_difference(printed: str) -> str | None:
    """What a replay says that found a fault or a divergence."""
    try:
        verdict = json.loads(printed.splitlines()[-1])
        faults, first = verdict["faults"], verdict["first_divergence"]
        if faults:
            return str(faults[0])
        where = f"decision {first[0]['decision']}, raw frame {first[0]['raw_frame']}"
        return f"{verdict['verdict']} at {where}: {first[0]['field']}"
    except (ValueError, LookupError, TypeError):
        return None


def _name_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no names
        return f"signal {number}"


def _count_actions(episode: Path) -> int | None:
    space = json.loads((episode / MANIFEST).read_bytes())["environment"].get("action_space", "")
    found = _DISCRETE.fullmatch(space)
    return int(found[1]) if found else None


def _short_name(name: str) -> str:
    return name.lower().removeprefix(NAMESPACE.lower()).removesuffix("-v5")


def _show_list(games: list[str], *, is_json: bool) -> None:
    if is_json:
        _show_json(checked=False, games=[{"game": game} for game in games], failed=[])
        return
    sys.stdout.write("".join(f"{printable(game)}\n" for game in games))
    word = "game" if len(games) == 1 else "games"
    say(f"{len(games)} {word}; play one with: record play --env {games[0]} --frames 2000 --out runs/first")


def _show_results(results: list[GameResult], *, is_json: bool) -> None:
    failed = [result for result in results if result.verdict != VERIFIED]
    if is_json:
        _show_json(checked=True, games=list(map(asdict, results)), failed=[result.game for result in failed])
        return
    table = Table()
    for heading in ("game", "decisions", "raw frames", "actions", "verdict", "seconds"):
        table.add_column(heading, justify="left" if heading in {"game", "verdict"} else "right")
    for result in results:
        numbers = [
            "-" if number is None else str(number) for number in (result.decisions, result.raw_frames, result.actions)
        ]
        table.add_row(Text(printable(result.game)), *numbers, result.verdict, f"{result.seconds:.1f}")
    Console().print(table)
    for result in failed:
        sys.stdout.write(f"{printable(f'FAILED {result.game}: {result.reason}')}\n")
    word = "game" if len(results) == 1 else "games"
    sys.stdout.write(f"{len(results) - len(failed)} of {len(results)} {word} recorded and replayed\n")


def _show_json(**content: Any) -> None:  # noqa: ANN401 - any JSON
    sys.stdout.write(json.dumps({"kind": "games", **content}) + "\n")
