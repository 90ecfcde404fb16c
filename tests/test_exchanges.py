"""What was asked and what was answered over real HTTP on loopback: every attempt a line, one budget, no secret."""

import asyncio
import base64
import json
import subprocess
import sys
import threading
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from recorder.errors import BudgetExceededError, DamagedError, UsageError
from recorder.exchanges import Budget, ExchangeLog
from recorder.records import read_strict_json, sha256_of_json, validate_row
from recorder.redaction import MARK, Redactor
from recorder.transport import AsyncRecordingTransport, RecordingTransport, parse_events

KEY = "sk-canary-0123456789abcdef"
ODD_KEY = 'sk"odd\\é/ 12+x&y%😀'


@pytest.fixture(scope="module")
def server():
    script = Path(__file__).with_name("model_server.py")
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as process:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        process.kill()


@pytest.fixture
def log(tmp_path):
    made = ExchangeLog(tmp_path / "model-exchanges.jsonl", Budget(100), Redactor({"KEY": KEY, "ODD": ODD_KEY}))
    yield made
    made.close()


@pytest.fixture
def client(log):
    with httpx.Client(transport=RecordingTransport(log), timeout=2) as made:
        yield made


def rows(log):
    data = log.path.read_bytes()
    assert data.endswith(b"\n")
    found = [read_strict_json(line, where="line") for line in data.split(b"\n")[:-1]]
    for row in found:
        validate_row("exchange", row, where="line")
    return found


def test_an_answer_is_kept_with_what_was_asked_and_without_headers(server, client, log):
    answer = client.post(f"{server}/answer", json={"state": [1, 2.5, None]}, headers={"x-note": "a header"}).json()
    (row,) = rows(log)
    assert row["exchange_id"] == 1
    assert (row["method"], row["status"], row["omitted"], row["error_type"]) == ("POST", 200, None, None)
    assert row["request"] == {"state": [1, 2.5, None]}
    assert row["request_sha256"] == sha256_of_json(row["request"])
    assert row["response"] == answer
    assert "a header" not in log.path.read_text()
    assert log.ledger == [
        {
            "exchange_id": 1,
            "status": 200,
            "error_type": None,
            "omitted": None,
            "elapsed_s": row["elapsed_s"],
            "response_model": "loopback-1",
            "usage": {"input_tokens": 3, "output_tokens": 5},
        }
    ]


@pytest.mark.parametrize(
    ("path", "status", "omitted"),
    [
        ("status/429", 429, "unsuccessful status"),
        ("status/500", 500, "unsuccessful status"),
        ("status/301", 301, "unsuccessful status"),
        ("garbage", 200, "not JSON"),
        ("deep", 200, "not JSON"),
        ("list", 200, "not a JSON object"),
    ],
)
def test_a_body_that_is_no_answer_is_omitted_and_its_status_and_request_stay(
    server, client, log, path, status, omitted
):
    client.post(f"{server}/{path}", json={"q": 1}, headers={"authorization": f"Bearer {KEY}"})
    (row,) = rows(log)
    assert (row["status"], row["omitted"], row["response"], row["request"]) == (status, omitted, None, {"q": 1})
    assert KEY not in log.path.read_text()


@pytest.mark.parametrize(
    ("path", "error", "status"), [("cut", "RemoteProtocolError", 200), ("slow", "ReadTimeout", None)]
)
def test_a_transport_that_fails_leaves_a_line_and_the_client_its_error(server, log, path, error, status):
    client = httpx.Client(transport=RecordingTransport(log), timeout=0.3)
    with client, pytest.raises(getattr(httpx, error)):
        client.post(f"{server}/{path}", json={"q": 1})
    (row,) = rows(log)
    assert (row["error_type"], row["status"], row["response"]) == (error, status, None)


def test_nobody_listening_is_an_exchange_without_response(log):
    with httpx.Client(transport=RecordingTransport(log)) as client, pytest.raises(httpx.ConnectError):
        client.post("http://127.0.0.1:9/answer", json={})
    (row,) = rows(log)
    assert (row["error_type"], row["status"], row["omitted"]) == ("ConnectError", None, "no response")


def test_what_json_cannot_hold_is_tagged_and_never_fatal(server, client, log):
    for path in ("nan", "empty-usage", "surrogate"):
        client.post(f"{server}/{path}", json={})
    nan, empty, surrogate = (row["response"] for row in rows(log))
    assert nan["usage"] == {"cost": {"float": "NaN"}, "more": [{"float": "Infinity"}, {"float": "-Infinity"}]}
    assert nan["id"] == {"int": "9007199254740993"}
    assert empty["usage"] is None
    assert surrogate["model"] == {"text": "6c6f6e6520eda080"}
    # What a body really holds cannot be taken for a tag.
    assert surrogate["\\uedbfbf"] == {"dict": {"float": "NaN"}}


