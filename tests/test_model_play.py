"""A model chooses actions over real HTTP on loopback, and a replay proves offline that they follow from its answers."""

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import urllib.parse
from contextlib import contextmanager
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from recorder import RecordEpisode
from recorder.cli import main as record
from recorder.errors import UsageError
from recorder.exchanges import ledger_entry, sum_ledger
from recorder.programs import ActionProgram, AnswerError, select
from recorder.records import digest_of, encode_document, encode_line, sha256_of_json
from recorder.redaction import Redactor
from replay.cli import inspect_main, replay_main
from replay.opening import replay_episode

KEY = 'sk-canary/"0123456789\\é'
PUSHES = {"right": [1.0, 0.0], "left": [-1.0, 0.0], "up": [0.0, -1.0], "down": [0.0, 1.0]}
PROGRAM = {
    "schema_version": "action-choice-1",
    "name": "push about",
    "guidance": "Move the pusher so that the block reaches its goal.",
    "actions": [{"name": name, "action": action, "meaning": f"go {name}"} for name, action in PUSHES.items()],
}
POLE = {
    "schema_version": "action-choice-1",
    "name": "pole",
    "guidance": "Keep the pole up.",
    "actions": [
        {"name": "left", "action": 0, "meaning": "push the cart to the left"},
        {"name": "right", "action": 1, "meaning": "push the cart to the right"},
    ],
}


@contextmanager
def serving(*faults):
    script = Path(__file__).with_name("model_server.py")
    command = [sys.executable, str(script), *faults]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}/v1"
        finally:
            process.kill()


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("MODEL_KEY", KEY)


def play(url, out, *, env="CartPole-v1", program=None, protocol="chat", calls=200, decisions=8, more=()):
    path = out.with_suffix(".program.json")
    path.write_text(json.dumps(program or POLE))
    arguments = ["--env", env, "--model", "loop-1", "--base-url", url, "--protocol", protocol, "--program", str(path)]
    arguments += ["--max-api-calls", str(calls), "--decisions", str(decisions), "--out", str(out)]
    return record(["play", *arguments, "--api-key-env", "MODEL_KEY", "--seed", "3", *more])


def exchanges(out):
    return [json.loads(line) for line in (out / "model-exchanges.jsonl").read_bytes().splitlines()]


@pytest.mark.parametrize("protocol", ["chat", "decisions"])
def test_push_t_is_played_by_a_model_and_proved_with_the_server_gone(protocol, tmp_path, capsys):
    out = tmp_path / "run"
    with serving("7=429", "20=503") as url:
        code = play(url, out, env="recorder/LewmPushT-v1", program=PROGRAM, protocol=protocol, decisions=100)
    assert code == 0
    assert "102 HTTP attempts (100 x 200, 1 x 429, 1 x 503)" in capsys.readouterr().err
    ledger = json.loads((out / "api-ledger.json").read_bytes())
    assert ledger["totals"]["usage"] == {"input_tokens": 300, "output_tokens": 500}
    assert [row["exchange_id"] for row in exchanges(out)] == list(range(1, 103))
    assert (
        replay_main(["--episode", str(out / "episode-0000"), "--out", str(tmp_path / "r"), "--policy", "--json"]) == 0
    )
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"] == "verified"
    assert [report["compared"][name] for name in ("predictions", "exchanges", "policy_actions")] == [100] * 3


def test_pong_is_played_by_a_model_that_sees_its_objects(tmp_path):
    pytest.importorskip("ale_py")
    actions = [
        {"name": name, "action": action, "meaning": name} for name, action in (("hold", 0), ("up", 2), ("down", 3))
    ]
    out = tmp_path / "run"
    with serving() as url:
        more = ["--track", "objects"]
        assert play(url, out, env="ALE/Pong-v5", program={**POLE, "actions": actions}, decisions=100, more=more) == 0
    verdict = replay_episode(out / "episode-0000")
    assert (verdict.name, verdict.compared["exchanges"]) == ("verified", 100)


def test_several_episodes_share_one_log_and_each_is_proved_alone(tmp_path):
    out = tmp_path / "run"
    with serving() as url:
        assert play(url, out, decisions=60) == 0
    episodes = sorted(path for path in out.iterdir() if path.is_dir())
    assert len(episodes) > 1
    for episode in episodes:
        code = replay_main(["--episode", str(episode), "--out", str(tmp_path / episode.name), "--policy"])
        assert code == 0
    assert sum(replay_episode(episode).compared["exchanges"] for episode in episodes) == len(exchanges(out))


