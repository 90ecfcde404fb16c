"""The one tree of errors, each class with the exit code that the commands return for it.

RecorderError                70  (never raised itself)
├── UsageError                2  the call is wrong: argument, folder, order of calls
│   └── EncodingError         2  a value has no exact spelling in a record
├── DivergedError             1  raised only when a caller asks a verdict to raise
├── DamagedError              3  bytes that cannot be trusted: digests, strict JSON, schema
└── CannotRunError            4  nothing wrong with the call, but it cannot run here
    ├── MissingExtraError     4  an optional package is not installed
    ├── NotRebuildableError   4  an environment that a replay could not build again
    ├── UntrustedCodeError    4  an episode names code that nobody allowed it to run
    ├── BudgetExceededError   4  no HTTP attempt is left
    └── VersionError          4  a newer format, or other versions without permission

A message is one sentence (or two) that says what, where, what was expected, and what to do next.
"""

from __future__ import annotations


class RecorderError(Exception):
    """Root of every error that this project raises on purpose."""

    exit_code = 70


class UsageError(RecorderError):
    """The call cannot be carried out as it was made; nothing was written."""

    exit_code = 2


class EncodingError(UsageError):
    """A value has no exact spelling in a record.

    Args:
        problem: What is wrong with the value, without the place.
        path: Keys and indices from the outermost value down to it.
    """

    def __init__(self, problem: str, path: tuple[str | int, ...] = ()) -> None:
        """Keep the place apart, so that containers can prepend theirs."""
        self.problem = problem
        self.path = path
        place = "".join(f"[{part!r}]" for part in path)
        super().__init__(f"value{place} cannot be recorded: {problem}" if place else f"cannot be recorded: {problem}")

    def inside(self, key: str | int) -> EncodingError:
        """The same error seen from one container further out."""
        return EncodingError(self.problem, (key, *self.path))


class DivergedError(RecorderError):
    """A replay did not give the recorded values."""

    exit_code = 1


class DamagedError(RecorderError):
    """Stored bytes are not what they should be, so nothing may be concluded from them."""

    exit_code = 3


class CannotRunError(RecorderError):
    """The call is sound but cannot run on this machine."""

    exit_code = 4


class MissingExtraError(CannotRunError):
    """An optional package is needed; the message names the extra that installs it."""


class NotRebuildableError(CannotRunError):
    """The environment could not be built again from what a manifest can hold."""


class UntrustedCodeError(CannotRunError):
    """Replaying would run code that is named by the episode and was not allowed by the user."""


class VersionError(CannotRunError):
    """The episode was written under versions that this replay may not stand for."""


class BudgetExceededError(CannotRunError):
    """Every HTTP attempt of a command's budget is used up."""