def test_a_compressed_answer_is_kept_decoded(server, client, log):
    answer = client.post(f"{server}/gzip", json={"q": "é"}).json()
    assert rows(log)[0]["response"] == answer


STREAMED = [{"data": {"n": 0}}, {"event": "note", "id": "7", "data": "two\nlines"}, {"data": "[DONE]"}]


def test_a_stream_is_kept_event_by_event(server, client, log):
    with client.stream("POST", f"{server}/stream", json={}) as response:
        assert sum(map(len, response.iter_bytes())) > 50
    (row,) = rows(log)
    assert (row["events"], row["response"], row["omitted"]) == (STREAMED, None, None)


def test_a_stream_that_is_cut_keeps_the_events_that_came(server, client, log):
    with pytest.raises(httpx.RemoteProtocolError):
        client.post(f"{server}/cut-stream", json={})
    (row,) = rows(log)
    assert (row["events"], row["omitted"], row["error_type"]) == (STREAMED[:2], "cut off", "RemoteProtocolError")


def test_a_stream_that_the_reader_leaves_is_cut_off(server, client, log):
    with client.stream("POST", f"{server}/stream", json={}) as response:
        next(response.iter_raw())
    (row,) = rows(log)
    assert (row["omitted"], row["error_type"]) == ("cut off", None)


def test_the_async_transport_writes_the_same(server, log):
    async def ask():
        async with httpx.AsyncClient(transport=AsyncRecordingTransport(log)) as client:
            await client.post(f"{server}/answer", json={"q": 1})
            async with client.stream("POST", f"{server}/stream", json={}) as response:
                async for _ in response.aiter_bytes():
                    pass
            with pytest.raises(httpx.RemoteProtocolError):
                await client.post(f"{server}/cut-stream", json={})

    asyncio.run(ask())
    answer, stream, cut = rows(log)
    assert answer["response"]["asked"] == {"q": 1}
    assert stream["events"] == STREAMED
    assert (cut["events"], cut["error_type"]) == (STREAMED[:2], "RemoteProtocolError")


def test_the_budget_is_exact_over_threads_and_an_attempt_too_many_is_never_sent(server, tmp_path):
    log = ExchangeLog(tmp_path / "log.jsonl", Budget(20), Redactor({}))
    refused = []

    def ask(number):
        with httpx.Client(transport=RecordingTransport(log)) as client:
            try:
                client.post(f"{server}/{'status/500' if number % 3 else 'answer'}", json={"number": number})
            except BudgetExceededError as error:
                refused.append(error)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(30)))
    assert sorted(row["exchange_id"] for row in rows(log)) == list(range(1, 21))
    assert len(refused) == 10
    assert len(log.ledger) == 20
    assert "--max-api-calls" in str(refused[0])


def test_a_budget_on_disk_goes_on_where_it_was_and_forgets_nothing(tmp_path):
    state = tmp_path / "budget.json"
    first = Budget(5, state=state)
    assert [first.reserve() for _ in range(3)] == [1, 2, 3]
    second = Budget(5, state=state)
    assert [second.reserve(), second.reserve()] == [4, 5]
    with pytest.raises(BudgetExceededError):
        second.reserve()
    state.write_text('{"reserved": true}')
    with pytest.raises(DamagedError, match="remove it"):
        Budget(5, state=state)


@pytest.mark.parametrize("attempts", [0, -1, True, 2.0, "5"])
def test_a_budget_that_is_no_number_is_refused(attempts):
    with pytest.raises(UsageError, match="cap on HTTP attempts"):
        Budget(attempts)


def spellings(secret):
    data = secret.encode()
    quoted = urllib.parse.quote(secret, safe="")
    return {
        "raw": secret,
        "JSON": json.dumps(secret)[1:-1],
        "JSON in UTF-8": json.dumps(secret, ensure_ascii=False)[1:-1],
        "JSON in JSON": json.dumps(json.dumps(secret)),
        "JSON with escaped slashes": json.dumps(secret).replace("/", "\\/"),
        "URL": quoted,
        "URL in lower case": quoted.lower() if quoted.lower() != secret.lower() else quoted,
        "URL with safe slashes": urllib.parse.quote(secret),
        "form": urllib.parse.quote_plus(secret),
        "URL in URL": urllib.parse.quote(quoted),
        "base64": base64.b64encode(data).decode(),
        "base64 for URLs": base64.urlsafe_b64encode(data).decode(),
        "base64 of user and password": base64.b64encode(b"user:" + data).decode(),
        "base64 one byte in": base64.b64encode(b"x" + data + b"more").decode(),
        "base64 two bytes in": base64.b64encode(b"xy" + data + b"more").decode(),
        "hex": data.hex(),
        "hex in upper case": data.hex().upper(),
    }