# What the fifth answer is, the exit code, what is said, and how many attempts there are then.
FAULTS = {
    "429": (0, "", 9),
    "500": (0, "", 9),
    "cut": (0, "", 9),
    "cut_stream": (0, "", 9),
    "nan": (0, "", 8),
    "usage": (0, "", 8),
    "garbage": (4, "not JSON", 5),
    "list": (4, "not a JSON object", 5),
    "deep": (4, "not JSON", 5),
    "model": (4, "from 'another-model', not from 'loop-1'", 5),
    "sum": (4, "sum to", 5),
}


@pytest.mark.parametrize("protocol", ["chat", "decisions"])
@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_ends_as_it_should_and_what_there_is_verifies(fault, protocol, tmp_path, capsys):
    expected, said, attempts = FAULTS[fault]
    if fault == "sum" and protocol == "chat":
        said = "sum to"
    out = tmp_path / "run"
    with serving(f"5={fault}") as url:
        assert play(url, out, protocol=protocol) == expected
    assert said in capsys.readouterr().err
    assert len(exchanges(out)) == len(json.loads((out / "api-ledger.json").read_bytes())["attempts"]) == attempts
    summary = json.loads((out / "episode-0000" / "summary.json").read_bytes())
    assert summary["decisions"] == (8 if expected == 0 else 4)
    assert summary["end_reason"] == ("decision_limit" if expected == 0 else "error")
    verdict = replay_episode(out / "episode-0000")
    assert verdict.name == ("verified" if expected == 0 else "verified prefix")
    assert verdict.compared["exchanges"] == summary["decisions"]


def test_the_budget_stops_before_an_attempt_too_many(tmp_path, capsys):
    out = tmp_path / "run"
    with serving("2=500", "3=500") as url:
        assert play(url, out, calls=6) == 4
    assert "all 6 HTTP attempts are used up" in capsys.readouterr().err
    assert len(exchanges(out)) == 6
    assert replay_episode(out / "episode-0000").decisions == 4


def test_a_server_that_is_not_there_takes_no_action(tmp_path, capsys):
    out = tmp_path / "run"
    assert play("http://127.0.0.1:9/v1", out) == 4
    assert "no response: ConnectError (attempt 3)" in capsys.readouterr().err
    assert [row["error_type"] for row in exchanges(out)] == ["ConnectError"] * 3
    assert json.loads((out / "episode-0000" / "summary.json").read_bytes())["decisions"] == 0


def test_the_key_is_in_no_file_though_everything_echoes_it(tmp_path, capsys):
    out = tmp_path / "run"
    quoted = urllib.parse.quote(KEY, safe="")
    program = {**POLE, "guidance": f"My key is {KEY}."}
    with serving("4=model") as url:
        more = ["--response-model", KEY, "--model", KEY]
        code = play(f"{url}/{quoted}", out, program=program, more=more)
    assert code == 4
    said = capsys.readouterr()
    data = KEY.encode()
    spellings = {KEY, json.dumps(KEY)[1:-1], json.dumps(KEY, ensure_ascii=False)[1:-1], quoted, urllib.parse.quote(KEY)}
    spellings |= {base64.b64encode(data).decode(), data.hex()}
    files = [path for path in out.rglob("*") if path.is_file()]
    assert len(files) >= 5
    for text in (said.out, said.err, *(path.read_text() for path in files)):
        for spelled in spellings:
            assert spelled not in text
    assert json.loads((out / "api-ledger.json").read_bytes())["totals"]["redacted_places"] > 5


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("model") / "run"
    os.environ["MODEL_KEY"] = KEY
    with serving("3=429") as url:
        assert play(url, out, program=PROGRAM, env="recorder/LewmPushT-v1", decisions=6) == 0
    return out


def change_line(path, number, change):
    rows = [json.loads(line) for line in path.read_bytes().splitlines()]
    change(rows[number])
    path.write_bytes(b"".join(map(encode_line, rows)))


def set_at(*keys):
    *path, last, value = keys

    def change(row):
        for key in path:
            row = row[key]
        assert row[last] != value
        row[last] = value

    return change


