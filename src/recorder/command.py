"""Runs the body of one command and turns every way it can end into an exit code and a sentence."""

from __future__ import annotations

import argparse
import errno
import os
import sys
import traceback
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from recorder.errors import CannotRunError, RecorderError

if TYPE_CHECKING:
    from collections.abc import Callable

# Python itself exits with 1 after a traceback, which would read as "diverged".
UNFORESEEN = 70
INTERRUPTED = 130
UNREAD = 141


def run_command(body: Callable[[], int], *, interrupted: str) -> int:
    """The exit code of a command body.

    Results go to stdout by the body; errors go to stderr here, one sentence each.

    Args:
        body: Does the work and returns the exit code.
        interrupted: What to say after Ctrl-C.
    """
    try:
        code = body()
        sys.stdout.flush()
    except RecorderError as error:
        say(f"error: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        say(f"interrupted: {interrupted}")
        return INTERRUPTED
    except (BrokenPipeError, SystemExit):  # rich exits by itself when its reader is gone
        # The reader of our output went away (`| head`): there is nobody to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNREAD
    except OSError as error:
        say(f"error: {_describe_os_error(error)}")
        return CannotRunError.exit_code
    except Exception:  # noqa: BLE001 - the last place that can keep a traceback from exiting with 1
        traceback.print_exc()
        say("error: unforeseen, please report it with the lines above")
        return UNFORESEEN
    return code


def _describe_os_error(error: OSError) -> str:
    advice = "free some space" if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG} else "choose another place"
    return f"{error.filename or 'a file'}: {error.strerror or error}: {advice}"


def whole_number(text: str, *, at_least: int) -> int:
    """An argument that is a whole number from a limit up.

    Raises:
        argparse.ArgumentTypeError: It is not.
    """
    try:
        value = int(text)
    except ValueError:
        value = at_least - 1
    if value < at_least:
        message = f"must be a whole number from {at_least} up, not {text!r}"
        raise argparse.ArgumentTypeError(message)
    return value


def open_progress(doing: str, unit: str) -> Progress:
    """A progress bar on stderr, drawn only for a person at a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn(doing), BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def say(text: str) -> None:
    """A line for the person at the terminal, apart from the results on stdout."""
    sys.stderr.write(f"{printable(text)}\n")


def printable(text: str) -> str:
    """A text that cannot pass for another line or move the cursor: parts of it come from a stranger's files."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
