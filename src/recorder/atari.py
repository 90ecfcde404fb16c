"""The Arcade Learning Environment, known to Gymnasium once ale-py is imported."""

from __future__ import annotations

from recorder.errors import MissingExtraError

NAMESPACE = "ALE/"


def register_atari() -> None:
    """Make `ALE/...` environments known.

    Raises:
        MissingExtraError: ale-py is not installed.
    """
    try:
        import ale_py  # noqa: F401, PLC0415 - an optional package; importing it registers its environments
    except ImportError as error:
        message = "ALE/ environments need the extra `atari`: pip install 'replay-recorder[atari]'"
        raise MissingExtraError(message) from error
