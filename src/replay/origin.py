"""Where the request and the response of a decision come from, each origin with its own label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recorder.encoding import decode_value
from recorder.errors import DamagedError, UsageError
from recorder.exchanges import EXCHANGES, spell_json
from recorder.pong_policies import RECORDED_NAMES
from recorder.programs import ActionProgram
from recorder.reading import ArrayFile, LineStream
from recorder.records import JsonValue, Row, read_strict_json, sha256_of_json
from replay.model_proof import holds_model_policy

if TYPE_CHECKING:
    from pathlib import Path

RECORDED = "recorded"
RECORDED_AT_ROOT = "recorded at the root of the run"
RECORDED_ELSEWHERE = "recorded, in the named log"
RECORDED_FAILED = "recorded, but the attempt failed"
RECORDED_TWICE = "recorded, but more than one exchange has its id: none is shown"
ANOTHER_OBSERVATION = "recorded, but the exchange is about another observation: none is shown"
UNREADABLE = "recorded but not found: there are lines that cannot be read in"
MISSING = "recorded but missing: no log holds exchange"
RECONSTRUCTED = "reconstructed from program and observation, not recorded"
WORDING_UNAVAILABLE = "wording unavailable: only the question program is known"
UNAVAILABLE = "unavailable"
LOCAL = "local policy: nothing was sent"


@dataclass(frozen=True)
class Origin:
    """What was sent to a model for a decision, what came back, and where both come from.

    Attributes:
        label: The origin; only those that begin with `recorded` have a recorded request.
        request: As it was sent, or reconstructed; None if it is not known.
        response: As it came; None if there was none.
    """

    label: str
    request: Row | None = None
    response: Row | None = None


def find_historical_origin(folder: Path, manifest: Row, transition: Row, log: Path | None = None) -> Origin:
    """The origin of a decision in the historical layout."""
    prediction = transition["prediction"]
    if manifest["policy"] in RECORDED_NAMES.values():
        return Origin(LOCAL)
    number = prediction.get("exchange_id")
    if number is None:
        return Origin(WORDING_UNAVAILABLE if isinstance(manifest.get("question_program"), dict) else UNAVAILABLE)
    origin = _find_exchange(folder, number, log)
    state = origin.request.get("state") if isinstance(origin.request, dict) else None
    is_other = isinstance(state, dict) and not _are_same(state.get("observation"), transition["observation"])
    return Origin(ANOTHER_OBSERVATION) if is_other else origin


def find_origin(folder: Path, manifest: Row, transition: Row, log: Path | None = None) -> Origin | None:
    """The origin of a decision in the own layout; None if no model decided."""
    if not holds_model_policy(manifest):
        return None
    policy = manifest["policy"]
    prediction = transition["prediction"]
    number = prediction.get("exchange_id") if isinstance(prediction, dict) else None
    try:
        program = ActionProgram.from_json(policy["program"])
        observation = decode_value(transition["observation"], ArrayFile(folder))
        request: Row | None = spell_json(program.request(policy["protocol"], policy["model"], observation))
    except (UsageError, DamagedError, KeyError):
        request = None
    if number is None:
        return Origin(WORDING_UNAVAILABLE) if request is None else Origin(RECONSTRUCTED, request)
    origin = _find_exchange(folder, number, log)
    is_other = None not in (request, origin.request) and not _are_same(request, origin.request)
    return Origin(ANOTHER_OBSERVATION) if is_other else origin


def _are_same(left: JsonValue, right: JsonValue) -> bool:
    return sha256_of_json(left) == sha256_of_json(right)


def _find_exchange(folder: Path, number: Any, log: Path | None) -> Origin:  # noqa: ANN401 - a stranger's JSON
    """The exchange of a number: in the named log, else beside the episode, else at the root of its run.

    Raises:
        UsageError: The named log does not exist.
    """
    if log is not None and not log.is_file():
        message = f"{log} does not exist: name the file with the exchanges, {EXCHANGES}"
        raise UsageError(message)
    places = [(folder / EXCHANGES, RECORDED), (folder.parent / EXCHANGES, RECORDED_AT_ROOT)]
    for path, label in places if log is None else [(log, RECORDED_ELSEWHERE)]:
        found, is_readable = _read_exchanges(path, number) if path.is_file() else ([], True)
        if not found and not is_readable:
            return Origin(f"{UNREADABLE} {path}")
        if len(found) > 1:
            return Origin(RECORDED_TWICE)
        if found:
            (row,) = found
            return Origin(
                RECORDED_FAILED if row.get("response") is None else label, row.get("request"), row.get("response")
            )
    return Origin(f"{MISSING} {number}")


def _read_exchanges(path: Path, number: Any) -> tuple[list[Row], bool]:  # noqa: ANN401 - as above
    """The exchanges with a number, whichever layout they are in, and whether every line could be read."""
    found = []
    is_readable = True
    for line in LineStream(path):
        try:
            row = read_strict_json(line, where=str(path))
        except DamagedError:
            is_readable = False
            continue
        if isinstance(row, dict) and row.get("exchange_id") == number and type(row["exchange_id"]) is type(number):
            found.append(row)
    return found, is_readable
