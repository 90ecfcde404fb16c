"""Recorded exchanges served again: the same answers in the same order, the same failures, and loud misses."""

import asyncio
import contextlib
import json

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recorder.errors import DamagedError
from recorder.exchanges import Budget, ExchangeLog, read_exchanges, spell_json, unspell_json
from recorder.redaction import Redactor
from recorder.transport import RecordingTransport
from replay.transport import MissedExchangeError, ReplayTransport

URL = "http://model.test/v1"
KEY = "sk-canary-0123456789abcdef"


def record(tmp_path, answer, requests, *, redactor=None):
    """Ask a made-up server; the rows of the log."""
    log = ExchangeLog(tmp_path / "log.jsonl", Budget(1000), redactor or Redactor({}))
    with httpx.Client(transport=RecordingTransport(log, httpx.MockTransport(answer))) as client:
        for body in requests:
            with contextlib.suppress(httpx.TransportError):
                client.post(URL, json=body)
    log.close()
    return read_exchanges(log.path)


def counting():
    numbers = iter(range(1000))
    return lambda request: httpx.Response(200, json={"number": next(numbers), "asked": json.loads(request.content)})


def ask(transport, body, url=URL):
    with httpx.Client(transport=transport) as client:
        return client.post(url, json=body)


def test_identical_requests_get_their_answers_in_recorded_order_and_others_in_any(tmp_path):
    rows = record(tmp_path, counting(), [{"q": 1}, {"q": 2}, {"q": 1}])
    transport = ReplayTransport(rows)
    assert transport.unserved == [1, 2, 3]
    assert ask(transport, {"q": 2}).json()["number"] == 1
    assert ask(transport, {"q": 1}).json()["number"] == 0
    assert ask(transport, {"q": 1}).json()["number"] == 2
    assert (transport.served, transport.unserved) == ([2, 1, 3], [])


def test_a_request_once_more_than_recorded_is_a_miss(tmp_path):
    transport = ReplayTransport(record(tmp_path, counting(), [{"q": 1}]))
    ask(transport, {"q": 1})
    with pytest.raises(MissedExchangeError, match=r"once more than it was recorded \(exchange 1 was the last\)"):
        ask(transport, {"q": 1})


def test_a_miss_names_the_nearest_request_and_the_first_difference(tmp_path):
    asked = [{"state": {"x": [1, 2, 3], "who": "a"}}, {"state": {"x": [7, 7, 7], "who": "z"}}]
    transport = ReplayTransport(record(tmp_path, counting(), asked))
    with pytest.raises(MissedExchangeError) as caught:
        ask(transport, {"state": {"x": [1, 5, 3], "who": "a"}})
    assert "nearest is exchange 1, where the request['state']['x'][1] was 2 and is 5 here (1 difference)" in str(
        caught.value
    )
    with pytest.raises(MissedExchangeError, match="the URL was"):
        ask(transport, asked[0], url=URL + "/other")
    with pytest.raises(MissedExchangeError, match="holds no exchange"):
        ask(ReplayTransport([]), {})
    assert transport.served == []


def test_what_failed_fails_again(tmp_path):
    def answer(request):
        kind = json.loads(request.content)["kind"]
        if kind == "timeout":
            raise httpx.ReadTimeout("too slow")
        return httpx.Response(int(kind), json={"error": "no"})

    rows = record(tmp_path, answer, [{"kind": "timeout"}, {"kind": "429"}])
    transport = ReplayTransport(rows)
    with pytest.raises(httpx.ReadTimeout, match="exchange 1"):
        ask(transport, {"kind": "timeout"})
    refused = ask(transport, {"kind": "429"})
    assert (refused.status_code, refused.content) == (429, b"")


def test_a_stream_comes_back_event_by_event(tmp_path):
    text = 'data: {"n": 0}\n\nevent: note\nid: 7\ndata: two\ndata: lines\n\ndata: [DONE]\n\n'
    headers = {"content-type": "text/event-stream"}
    rows = record(tmp_path, lambda _: httpx.Response(200, text=text, headers=headers), [{"q": 1}])
    with httpx.Client(transport=ReplayTransport(rows)) as client, client.stream("POST", URL, json={"q": 1}) as again:
        assert "".join(again.iter_text()) == text


def test_an_async_client_is_served_too(tmp_path):
    transport = ReplayTransport(record(tmp_path, counting(), [{"q": 1}]))

    async def again():
        async with httpx.AsyncClient(transport=transport) as client:
            return (await client.post(URL, json={"q": 1})).json()

    assert asyncio.run(again())["asked"] == {"q": 1}


def test_the_key_is_not_needed_and_another_key_changes_nothing(tmp_path):
    rows = record(tmp_path, counting(), [{"q": 1, "key": KEY}], redactor=Redactor({"KEY": KEY}))
    other = "sk-another-key-of-today"
    assert ask(ReplayTransport(rows, redactor=Redactor({"KEY": other})), {"q": 1, "key": other}).status_code == 200


def test_a_log_with_an_id_twice_or_a_broken_line_is_damaged_and_a_torn_tail_is_left_out(tmp_path):
    record(tmp_path, counting(), [{"q": 1}, {"q": 2}])
    path = tmp_path / "log.jsonl"
    data = path.read_bytes()
    first = data.split(b"\n")[0] + b"\n"
    path.write_bytes(data + first[:40])
    assert len(read_exchanges(path)) == 2
    path.write_bytes(data + first)
    with pytest.raises(DamagedError, match="holds exchange 1 a second time"):
        read_exchanges(path)
    path.write_bytes(data.replace(b'"status":200', b'"status":"200"', 1))
    with pytest.raises(DamagedError, match="line 1 breaks exchange"):
        read_exchanges(path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters()),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["float", "int", "text", "dict", "\\u00", "a"]) | st.text(max_size=3), inner, max_size=3
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_every_json_value_comes_back_from_its_spelling(value):
    spelled = spell_json(value)
    json.dumps(spelled, allow_nan=False).encode("utf-8")
    assert repr(unspell_json(spelled)) == repr(value)


def test_nan_comes_back_as_nan():
    assert (
        repr(unspell_json(spell_json({"float": float("nan"), "b": [float("-inf")]}))) == "{'float': nan, 'b': [-inf]}"
    )
