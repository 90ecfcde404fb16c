"""Serves recorded exchanges to the code that made them: the same agent, without network, key or server."""

from __future__ import annotations

import json
import threading
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any, TypeAlias

import httpx

from recorder.errors import CannotRunError
from recorder.exchanges import describe_request, read_spelled
from recorder.records import sha256_of_json
from recorder.redaction import Redactor
from replay.divergence import json_differences

if TYPE_CHECKING:
    from collections.abc import Iterable

    from recorder.records import JsonValue, Row

    Key: TypeAlias = tuple[str, str, str]

# Longest spelling of a value in an error.
SHOWN_CHARACTERS = 80


class MissedExchangeError(CannotRunError):
    """A request that the record does not hold, or not so often."""


class ReplayTransport(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """Answers requests from a log of exchanges, for `httpx.Client` and `httpx.AsyncClient`.

    Identical requests get their answers in recorded order; between different ones the order is free. What failed
    fails again: with its status, or with the error that the transport raised. Bodies of unsuccessful responses were
    not recorded, so they come back empty.

    Args:
        exchanges: Rows of `model-exchanges.jsonl`, in order; see `recorder.exchanges.read_exchanges`.
        redactor: Removes the same secrets as at the recording; without it requests must not hold any.

    Attributes:
        served: Ids of the exchanges served so far, in the order of the requests.
    """

    def __init__(self, exchanges: Iterable[Row], *, redactor: Redactor | None = None) -> None:
        """Serve nothing yet."""
        self._redactor = redactor or Redactor({})
        self._waiting: dict[Key, deque[Row]] = defaultdict(deque)
        self._known: list[Row] = []
        self._lock = threading.Lock()
        self.served: list[int] = []
        for row in exchanges:
            self._known.append(row)
            self._waiting[row["method"], row["url"], row["request_sha256"]].append(row)

    @property
    def unserved(self) -> list[int]:
        """Ids of the exchanges that nobody asked for yet."""
        return sorted(row["exchange_id"] for rows in self._waiting.values() for row in rows)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Answer a request as it was answered.

        Raises:
            MissedExchangeError: It was not recorded, or not so often.
            httpx.TransportError: It failed then.
        """
        return self._answer(request, request.read())

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The same for an async client."""
        return self._answer(request, await request.aread())

    def _answer(self, request: httpx.Request, body: bytes) -> httpx.Response:
        with self._lock:
            asked = describe_request(body, self._redactor)
            url = self._redactor.redact_url(str(request.url))
            waiting = self._waiting.get((request.method, url, sha256_of_json(asked)))
            if not waiting:
                raise MissedExchangeError(self._describe_miss(request.method, url, asked))
            row = waiting.popleft()
            self.served.append(row["exchange_id"])
        return _build_response(row, request)

    def _describe_miss(self, method: str, url: str, asked: JsonValue) -> str:
        """Which recorded request comes nearest, and where it first differs."""
        if not self._known:
            return f"{method} {url} cannot be answered: the record holds no exchange"
        here = {"the method": method, "the URL": url, "the request": asked}
        differences = [(_differences_of(row, here), row) for row in self._known]
        found, row = min(differences, key=lambda pair: len(pair[0]))
        count = len(found)
        if not found:
            return (
                f"{method} {url} was asked once more than it was recorded (exchange {row['exchange_id']} was the last)"
            )
        path, recorded, sent = found[0]
        return (
            f"{method} {url} was not recorded; nearest is exchange {row['exchange_id']}, where {path} was "
            f"{_show(recorded)} and is {_show(sent)} here ({count} {'difference' if count == 1 else 'differences'})"
        )


def _build_response(row: Row, request: httpx.Request) -> httpx.Response:
    if row["error_type"] is not None and row["events"] is None:
        kind = getattr(httpx, row["error_type"], None)
        is_known = isinstance(kind, type) and issubclass(kind, httpx.TransportError)
        error: Any = kind if is_known else httpx.TransportError
        message = f"exchange {row['exchange_id']} ended so when it was recorded: {row['error_type']}"
        raise error(message, request=request)
    if row["events"] is not None:
        content = "".join(map(_spell_event, read_spelled(row["events"])))
        return httpx.Response(
            row["status"], headers={"content-type": "text/event-stream"}, content=content, request=request
        )
    content = "" if row["response"] is None else json.dumps(read_spelled(row["response"]))
    headers = {"content-type": "application/json"}
    return httpx.Response(
        row["status"], headers=headers, content=content.encode("utf-8", "surrogatepass"), request=request
    )


def _spell_event(event: Row) -> str:
    data = event["data"]
    text = data if isinstance(data, str) else json.dumps(data)
    fields = [f"{name}: {event[name]}" for name in ("event", "id") if name in event]
    return "\n".join([*fields, *(f"data: {line}" for line in text.split("\n"))]) + "\n\n"


def _differences_of(row: Row, here: Row) -> list[tuple[str, JsonValue, JsonValue]]:
    """Where a recorded request and one made here differ: place, recorded, here."""
    recorded = {"the method": row["method"], "the URL": row["url"], "the request": row["request"]}
    return [found for name, value in recorded.items() for found in json_differences(value, here[name], name)]


def _show(value: JsonValue) -> str:
    text = json.dumps(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}... ({len(text)} characters)"