@pytest.mark.parametrize("secret", [KEY, ODD_KEY, "pass word&<tag>'\"", "日本語のパスワード鍵"])
@pytest.mark.parametrize("spelling", spellings(KEY))
def test_a_secret_is_removed_in_every_spelling(secret, spelling):
    text = spellings(secret)[spelling]
    if spelling == "URL in lower case" and text.lower() != text:
        pytest.skip("the letters of this secret would change")
    redactor = Redactor({"KEY": secret})
    redacted = redactor.redact({"a": [f"before {text} after"], f"key {text}": 1})
    assert redactor.places == 2
    assert MARK in redacted["a"][0]
    assert redacted["a"][0].startswith("before ")
    assert redacted["a"][0].endswith(" after")
    left = redacted["a"][0].removeprefix("before ").removesuffix(" after").replace(MARK, "")
    assert len(left) <= 12  # what was around it in base64
    assert len(redacted) == 2


def test_a_request_without_its_secret_has_the_same_digest_whatever_the_secret(tmp_path):
    digests = set()
    for number, secret in enumerate((KEY, ODD_KEY, "another-secret")):
        log = ExchangeLog(tmp_path / f"{number}.jsonl", Budget(1), Redactor({"KEY": secret}))
        body = json.dumps({"question": "left or right", "token": secret}).encode()
        row = log.append(1, method="POST", url="http://x/", request=body, status=200, response={}, elapsed_s=0.0)
        digests.add(row["request_sha256"])
    assert len(digests) == 1


def test_numbers_that_hold_a_secret_are_texts_with_a_mark_and_others_stay_numbers():
    redacted = Redactor({"PIN": "20261201"}).redact({"id": 120261201, "n": 5, "x": 0.5, "t": True, "none": None})
    assert redacted == {"id": f"1{MARK}", "n": 5, "x": 0.5, "t": True, "none": None}


def test_keys_that_differ_in_a_secret_only_stay_apart():
    redacted = Redactor({"A": "secret-one", "B": "secret-two"}).redact({"secret-one": 1, "secret-two": 2})
    assert sorted(redacted.values()) == [1, 2]


@pytest.mark.parametrize("secret", ["", "0", "200", "short77"])
def test_a_secret_too_short_is_refused_without_being_told(secret):
    with pytest.raises(UsageError) as caught:
        Redactor({"MY_KEY": secret})
    assert "MY_KEY" in str(caught.value)
    assert not secret or f"{secret} " not in str(caught.value)


def test_a_canary_in_every_place_is_in_no_file(server, log, client, tmp_path):
    for secret in (KEY, ODD_KEY):
        quoted = urllib.parse.quote(secret, safe="")
        client.post(
            f"{server}/answer?key={quoted}",
            json={"model": secret, "messages": [{"content": f"my key is {secret}"}], secret: 1},
            headers={"authorization": f"Bearer {quoted}", "cookie": f"session={quoted}"},
        )
        client.post(f"{server}/status/401?key={quoted}", content=f"key={quoted}", headers={"authorization": quoted})
    assert log.redactor.places >= 10
    text = log.path.read_text()
    for secret in (KEY, ODD_KEY):
        for spelling, spelled in spellings(secret).items():
            assert spelled not in text, spelling


def test_lines_of_many_threads_are_whole(log):
    def write(number):
        for _ in range(50):
            exchange_id = log.budget.reserve()
            body = json.dumps({"number": number, "text": "x" * 5000}).encode()
            log.append(
                exchange_id, method="POST", url="http://x/", request=body, status=200, response={}, elapsed_s=0.0
            )

    log.budget.attempts = 1000
    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(row["exchange_id"] for row in rows(log)) == list(range(1, 401))


@pytest.mark.parametrize(
    ("text", "events"),
    [
        ("", []),
        ("data: 1\n\n", [{"data": 1}]),
        ("data: 1\r\n\r\ndata:2\r\n\r\n", [{"data": 1}, {"data": 2}]),
        ("data: 1\n", []),
        ("data\n\n", [{"data": ""}]),
        ("data: a\u2028b\n\n", [{"data": "a\u2028b"}]),
    ],
)
def test_events_are_read_as_the_standard_says(text, events):
    assert parse_events(text) == events
