"""The log of what was asked of a model and what it answered: one line an HTTP attempt, under one budget."""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from recorder.errors import BudgetExceededError, DamagedError, UsageError
from recorder.reading import LineStream
from recorder.records import JsonValue, Row, encode_line, read_strict_json, sha256_of_json, validate_row
from recorder.storage import write_all, write_atomically

if TYPE_CHECKING:
    from recorder.redaction import Redactor

EXCHANGES = "model-exchanges.jsonl"
LEDGER = "api-ledger.json"

# Why a response is not in the log.
Omission: TypeAlias = Literal[
    "unsuccessful status", "not JSON", "not a JSON object", "too long", "cut off", "no response"
]

# Objects of a body with one of these as their only key are spelled with another around them.
_TAGS = frozenset({"float", "int", "text", "dict"})

_UNSPELL: dict[str, Callable[[str], JsonValue]] = {
    "float": float,
    "int": int,
    "text": lambda text: bytes.fromhex(text).decode("utf-8", "surrogatepass"),
}

_SAFE_INTEGER = 2**53

# Deeper bodies are not kept as JSON.
MOST_DEPTH = 100


class Budget:
    """A hard cap on HTTP attempts, shared by everything that a command asks.

    An attempt is reserved before it is made and never given back, whatever became of it; its number is the id of
    its exchange.

    Args:
        attempts: How many there may be.
        state: File that keeps the count for a later process; its folder exists.

    Raises:
        UsageError: The cap is not a whole number from 1.
        DamagedError: The state file holds something else.
    """

    def __init__(self, attempts: int, *, state: Path | None = None) -> None:
        """Begin with nothing reserved, or with what the state file says."""
        if isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1:
            message = f"the cap on HTTP attempts must be a whole number from 1, not {attempts!r}"
            raise UsageError(message)
        self.attempts = attempts
        self._state = state
        self._lock = threading.Lock()
        self.reserved = 0 if state is None or not state.exists() else _read_reserved(state)

    def reserve(self) -> int:
        """Reserve one attempt; its number, from 1.

        Raises:
            BudgetExceededError: All are used up; nothing was sent.
        """
        with self._lock:
            if self.reserved >= self.attempts:
                message = f"all {self.attempts} HTTP attempts are used up: nothing was sent; raise --max-api-calls"
                raise BudgetExceededError(message)
            self.reserved += 1
            if self._state is not None:
                # On the disk before the request is: an attempt that was paid for is never forgotten.
                state = encode_line({"kind": "budget", "reserved": self.reserved})
                write_atomically(self._state, state, is_flushing=True)
            return self.reserved


class ExchangeLog:
    """Appends exchanges, each redacted and valid under its schema, one whole line a time, from any thread.

    Args:
        path: The file; created with its first exchange, appended to if it is there.
        budget: Gives the ids.
        redactor: Removes the secrets.

    Attributes:
        ledger: What every attempt cost, in the order in which they ended.
    """

    def __init__(self, path: Path, budget: Budget, redactor: Redactor) -> None:
        """Create nothing yet."""
        self.path = path
        self.budget = budget
        self.redactor = redactor
        self.ledger: list[Row] = []
        self._lock = threading.Lock()
        self._descriptor: int | None = None

    def append(
        self,
        exchange_id: int,
        *,
        method: str,
        url: str,
        request: bytes,
        status: int | None,
        response: JsonValue = None,
        events: list[JsonValue] | None = None,
        omitted: Omission | None = None,
        error_type: str | None = None,
        elapsed_s: float,
    ) -> Row:
        """Write one exchange.

        Args:
            exchange_id: What the budget gave for it.
            method: Of the request.
            url: Of the request.
            request: Its body, decoded if it was compressed.
            status: Of the response; None if there was none.
            response: The parsed body of a successful response.
            events: Instead, the events of a streamed one, as they came.
            omitted: Why neither is there.
            error_type: Class of what the transport raised.
            elapsed_s: From sending to the end of the response.

        Returns:
            The line's row.
        """
        with self._lock:  # the redactor counts
            asked = describe_request(request, self.redactor)
            if response is not None and omitted is None and _is_too_deep(response):
                response, omitted = None, "not JSON"
            # Redacted before they are spelled: the spelling of some texts would hide a secret, or be broken by a mark.
            row: Row = {
                "exchange_id": exchange_id,
                "method": method,
                "url": self.redactor.redact_url(url),
                "request": asked,
                "request_sha256": sha256_of_json(asked),
                "response": spell_json(self.redactor.redact(response)),
                "events": None if events is None else spell_json(self.redactor.redact(events)),
                "omitted": omitted,
                "status": status,
                "error_type": error_type,
                "elapsed_s": round(elapsed_s, 6),
            }
            validate_row("exchange", row, where=f"exchange {exchange_id} that was to be written")
            self._write(encode_line(row))
            self.ledger.append(ledger_entry(row))
        return row

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            descriptor, self._descriptor = self._descriptor, None
            if descriptor is not None:
                os.close(descriptor)

    def _write(self, line: bytes) -> None:
        if self._descriptor is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(self.path, flags, 0o644)
        write_all(self._descriptor, line, self.path)