def redo_digests(episode):
    summary = json.loads((episode / "summary.json").read_bytes())
    for name in summary["files"]:
        data = (episode / name).read_bytes()
        summary["files"][name] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    summary["digest"] = digest_of(summary)
    (episode / "summary.json").write_bytes(encode_document(summary))


def reword_answer(row):
    message = row["response"]["choices"][0]["message"]
    answer = json.loads(message["content"])
    names = list(answer["probabilities"])
    answer["probabilities"] = dict(zip(names, reversed(answer["probabilities"].values()), strict=True))
    assert json.dumps(answer) != message["content"]
    message["content"] = json.dumps(answer)


def drop_line(path, number):
    lines = path.read_bytes().splitlines(keepends=True)
    del lines[number]
    path.write_bytes(b"".join(lines))


def double_line(path, number):
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines, lines[number]]))


LOG, LEDGER, ROWS = "model-exchanges.jsonl", "api-ledger.json", "episode-0000/transitions.jsonl"
# Exchange 3 failed, so that decision 2 used exchange 4, in line 3 of the log.
CHANGES = {
    "request": (LOG, 3, set_at("request", "messages", 0, "content", "Do as you like."), 3, "digest says"),
    "request and its digest": (LOG, 3, "request with digest", 1, "exchange.request"),
    "request digest": (LOG, 3, set_at("request_sha256", "0" * 64), 3, "digest says"),
    "answer": (LOG, 3, reword_answer, 1, "prediction"),
    "answer model": (LOG, 3, set_at("response", "model", "loop-2"), 3, "does not say what"),
    "usage": (LOG, 3, set_at("response", "usage", "input_tokens", 4), 3, "does not say what"),
    "response removed": (LOG, 3, set_at("response", None), 3, "does not say what"),
    "url": (LOG, 3, set_at("url", "http://127.0.0.1:1/v1/chat/completions"), 1, "exchange.url"),
    "method": (LOG, 3, set_at("method", "PUT"), 1, "exchange.method"),
    "events beside the response": (LOG, 3, set_at("events", [1]), 1, "exchange.events"),
    "answer omitted": (LOG, 3, set_at("omitted", "cut off"), 3, "does not say what"),
    "failed attempt answered": (LOG, 2, "cherry-picked", 1, "exchange"),
    "id as a float": (LOG, 3, set_at("exchange_id", 4.5), 3, "exchange"),
    "ledger totals": (LEDGER, None, set_at("totals", "usage", "input_tokens", 1), 3, "does not say what"),
    "ledger cap": (LEDGER, None, set_at("max_api_calls", 7), 3, "does not say what"),
    "prediction of true": (ROWS, 0, lambda row: row["prediction"].update(exchange_id=True), 1, "exchange_id"),
    "status": (LOG, 3, set_at("status", 201), 3, "does not say what"),
    "elapsed": (LOG, 3, set_at("elapsed_s", 9.0), 3, "does not say what"),
    "error type": (LOG, 3, set_at("error_type", "ReadTimeout"), 3, "does not say what"),
    "id": (LOG, 3, set_at("exchange_id", 40), 3, "contiguous"),
    "id of another": (LOG, 3, set_at("exchange_id", 2), 3, "a second time"),
    "line removed": (LOG, 3, drop_line, 3, "contiguous"),
    "last line removed": (LOG, -1, drop_line, 3, "does not say what"),
    "line doubled": (LOG, 3, double_line, 3, "a second time"),
    "ledger status": (LEDGER, None, set_at("attempts", 3, "status", 500), 3, "does not say what"),
    "ledger usage": (LEDGER, None, set_at("attempts", 3, "usage", None), 3, "does not say what"),
    "ledger entry removed": (LEDGER, None, lambda document: document["attempts"].pop(), 3, "does not say what"),
    "prediction chosen": (ROWS, 2, set_at("prediction", "chosen", "nobody"), 1, "prediction['chosen']"),
    "prediction probabilities": (ROWS, 2, set_at("prediction", "probabilities", "left", 0.5), 1, "['probabilities']"),
    "prediction model": (ROWS, 2, set_at("prediction", "response_model", "loop-2"), 1, "prediction['response_model']"),
    "prediction usage": (ROWS, 2, set_at("prediction", "usage", "input_tokens", 9), 1, "prediction['usage']"),
    "prediction exchange": (ROWS, 2, set_at("prediction", "exchange_id", 5), 1, "exchange.request"),
    "prediction of a failed exchange": (ROWS, 2, set_at("prediction", "exchange_id", 3), 1, "exchange.omitted"),
    "prediction of none": (ROWS, 2, set_at("prediction", "exchange_id", 70), 1, "exchange_id"),
    "prediction removed": (ROWS, 2, set_at("prediction", None), 1, "exchange_id"),
    "prediction of the exchange before": (ROWS, 2, set_at("prediction", "exchange_id", 2), 1, "one after those"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_of_exchange_ledger_or_prediction_is_caught(name, run, tmp_path):
    file, number, change, code, said = CHANGES[name]
    copy = shutil.copytree(run, tmp_path / "copy")
    path = copy / file
    if number is None:
        document = json.loads(path.read_bytes())
        change(document)
        path.write_bytes(encode_document(document))
    elif change in {drop_line, double_line}:
        change(path, number)
    elif change == "request with digest":

        def reword(row):
            row["request"]["messages"][0]["content"] = "Do as you like."
            row["request_sha256"] = sha256_of_json(row["request"])

        change_line(path, number, reword)
    elif change == "cherry-picked":

        def answer_too(row):
            row.update(status=200, omitted=None, response={"model": "another", "usage": None})

        change_line(path, number, answer_too)
        ledger = json.loads((copy / LEDGER).read_bytes())
        ledger["attempts"] = [ledger_entry(row) for row in exchanges(copy)]
        ledger["totals"] |= sum_ledger(ledger["attempts"])
        (copy / LEDGER).write_bytes(encode_document(ledger))
    else:
        change_line(path, number, change)
    redo_digests(copy / "episode-0000")
    verdict = replay_episode(copy / "episode-0000")
    assert verdict.exit_code == code
    found = [*verdict.faults, *map(str, verdict.mismatches)]
    assert any(said in text for text in found), found
    if code == 1:
        assert {mismatch.place.decision for mismatch in verdict.mismatches} == {
            0 if name == "prediction of true" else 2
        }


def test_an_action_that_the_answer_did_not_choose_is_caught_though_the_simulator_agrees(tmp_path):
    out = tmp_path / "run"
    with serving() as url:
        assert play(url, out, decisions=1) == 0
    episode = out / "episode-0000"
    row = json.loads((episode / "transitions.jsonl").read_bytes())
    other = {"left": 1, "right": 0}[row["prediction"]["chosen"]]
    with RecordEpisode(gymnasium.make("CartPole-v1"), tmp_path / "forged") as env:
        env.reset(seed=3)
        env.step(np.int64(other))
    for name in ("transitions.jsonl", "frames.jsonl"):
        shutil.copy(tmp_path / "forged" / "episode-0000" / name, episode / name)
    change_line(episode / "transitions.jsonl", 0, lambda forged: forged.update(prediction=row["prediction"]))
    redo_digests(episode)
    verdict = replay_episode(episode)
    assert (verdict.exit_code, verdict.mismatches[0].field) == (1, "action")


def test_a_missing_log_is_damage_and_not_silence(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy")
    (copy / LOG).unlink()
    verdict = replay_episode(copy / "episode-0000")
    assert verdict.exit_code == 3
    assert "is missing, beside the episode and at the root of its run" in verdict.faults[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": ""}, "name must be text"),
        ({"guidance": "x" * 5000}, "guidance must be text"),
        ({"schema_version": "2"}, "is known"),
        ({"more": 1}, "needs exactly"),
        ({"actions": []}, "list of 2"),
        ({"actions": [POLE["actions"][0]] * 2}, "two actions have one name"),
        ({"actions": [{"name": "a"}, {"name": "b"}]}, r"actions\[0\] needs exactly"),
    ],
)
def test_a_program_that_is_none_is_refused_with_its_field(change, said):
    with pytest.raises(UsageError, match=said):
        ActionProgram.from_json({**POLE, **change})


def test_a_changed_program_has_another_digest():
    digests = {ActionProgram.from_json({**POLE, "name": name}).sha256 for name in ("a", "b")}
    assert len(digests) == 2


def answer(probabilities, choice="left", model="m"):
    question = {"type": "choice", "choice": choice, "probabilities": probabilities}
    return {"model": model, "answers": {"next_action": question}}


@pytest.mark.parametrize(
    ("response", "said"),
    [
        ([], "no JSON object"),
        ({"answers": {}}, "names no model"),
        (answer({"left": 1, "right": 0}, model=""), "names no model"),
        ({"model": "m"}, "answers None"),
        ({"model": "m", "answers": {"other": {}}}, "not 'next_action' alone"),
        (answer({"left": 1}), "are of"),
        (answer({"left": 1, "right": 0, "up": 0}), "are of"),
        (answer({"left": "0.5", "right": 0.5}), "no number from 0 to 1"),
        (answer({"left": True, "right": 0}), "no number from 0 to 1"),
        (answer({"left": float("nan"), "right": 1}), "no number from 0 to 1"),
        (answer({"left": 1.2, "right": -0.2}), "no number from 0 to 1"),
        (answer({"left": 0.5, "right": 0.4}), "sum to 0.9"),
        (answer({"left": 0.5001, "right": 0.4897}), "sum to"),
        (answer({"left": 0.5, "right": 0.5}, choice="up"), "none of the actions"),
        (answer({"left": 0.5, "right": 0.5}, choice=["left"]), "none of the actions"),
    ],
)
def test_an_answer_that_was_not_asked_for_is_refused_with_its_place(response, said):
    with pytest.raises(AnswerError, match=said):
        ActionProgram.from_json(POLE).decode("decisions", response)


def test_rounded_probabilities_are_accepted_normalised_and_kept_as_reported():
    prediction = ActionProgram.from_json(POLE).decode(
        "decisions", answer({"left": 0.33, "right": 0.66}, choice="right")
    )
    assert prediction["reported_probabilities"] == {"left": 0.33, "right": 0.66}
    assert sum(prediction["probabilities"].values()) == pytest.approx(1)
    assert (prediction["chosen"], prediction["choice_matches_probabilities"]) == ("right", True)


@pytest.mark.parametrize(
    ("probabilities", "choice", "chosen"),
    [
        ({"a": 0.46, "b": 0.47}, "a", "b"),
        ({"a": 0.5, "b": 0.5}, "b", "b"),
        ({"a": 0.5, "b": 0.5 + 1e-12}, "a", "a"),
        ({"a": 0.2, "b": 0.4, "c": 0.4}, "a", "b"),
    ],
)
def test_the_most_probable_action_is_chosen_and_of_equals_the_stated_one(probabilities, choice, chosen):
    assert select(probabilities, choice) == chosen


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--policy", "other:policy"], "leave out --policy"),
        (["--api-key-env", "NOT_THERE"], "NOT_THERE is not set"),
        (["--program", "/nowhere.json"], "does not exist"),
    ],
)
def test_what_is_missing_is_said_before_anything_is_asked(more, said, tmp_path, capsys):
    assert play("http://127.0.0.1:9/v1", tmp_path / "run", more=more) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def inspect(episode, capsys, *more):
    assert inspect_main(["--episode", str(episode), "--decision", "2", "--json", *more]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_decision_shows_its_exchange_and_where_that_was_found(run, tmp_path, capsys):
    shown = inspect(run / "episode-0000", capsys)
    assert shown["input_origin"] == "recorded at the root of the run"
    assert shown["request"] == exchanges(run)[3]["request"]
    assert shown["response"]["model"] == "loop-1"
    copy = shutil.copytree(run, tmp_path / "copy")
    (copy / LOG).rename(copy / "episode-0000" / LOG)
    assert inspect(copy / "episode-0000", capsys)["input_origin"] == "recorded"
    (copy / "episode-0000" / LOG).rename(tmp_path / "elsewhere.jsonl")
    shown = inspect(copy / "episode-0000", capsys)
    assert (shown["input_origin"], shown["request"]) == ("recorded but missing: no log holds exchange 4", None)
    shown = inspect(copy / "episode-0000", capsys, "--exchanges", str(tmp_path / "elsewhere.jsonl"))
    assert shown["input_origin"] == "recorded, in the named log"
    nowhere = ["--episode", str(copy / "episode-0000"), "--decision", "2", "--exchanges", str(tmp_path / "nowhere")]
    assert inspect_main(nowhere) == 2


@pytest.mark.parametrize(
    ("change", "label"),
    [
        (set_at("response", None), "recorded, but the attempt failed"),
        (set_at("exchange_id", 3), "recorded but missing: no log holds exchange 4"),
        ("double", "recorded, but more than one exchange has its id: none is shown"),
    ],
)
def test_an_exchange_that_is_not_what_it_should_be_is_not_passed_off_as_one(change, label, run, tmp_path, capsys):
    copy = shutil.copytree(run, tmp_path / "copy")
    if change == "double":
        double_line(copy / LOG, 3)
    else:
        change_line(copy / LOG, 3, change)
    assert inspect(copy / "episode-0000", capsys)["input_origin"] == label


def test_a_prediction_without_exchange_gets_a_request_that_says_it_is_reconstructed(run, tmp_path, capsys):
    copy = shutil.copytree(run, tmp_path / "copy")
    change_line(copy / ROWS, 2, lambda row: row["prediction"].pop("exchange_id"))
    redo_digests(copy / "episode-0000")
    shown = inspect(copy / "episode-0000", capsys)
    assert shown["input_origin"] == "reconstructed from program and observation, not recorded"
    assert shown["request"] == exchanges(run)[3]["request"]
    assert shown["response"] is None


def test_a_decision_reads_at_a_glance_with_its_exchange(run, capsys):
    assert inspect_main(["--episode", str(run / "episode-0000"), "--decision", "2"]) == 0
    shown = capsys.readouterr().out
    assert "recorded at the root of the run" in shown
    assert "response" in shown


def test_a_run_whose_program_was_taken_out_of_the_manifest_is_damaged(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy")
    path = copy / "episode-0000" / "manifest.json"
    manifest = json.loads(path.read_bytes())
    del manifest["policy"]["program"]
    path.write_bytes(encode_document({**manifest, "digest": digest_of(manifest)}))
    redo_digests(copy / "episode-0000")
    verdict = replay_episode(copy / "episode-0000")
    assert verdict.exit_code == 3
    assert "predictions name a question program" in verdict.faults[0]


TORQUES = {
    **POLE,
    "actions": [{"name": str(torque), "action": [torque], "meaning": "turn"} for torque in (0.1, -0.3, 1, 1.7)],
}


@pytest.mark.parametrize("protocol", ["chat", "decisions"])
def test_actions_that_float32_rounds_are_proved_in_float32(protocol, tmp_path):
    out = tmp_path / "run"
    with serving() as url:
        assert play(url, out, env="Pendulum-v1", program=TORQUES, protocol=protocol) == 0
    episode = out / "episode-0000"
    assert replay_main(["--episode", str(episode), "--out", str(tmp_path / "r"), "--policy"]) == 0


@pytest.mark.parametrize("action", [0.7, 1.0, True, "1", 2, 2**63, [1]])
def test_an_action_that_the_environment_does_not_have_is_refused_before_anything_is_asked(action, tmp_path, capsys):
    actions = [POLE["actions"][0], {"name": "odd", "action": action, "meaning": "?"}]
    assert play("http://127.0.0.1:9/v1", tmp_path / "run", program={**POLE, "actions": actions}) == 4
    assert "is not in Discrete(2)" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:9/v1",
        "ftp://host/v1",
        "http://",
        "http://user:hunter2@host/v1",
        "http://host/v1?key=x",
        "http://host:hunter2/v1",
    ],
)
def test_a_base_url_that_is_none_or_holds_more_is_refused_without_being_told(url, tmp_path, capsys):
    assert play(url, tmp_path / "run") == 2
    said = capsys.readouterr().err
    assert "the base URL" in said
    assert "hunter2" not in said
    assert not (tmp_path / "run").exists()


def test_a_key_that_a_server_reads_as_latin_1_is_removed_too():
    key = "sk-canary-é0123456789"
    redactor = Redactor({"KEY": key})
    for spelled in (
        key.encode().decode("latin-1"),
        repr(key.encode()),
        ascii(key),
        "sk\\x2dcanary\\x2d\\xe90123456789",
    ):
        assert "0123456789" not in redactor.redact_text(spelled)


def test_a_long_run_of_backslashes_does_not_stop_a_recording():
    redactor = Redactor({"KEY": "\\\\\\\\a-secret", "OTHER": KEY})
    assert redactor.redact_text("\\" * 100_000) == "\\" * 100_000
