"""httpx transports that record: any client that is given an httpx client of ours leaves a line an HTTP attempt."""

from __future__ import annotations

import contextlib
import json
import time
from typing import TYPE_CHECKING, Any, TypeAlias

from recorder.errors import MissingExtraError, UsageError

try:
    import httpx
except ImportError as _error:  # pragma: no cover - the extra is installed where tests run
    _message = "recording exchanges needs httpx, which the extra `http` installs: pip install 'replay-recorder[http]'"
    raise MissingExtraError(_message) from _error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from recorder.exchanges import ExchangeLog, Omission
    from recorder.records import JsonValue

Client: TypeAlias = httpx.Client
Response: TypeAlias = httpx.Response
HttpError: TypeAlias = httpx.RequestError

# A body beyond this is not kept; the client gets all of it.
KEPT_BYTES = 16 << 20

_EVENT_STREAM = "text/event-stream"


class RecordingTransport(httpx.BaseTransport):
    """Passes requests on and records each exchange.

    ```python
    client = httpx.Client(transport=RecordingTransport(log))
    openai.OpenAI(http_client=client)
    ```

    An attempt is reserved from the log's budget before it is made. The line is written when the response has been read,
    or closed, or has failed; whatever happens to it, the client sees what it would have seen.

    Args:
        log: Takes the exchanges.
        inner: Sends the requests; a plain `httpx.HTTPTransport` by default.
        clock: Seconds that only go forwards.
    """

    def __init__(
        self,
        log: ExchangeLog,
        inner: httpx.BaseTransport | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Send nothing yet."""
        self._log = log
        self._inner = inner or httpx.HTTPTransport()
        self._clock = clock

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request, once.

        Raises:
            BudgetExceededError: No attempt is left; nothing was sent.
        """
        capture = _Capture(self._log, request, request.read(), self._clock)
        try:
            response = self._inner.handle_request(request)
        except BaseException as error:
            capture.fail(error)
            raise
        if capture.begin(response):
            return response
        response.stream = _RecordedStream(response.stream, capture)
        return response

    def close(self) -> None:
        """Close what sends."""
        self._inner.close()


class AsyncRecordingTransport(httpx.AsyncBaseTransport):
    """The same for `httpx.AsyncClient`; see `RecordingTransport`."""

    def __init__(
        self,
        log: ExchangeLog,
        inner: httpx.AsyncBaseTransport | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Send nothing yet."""
        self._log = log
        self._inner = inner or httpx.AsyncHTTPTransport()
        self._clock = clock

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request, once.

        Raises:
            BudgetExceededError: No attempt is left; nothing was sent.
        """
        capture = _Capture(self._log, request, await request.aread(), self._clock)
        try:
            response = await self._inner.handle_async_request(request)
        except BaseException as error:
            capture.fail(error)
            raise
        if capture.begin(response):
            return response
        response.stream = _RecordedStream(response.stream, capture)
        return response

    async def aclose(self) -> None:
        """Close what sends."""
        await self._inner.aclose()


def normalise_base_url(text: str) -> str:
    """The URL of a server as its requests will state it.

    Raises:
        UsageError: It is none, or holds what would be recorded or would replace the key: user, password, query.
    """
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, TypeError, ValueError):
        url = None
    if url is None or url.scheme not in {"http", "https"} or not url.host:
        message = "the base URL should begin with http:// or https:// and name a host"
        raise UsageError(message)
    if url.userinfo or url.query or url.fragment:
        message = (
            "the base URL holds a user, a password, a query or a fragment: leave them out; --api-key-env names the key"
        )
        raise UsageError(message)
    return str(url).rstrip("/")


def open_client(transport: httpx.BaseTransport, timeout_s: float) -> Client:
    """A client over a transport."""
    return httpx.Client(transport=transport, timeout=timeout_s)


class _Capture:
    """One exchange on its way into the log; written once."""

    def __init__(self, log: ExchangeLog, request: httpx.Request, body: bytes, clock: Callable[[], float]) -> None:
        self._exchange_id = log.budget.reserve()
        self._log = log
        self._request = request
        self._body = body
        self._clock = clock
        self._started = clock()
        self._response: httpx.Response | None = None
        self._raw: list[bytes] = []
        self._decoded: bytes | None = None
        self._raw_bytes = 0
        self._is_written = False

    def begin(self, response: httpx.Response) -> bool:
        """Take the head of a response; say whether that was all, as it had been read before it came here."""
        self._response = response
        response.extensions["exchange_id"] = self._exchange_id
        if not response.is_closed:
            return False
        self._decoded = response.content
        self.end(is_whole=True)
        return True

    def take(self, data: bytes) -> None:
        self._raw_bytes += len(data)
        if self._raw_bytes <= KEPT_BYTES:
            self._raw.append(data)

    def fail(self, error: BaseException) -> None:
        """The transport, or the reader, raised."""
        self._write(error_type=type(error).__name__, is_whole=False)

    def end(self, *, is_whole: bool) -> None:
        """The response was read to its end, or closed before."""
        self._write(error_type=None, is_whole=is_whole)

    def _write(self, *, error_type: str | None, is_whole: bool) -> None:
        if self._is_written:
            return
        self._is_written = True
        response, events, omitted = self._judge(is_whole=is_whole)
        row = self._log.append(
            self._exchange_id,
            method=self._request.method,
            url=str(self._request.url),
            request=self._body,
            status=None if self._response is None else self._response.status_code,
            response=response,
            events=events,
            omitted=omitted,
            error_type=error_type,
            elapsed_s=self._clock() - self._started,
        )
        if self._response is not None:
            self._response.extensions["exchange"] = row

    def _judge(self, *, is_whole: bool) -> tuple[JsonValue, list[JsonValue] | None, Omission | None]:
        """The parsed response, or its events, or why neither is kept."""
        if self._response is None:
            return None, None, "no response"
        if not self._response.is_success:
            return None, None, "unsuccessful status"  # such a body may repeat the key
        if self._raw_bytes > KEPT_BYTES:
            return None, None, "too long"
        if self._response.headers.get("content-type", "").partition(";")[0].strip() == _EVENT_STREAM:
            data = self._decode()
            events = None if data is None else parse_events(data.decode("utf-8", "replace"))
            return None, events, None if is_whole else "cut off"
        if not is_whole:
            return None, None, "cut off"
        response, omitted = self._read_object()
        return response, None, omitted

    def _read_object(self) -> tuple[JsonValue, Omission | None]:
        try:
            parsed = json.loads(self._decode() or b"")
        except (ValueError, RecursionError):
            return None, "not JSON"
        return (parsed, None) if isinstance(parsed, dict) else (None, "not a JSON object")

    def _decode(self) -> bytes | None:
        """The body without its compression; None where it is compressed in a way that is not known here, or broken."""
        if self._response is None:
            return None
        if self._decoded is not None:
            return self._decoded
        headers = {
            name: value
            for name, value in self._response.headers.items()
            if name in {"content-encoding", "content-type"}
        }
        try:
            return httpx.Response(200, headers=headers, content=b"".join(self._raw)).content
        except httpx.DecodingError:
            return None


class _RecordedStream(httpx.SyncByteStream, httpx.AsyncByteStream):
    """Hands on what the inner stream, of either kind, brings; what ends first is what is recorded."""

    def __init__(self, inner: Any, capture: _Capture) -> None:  # noqa: ANN401 - a stream of either kind
        self._inner = inner
        self._capture = capture

    def __iter__(self) -> Iterator[bytes]:
        with self._watching():
            for data in self._inner:
                self._capture.take(data)
                yield data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with self._watching():
            async for data in self._inner:
                self._capture.take(data)
                yield data

    def close(self) -> None:
        try:
            self._inner.close()
        finally:
            self._capture.end(is_whole=False)

    async def aclose(self) -> None:
        try:
            await self._inner.aclose()
        finally:
            self._capture.end(is_whole=False)

    @contextlib.contextmanager
    def _watching(self) -> Iterator[None]:
        try:
            yield
        except GeneratorExit:  # the reader left: closing says so
            raise
        except BaseException as error:
            self._capture.fail(error)
            raise
        self._capture.end(is_whole=True)


def parse_events(text: str) -> list[JsonValue]:
    """The events of a stream, in order: `data` parsed where it is JSON, and `event` and `id` where they are given.

    An event that no empty line ended was not dispatched, and is left out.
    """
    events: list[JsonValue] = []
    fields: dict[str, Any] = {}
    data: list[str] = []
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for line in lines[:-1]:
        if line:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "data":
                data.append(value)
            elif name in {"event", "id"}:
                fields[name] = value
        elif data or fields:
            events.append({**fields, "data": _parse_data("\n".join(data))})
            fields, data = {}, []
    return events


def _parse_data(data: str) -> JsonValue:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return data