def read_exchanges(path: Path) -> list[Row]:
    """The exchanges of a log, each valid; a torn last line is left out.

    Raises:
        DamagedError: A line is no exchange, or two have one id.
    """
    rows: list[Row] = []
    seen: set[int] = set()
    stream = LineStream(path)
    for line in stream:
        if not line.endswith(b"\n"):
            break
        where = f"{path} line {stream.number}"
        row = read_strict_json(line, where=where)
        validate_row("exchange", row, where=where)
        if type(row["exchange_id"]) is not int:
            message = f"{where}: exchange_id {row['exchange_id']} should be a whole number"
            raise DamagedError(message)
        if row["exchange_id"] in seen:
            message = f"{where} holds exchange {row['exchange_id']} a second time"
            raise DamagedError(message)
        seen.add(row["exchange_id"])
        rows.append(row)
    return rows


def describe_request(body: bytes, redactor: Redactor) -> JsonValue:
    """A request's body without secrets: its JSON, else its text, else its bytes."""
    if not body:
        return None
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        return {"bytes": redactor.redact(body).hex()}
    try:
        parsed = json.loads(text)
        if not _is_too_deep(parsed):
            return spell_json(redactor.redact(parsed))
    except (ValueError, RecursionError):
        pass
    return {"raw": redactor.redact_text(text)}


def _is_too_deep(value: JsonValue, depth: int = 0) -> bool:
    """Whether a parsed body is nested deeper than a line can hold."""
    if depth > MOST_DEPTH:
        return True
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(_is_too_deep(item, depth + 1) for item in inner)


def spell_json(value: JsonValue) -> JsonValue:
    """A parsed body as strict JSON that says the same: non-finite numbers, long integers and lone surrogates tagged.

    Raises:
        UsageError: It is nested without end.
    """
    try:
        return _spell(value)
    except RecursionError:
        message = "a body is nested too deeply to be kept"
        raise UsageError(message) from None


def read_spelled(value: JsonValue) -> JsonValue:
    """What `spell_json` was given.

    Raises:
        DamagedError: Nothing is spelled so.
    """
    try:
        return unspell_json(value)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        message = f"a recorded body is spelled as none is: {type(error).__name__}: {error}"
        raise DamagedError(message) from None


def unspell_json(value: JsonValue) -> JsonValue:
    """The same, from a spelling that is known to be sound."""
    if isinstance(value, list):
        return [unspell_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1 and not _TAGS.isdisjoint(value):
        (tag, content), *_ = value.items()
        if tag != "dict":
            return _UNSPELL[tag](content)
        value = content
    return {_unspell_key(key): unspell_json(item) for key, item in value.items()}


def _unspell_key(key: str) -> str:
    return bytes.fromhex(key[2:]).decode("utf-8", "surrogatepass") if key.startswith("\\u") else key


def _spell(value: JsonValue) -> JsonValue:
    if isinstance(value, str):
        return value if _is_text(value) else {"text": value.encode("utf-8", "surrogatepass").hex()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _SAFE_INTEGER:
        return {"int": str(value)}
    if isinstance(value, list):
        return [_spell(item) for item in value]
    if isinstance(value, dict):
        spelled = {
            key
            if _is_text(key) and not key.startswith("\\u")
            else f"\\u{key.encode('utf-8', 'surrogatepass').hex()}": _spell(item)
            for key, item in value.items()
        }
        return {"dict": spelled} if len(spelled) == 1 and not _TAGS.isdisjoint(spelled) else spelled
    return value


def _is_text(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def sum_ledger(entries: list[Row]) -> Row:
    """What the attempts of a ledger add up to, failures and retries included."""
    usage: dict[str, float] = {}
    statuses: dict[str, int] = {}
    for entry in entries:
        status = str(entry["status"] if entry["status"] is not None else entry["error_type"])
        statuses[status] = statuses.get(status, 0) + 1
        for name, value in (entry["usage"] if isinstance(entry["usage"], dict) else {}).items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                usage[name] = usage.get(name, 0) + value
    return {
        "attempts": len(entries),
        "statuses": dict(sorted(statuses.items())),
        "usage": dict(sorted(usage.items())),
    }


def ledger_entry(row: Row) -> Row:
    """What an attempt cost: no request and no answer."""
    response = row["response"] if isinstance(row["response"], dict) else {}
    entry = {name: row[name] for name in ("exchange_id", "status", "error_type", "omitted", "elapsed_s")}
    return {**entry, "response_model": response.get("model"), "usage": response.get("usage")}


def _read_reserved(state: Path) -> int:
    document = read_strict_json(state.read_bytes(), where=str(state))
    reserved = document.get("reserved") if isinstance(document, dict) else None
    if type(reserved) is not int or reserved < 0:
        message = f"{state} is no state of a budget: remove it, or name another file"
        raise DamagedError(message)
    return reserved
