"""The historical layout of Pong: written with the published hashes, read in its generations, and every edit found."""

import errno
import hashlib
import json
import math
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import recorder.cli
import recorder.pong_play
import replay.cli
from golden_data import GOLDEN
from recorder.errors import RecorderError, UsageError
from recorder.exchanges import EXCHANGES
from recorder.limits import Limits
from recorder.pong_play import (
    PongSettings,
    PongStepper,
    canonical_digest,
    describe_protocol,
    encode_historical_line,
    make_pong,
    record_pong,
    split_of,
    write_document,
)
from recorder.pong_policies import RECORDED_NAMES, make_pong_policy
from recorder.records import FRAMES, MANIFEST, SUMMARY, TRANSITIONS
from replay.opening import replay_episode

pytest.importorskip("ale_py", reason="ale-py is not installed")

VERIFIED, DIVERGED, USAGE, DAMAGED, REFUSED = 0, 1, 2, 3, 4

GAME = "ALE/Pong-v5"
PUBLISHED = json.loads((GOLDEN / "atari" / "published.json").read_bytes())
OLD_VERSIONS = {"ale-py": "0.11.2", "gymnasium": "1.3.0", "numpy": "2.5.3"}
SHORT_NAMES = {recorded: name for name, recorded in RECORDED_NAMES.items()}

# A question program and a model's decisions, made up.
PROGRAM = {"schema_version": "action-choice-program-v1", "name": "x", "guidance": "Keep the paddle at the ball."}


def record(out, policy="track-4px", *, seed=26, decisions=12, point_limit=None, settings=None):
    record_pong(
        out,
        settings=settings or PongSettings(),
        policy_name=policy,
        policy=make_pong_policy(policy, seed),
        seed=seed,
        max_decisions=decisions,
        point_limit=point_limit,
    )
    return out


def read(folder, name):
    """A document, or the list of a file's rows."""
    data = (folder / name).read_bytes()
    return json.loads(data) if name.endswith(".json") else [json.loads(line) for line in data.splitlines()]


def write(folder, name, content):
    """Write it as the layout has it."""
    if name.endswith(".json"):
        write_document(folder / name, content)
    else:
        (folder / name).write_bytes(b"".join(map(encode_historical_line, content)))


def bytes_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def play_longer(out, original, *, decisions=14, point_limit=None, holds=None):
    """An episode as the emulator gives it, with no limit of its own and some holds of another length."""
    shutil.copytree(original, out)
    manifest = read(out, MANIFEST)
    env = make_pong(PongSettings())
    stepper = PongStepper(env, limits=Limits(points=point_limit))
    observation = stepper.reset(manifest["seed"])
    policy = make_pong_policy(manifest["policy"], manifest["seed"])
    transitions, frames = [], []
    for decision in range(decisions):
        env.env.hold_frames = (holds or {}).get(decision, 4)
        transition, rows = stepper.step(*policy(observation))
        observation = transition["next_observation"]
        transitions.append(transition)
        frames += rows
    transitions[-1]["truncated"] = True
    write(out, TRANSITIONS, transitions)
    write(out, FRAMES, frames)
    write(out, SUMMARY, {**stepper.summarize("complete"), "truncated": True, "end_reason": "decision_limit"})
    env.close()
    return out


def ask_model(out, original):
    """The episode as it would be if a model had chosen its actions."""
    shutil.copytree(original, out)
    manifest = {**read(out, MANIFEST), "policy": "jev:x", "question_program": PROGRAM}
    write(out, MANIFEST, manifest)
    rows = read(out, TRANSITIONS)
    for row in rows:
        probabilities = {str(action): 0.75 if action == row["action"] else 0.05 for action in range(6)}
        row["prediction"] = {
            "backend": "jev",
            "requested_model": "jev-1.13.0",
            "response_model": "jev-1.13.0",
            "program_hash": canonical_digest(PROGRAM),
            "usage": {"input_tokens": 1000, "output_tokens": 10},
            "elapsed_seconds": 0.5,
            "exchange_id": row["decision"] + 1,
            "prediction_type": "action-choice",
            "selection_rule": "probability-argmax-provider-tie-v1",
            "chosen_action": row["action"],
            "action_probabilities": probabilities,
            "choice_answer": {"choice": "NOOP", "confidence": 0.75},
        }
    write(out, TRANSITIONS, rows)
    write(out, SUMMARY, {**read(out, SUMMARY), "backend": "jev", "api_attempts": 12})
    return out


def leave_open(out, original, *, decisions=9, orphans=0):
    """What is left of the episode when the process is killed after some decisions and some raw frames."""
    shutil.copytree(original, out)
    (out / SUMMARY).unlink()
    write(out, TRANSITIONS, read(out, TRANSITIONS)[:decisions])
    write(out, FRAMES, read(out, FRAMES)[: 4 * decisions + orphans])
    return out


def interrupt(out, original):
    """What is left of the episode when its policy raises in the tenth decision."""
    leave_open(out, original)
    counted = {"decisions": 9, "raw_frames": 36, "truncated": False, "simulated_seconds": 36 / 60}
    ended = {"status": "incomplete", "end_reason": "error", "error_type": "RuntimeError"}
    write(out, SUMMARY, {**read(original, SUMMARY), **counted, **ended})
    return out


@pytest.fixture(scope="module")
def episodes(tmp_path_factory):
    """The episodes that are edited.

    `short` has 12 decisions of 4 raw frames, numbered from 27. `point` has 58 and ends with the second raw frame of
    the last, which scores the only point.
    """
    folder = tmp_path_factory.mktemp("episodes")
    made = {
        "short": record(folder / "short"),
        "point": record(folder / "point", seed=0, decisions=500, point_limit=1),
    }
    short, point = made.values()
    made["model"] = ask_model(folder / "model", short)
    made["open"] = leave_open(folder / "open", short)
    made["orphans"] = leave_open(folder / "orphans", short, orphans=4)
    made["interrupted"] = interrupt(folder / "interrupted", short)
    made["long"] = play_longer(folder / "long", short)
    made["short hold"] = play_longer(folder / "short hold", short, decisions=12, holds={5: 2})
    made["last hold"] = play_longer(folder / "last hold", short, decisions=12, holds={11: 3})
    made["after point"] = play_longer(folder / "after point", point, decisions=60)
    return made


@pytest.fixture
def quick_emulator(monkeypatch):
    """Emulators that put back the state after loading the ROM, which takes 60 ms and happens twice a replay.

    One emulator serves all environments of a sticky probability, of which only one may be in use at a time. Its first
    picture is that of another state, so what looks at the screen before a raw frame was stepped needs a real one.
    """
    atari_env = sys.modules["ale_py.env"].AtariEnv
    load, seed_game = atari_env.load_game, atari_env.seed_game

    def load_game(self):
        sticky, seed = self.ale.getFloat("repeat_action_probability"), self.ale.getInt("random_seed")
        self.ale = EMULATORS.setdefault(sticky, self.ale)
        if (sticky, seed) not in STATES:
            self.ale.setInt("random_seed", seed)
            load(self)
            STATES[sticky, seed] = self.ale.cloneState(include_rng=True)
        self.ale.restoreState(STATES[sticky, seed])

    monkeypatch.setattr(atari_env, "load_game", load_game)
    # Without a seed it draws one, for a ROM that is loaded again before anything is stepped.
    monkeypatch.setattr(atari_env, "seed_game", lambda self, seed=None: seed_game(self, seed or 0))


EMULATORS, STATES = {}, {}
QUICK = pytest.mark.usefixtures("quick_emulator")


def judge(capsys, tmp_path, folder, *options):
    """Exit code of the command, and all that it says."""
    before = bytes_of(folder)
    code = replay.cli.replay_main(["--episode", str(folder), "--out", str(tmp_path / "judged"), *options])
    out, err = capsys.readouterr()
    assert bytes_of(folder) == before
    assert "Traceback" not in out + err
    if err:
        assert (out, err.count("\n")) == ("", 1)
    return code, out + err


# The published episodes


def size_and_hash(path):
    data = path.read_bytes()
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


@pytest.mark.parametrize(
    "published", PUBLISHED["episodes"], ids=[Path(episode["episode"]).name for episode in PUBLISHED["episodes"]]
)
def test_a_published_episode_is_written_with_its_hashes_and_replays_in_a_process_of_its_own(published, tmp_path):
    policy = SHORT_NAMES[published["policy"].split(" ")[0]]
    out = tmp_path / "episode"
    arguments = ["--policy", policy, "--seed", published["seed"], "--decisions", published["max_decisions"]]
    if published["point_limit"] is not None:
        arguments += ["--point-limit", published["point_limit"]]
    command = ["play", "--env", GAME, "--track", "objects", "--layout", "pong-play-v1", *arguments, "--out", out]
    assert recorder.cli.main(list(map(str, command))) == 0
    assert size_and_hash(out / TRANSITIONS) == published["transitions"]
    assert size_and_hash(out / FRAMES) == published["frames"]
    done = subprocess.run(
        [sys.executable, "-m", "replay.cli", "--episode", out, "--out", tmp_path / "judged", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (VERIFIED, "")
    verdict = json.loads(done.stdout)
    summary = read(out, SUMMARY)
    assert verdict["verdict"] == "verified"
    assert verdict["raw_frame_evidence"] == "verified-against-original"
    assert (verdict["decisions"], verdict["raw_frames"]) == (summary["decisions"], summary["raw_frames"])
    assert verdict["total_reward"] == summary["reward"]
    assert f"return {summary['reward']:.0f}" in published["note"]
    assert verdict["not_checked"] == verdict["notes"] == verdict["differences"] == []
    assert size_and_hash(tmp_path / "judged" / FRAMES) == published["frames"]


def test_the_default_protocol_has_the_published_hash_under_the_published_versions():
    protocol = describe_protocol(PongSettings(), OLD_VERSIONS)
    assert protocol["protocol_hash"] == PUBLISHED["protocol"]["protocol_hash"]
    assert protocol["rom_sha256"] == PUBLISHED["protocol"]["rom_sha256"]


@pytest.mark.parametrize("policy", RECORDED_NAMES)
@pytest.mark.parametrize(
    "settings",
    [PongSettings(), PongSettings(hold_frames=1, sticky=0.0, noop_max=0), PongSettings(16, 1.0, 60, "vision")],
    ids=["default", "least", "most"],
)
def test_every_policy_verifies_under_every_kind_of_settings(policy, settings, tmp_path):
    verdict = replay_episode(record(tmp_path / "episode", policy, seed=3, decisions=20, settings=settings))
    assert (verdict.name, verdict.notes, verdict.not_checked) == ("verified", [], [])
    assert verdict.compared["rgb"] == verdict.compared["raw_frames"] == 20 * settings.hold_frames
    assert verdict.compared["totals"] == 12


@pytest.mark.parametrize(("seed", "split"), [(0, "train"), (15, "train"), (26, "development"), (7, "development")])
def test_the_last_digit_of_a_seed_says_its_split(seed, split):
    assert split_of(seed) == split


@pytest.mark.parametrize("seed", [8, 9, 2**31 + 1, 2**32 + 3, 2**64 - 1])
def test_seeds_of_every_size_verify(seed, tmp_path):
    assert replay_episode(record(tmp_path / "episode", seed=seed, decisions=1)).name == "verified"


def test_the_point_that_ends_an_episode_cuts_its_hold(episodes):
    last = read(episodes["point"], TRANSITIONS)[-1]
    assert (last["decision"], last["rewards"], last["raw_frames"]) == (57, [0.0, -1.0], 2)
    assert (last["terminated"], last["truncated"]) == (False, True)
    assert read(episodes["point"], SUMMARY)["end_reason"] == "point_limit"
    assert replay_episode(episodes["point"]).name == "verified"


def test_a_video_has_a_picture_of_the_reset_and_of_every_raw_frame(episodes, tmp_path, capsys):
    code, said = judge(capsys, tmp_path, episodes["short"], "--video")
    assert code == VERIFIED
    assert "49 pictures at 60 Hz" in said
    assert (tmp_path / "judged" / "replay.mp4").stat().st_size > 500


# The three generations


def put_versions(folder, versions):
    manifest = read(folder, MANIFEST)
    protocol = {**manifest["protocol"], "versions": versions}
    del protocol["protocol_hash"]
    write(folder, MANIFEST, {**manifest, "protocol": {**protocol, "protocol_hash": canonical_digest(protocol)}})


def make_generation(folder, *, has_limit, has_frames):
    manifest = read(folder, MANIFEST)
    del manifest["record_files"], manifest["provenance"]
    if not has_limit:
        del manifest["point_limit"]
    if not has_frames:
        (folder / FRAMES).unlink()
    write(folder, MANIFEST, manifest)


GENERATIONS = [
    ({"has_limit": False, "has_frames": False}, "without raw frames and point limit"),
    ({"has_limit": True, "has_frames": False}, "without raw frames"),
    ({"has_limit": True, "has_frames": True}, "with raw frames"),
]


@QUICK
@pytest.mark.parametrize(("parts", "generation"), GENERATIONS, ids=[name for _, name in GENERATIONS])
@pytest.mark.parametrize("base", ["short", "model"])
def test_every_generation_is_read_and_says_what_evidence_its_raw_frames_are(
    base, parts, generation, episodes, tmp_path, capsys
):
    folder = shutil.copytree(episodes[base], tmp_path / "episode")
    make_generation(folder, **parts)
    put_versions(folder, OLD_VERSIONS)
    assert read(folder, MANIFEST)["protocol"]["protocol_hash"] == PUBLISHED["protocol"]["protocol_hash"]

    code, said = judge(capsys, tmp_path, folder)
    assert code == REFUSED
    assert "ale-py 0.11.2 -> 0." in said
    assert "gymnasium 1.3.0 -> 1." in said
    assert "numpy 2.5.3 -> " in said
    assert "--allow-other-versions" in said
    assert not (tmp_path / "judged").exists()

    code, said = judge(capsys, tmp_path, folder, "--allow-other-versions")
    assert code == VERIFIED
    assert said.startswith(f"verified under different versions: {folder}")
    report = json.loads((tmp_path / "judged" / "verification.json").read_bytes())
    assert report["generation"] == generation
    assert report["under_different_versions"]
    assert {row["name"]: row["recorded"] for row in report["differences"]} == OLD_VERSIONS
    # Reconstructed or verified, the raw frames are in the out folder.
    assert (tmp_path / "judged" / FRAMES).read_bytes() == (episodes["short"] / FRAMES).read_bytes()
    if parts["has_frames"]:
        assert report["raw_frame_evidence"] == "verified-against-original"
        assert report["compared"]["rgb"] == 48
    else:
        assert report["raw_frame_evidence"] == "reconstructed-from-recorded-actions"
        assert "rgb" not in report["compared"]
        assert "not checked: RAM and RGB" in said


@QUICK
def test_frames_that_the_manifest_promises_are_missed(episodes, tmp_path, capsys):
    folder = shutil.copytree(episodes["short"], tmp_path / "episode")
    (folder / FRAMES).unlink()
    code, said = judge(capsys, tmp_path, folder)
    assert code == DAMAGED
    assert "frames.jsonl is missing, which manifest.json promises" in said


# Edits. Each is a function of the episode's folder.


def change(value, path, to):
    """Set what lies at a path of keys, or remove it; `to` may be a function of what is there."""
    *parents, key = path
    for parent in parents:
        value = value[parent]
    if to is REMOVED:
        del value[key]
    else:
        value[key] = to(value[key]) if callable(to) else to


REMOVED = object()


def put(name, *path, to):
    """Change a field of a document; in a file of rows the path begins with the row."""

    def edit(folder):
        content = read(folder, name)
        change(content, path, to)
        write(folder, name, content)

    return edit


def manifest(*path, to):
    return put(MANIFEST, *path, to=to)


def summary(field, to):
    return put(SUMMARY, field, to=to)


def row(number, *path, to):
    return put(TRANSITIONS, number, *path, to=to)


def frame(number, *path, to):
    return put(FRAMES, number, *path, to=to)


def protocol(*path, to):
    """Change the protocol and do its hash again."""

    def edit(folder):
        content = read(folder, MANIFEST)
        change(content["protocol"], path, to)
        del content["protocol"]["protocol_hash"]
        content["protocol"]["protocol_hash"] = canonical_digest(content["protocol"])
        write(folder, MANIFEST, content)

    return edit


def rows(name, edit_rows):
    """Change the list of rows of a file in place."""

    def edit(folder):
        content = read(folder, name)
        edit_rows(content)
        write(folder, name, content)

    return edit


def drop(name, number):
    return rows(name, lambda content: content.pop(number))


def double(name, number):
    return rows(name, lambda content: content.insert(number, content[number]))


def swap(name, number):
    def exchange(content):
        content[number], content[number + 1] = content[number + 1], content[number]

    return rows(name, exchange)


def keep(name, count):
    """Keep the first rows only."""

    def shorten(content):
        del content[count:]

    return rows(name, shorten)


def follow(name, **fields):
    """A copy of the last row behind it, with some fields changed."""
    return rows(name, lambda content: content.append({**content[-1], **fields}))


def text(name, old, new, *, line=0):
    """Replace bytes of a line; a document counts as one."""

    def edit(folder):
        data = (folder / name).read_bytes()
        lines = [data] if name.endswith(".json") else data.splitlines(keepends=True)
        assert old in lines[line]
        lines[line] = lines[line].replace(old, new, 1)
        (folder / name).write_bytes(b"".join(lines))

    return edit


def cut(name, length):
    """Take bytes off the end of a file."""

    def edit(folder):
        path = folder / name
        os.truncate(path, path.stat().st_size - length)

    return edit


def remove(name):
    return lambda folder: (folder / name).unlink()


def replace(name, data):
    return lambda folder: (folder / name).write_bytes(data)


def nothing(_):
    """The episode is wrong as it was made."""


def both(*edits):
    def edit(folder):
        for each in edits:
            each(folder)

    return edit


def flip(byte):
    return byte ^ 1


def other_digit(digest):
    return digest[:-1] + f"{int(digest[-1], 16) ^ 1:x}"


def next_up(number):
    return math.nextafter(number, math.inf)


def append(name, data):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes() + data)


def tear_to_one_byte(name):
    """Leave one byte of the last line."""

    def edit(folder):
        *lines, last = (folder / name).read_bytes().splitlines(keepends=True)
        (folder / name).write_bytes(b"".join(lines) + last[:1])

    return edit


def all_predictions(field, to):
    def edit_rows(content):
        for each in content:
            each["prediction"][field] = to

    return rows(TRANSITIONS, edit_rows)


def choose(number, action):
    return row(number, "prediction", "chosen_action", to=action)


def frames_from(number, field, to):
    def edit_rows(content):
        for each in content[number:]:
            each[field] = to

    return rows(FRAMES, edit_rows)


NAN = b'"rewards": [NaN, 0.0, 0.0, 0.0]'
ZERO = b'"rewards": [0.0, 0.0, 0.0, 0.0]'

# One line an input: what it is, the edit, the exit code, and what is said of it.
MANIFEST_EDITS = [
    ("half a manifest", cut(MANIFEST, 400), DAMAGED, "manifest.json is not strict JSON"),
    ("an empty manifest", replace(MANIFEST, b""), DAMAGED, "manifest.json is not strict JSON"),
    ("a list for a manifest", replace(MANIFEST, b"[]\n"), DAMAGED, "manifest.json"),
    ("a key twice", text(MANIFEST, b'"seed"', b'"seed": 7, "seed"'), DAMAGED, "'seed' stands twice"),
    ("no kind", manifest("kind", to=REMOVED), DAMAGED, "manifest.json"),
    ("generic RAM track", manifest("kind", to="arcade-run-v1"), REFUSED, "'arcade-run-v1', which cannot be"),
    ("seed of the same split", manifest("seed", to=36), DIVERGED, "reset_frames: recorded 26, replayed 11"),
    ("seed of another split", manifest("seed", to=28), DAMAGED, "seed 28 is of the split 'development', it"),
    ("split", manifest("split", to="train"), DAMAGED, "seed 26 is of the split 'train', it is of 'develop"),
    ("seed and split", both(manifest("seed", to=8), manifest("split", to="test")), DIVERGED, "reset_frames: rec"),
    ("seed as a float", manifest("seed", to=26.0), DAMAGED, "seed 26.0, which should be a whole number"),
    ("seed as text", manifest("seed", to="26"), DAMAGED, r"\['seed'\]: \"26\" is not of type \"integer\""),
    ("seed true", manifest("seed", to=True), DAMAGED, r"\['seed'\]: true is not of type"),
    ("seed below zero", manifest("seed", to=-1), DAMAGED, r"\['seed'\]: -1 is less than"),
    ("seed beyond 64 bits", manifest("seed", to=2**64), DAMAGED, "64-bit"),
    ("fewer decisions", manifest("max_decisions", to=11), DIVERGED, "decision 10: truncated: recorded false"),
    ("more decisions", manifest("max_decisions", to=13), DIVERGED, "decision 11: truncated: recorded true"),
    ("decisions as a float", manifest("max_decisions", to=12.0), DAMAGED, "max_decisions 12.0, which should"),
    ("other policy", manifest("policy", to="track-ball-center-v1"), DIVERGED, r"decision 0: prediction\['pol"),
    ("random policy", manifest("policy", to="random-v1"), DIVERGED, "decision 0: "),
    ("unknown policy", manifest("policy", to="track-8px-v1"), REFUSED, "policy 'track-8px-v1' is not known"),
    ("short policy name", manifest("policy", to="track-4px"), REFUSED, "policy 'track-4px' is not known"),
    ("no model's policy", manifest("policy", to="jev:x"), DIVERGED, r"decision 0: prediction\['policy'\]"),
    ("promised file", manifest("record_files", 1, to="x.jsonl"), DAMAGED, "x.jsonl is missing, which manifes"),
    *(
        (f"no {field}", manifest(field, to=REMOVED), DAMAGED, f'"{field}" is a required property')
        for field in ("protocol", "seed", "split", "policy", "max_decisions")
    ),
]

PROTOCOL_FIELDS = {
    "hold_frames": 3,
    "sticky": 0.5,
    "observation": "vision",
    "noop_max": 7,
    "game": "ALE/Breakout-v5",
    "mode": 1,
    "difficulty": 1,
    "frameskip": 4,
    "full_action_space": True,
    "extractor": "pong-v2",
    "rom_sha256": "0" * 64,
    "versions": {**OLD_VERSIONS},
    "surplus": 1,
}
PROTOCOL_EDITS = [
    # The hash tells.
    *(
        (f"{field}, hash kept", manifest("protocol", field, to=to), DAMAGED, "states protocol_hash [0-9a-f]+,")
        for field, to in PROTOCOL_FIELDS.items()
    ),
    ("hash only", manifest("protocol", "protocol_hash", to=other_digit), DAMAGED, "it was edited"),
    # The hash was done again.
    ("hold", protocol("hold_frames", to=3), DIVERGED, r"decision 0: observation\['candidate_actions'\]"),
    ("no hold", protocol("hold_frames", to=0), DAMAGED, r"\['hold_frames'\]: 0 is less"),
    ("hold as a float", protocol("hold_frames", to=4.0), DAMAGED, "hold_frames 4.0, which should be a whole"),
    ("sticky", protocol("sticky", to=0.5), DIVERGED, r"observation\['control'\]\['sticky_action_probability'"),
    ("sticky above 1", protocol("sticky", to=1.5), DAMAGED, r"\['sticky'\]: 1.5"),
    ("sticky as an integer", protocol("sticky", to=0), DIVERGED, "sticky_action_probability"),
    ("source", protocol("observation", to="vision"), DIVERGED, r"observation_source'\]: recorded \"ram\""),
    ("reset no-ops", protocol("noop_max", to=7), DIVERGED, "reset_frames: recorded 26, replayed 6"),
    ("no-ops as a float", protocol("noop_max", to=30.0), DAMAGED, "noop_max 30.0, which should be a whole"),
    ("game", protocol("game", to="ALE/Breakout-v5"), REFUSED, "game .*only .*ALE/Pong-v5.* can be replayed"),
    ("mode", protocol("mode", to=1), REFUSED, "mode 1, .*only 0"),
    ("mode as a float", protocol("mode", to=0.0), DAMAGED, "mode 0.0, which should be a whole number"),
    ("difficulty", protocol("difficulty", to=1), REFUSED, "difficulty 1, .*only 0"),
    ("frameskip", protocol("frameskip", to=4), REFUSED, "frameskip 4, .*only 1"),
    ("all actions", protocol("full_action_space", to=True), REFUSED, "full_action_space True, .*only False"),
    ("extractor", protocol("extractor", to="pong-v2"), REFUSED, "extractor 'pong-v2', .*only 'pong-ocatari-"),
    ("a ROM", protocol("rom_sha256", to="0" * 64), REFUSED, "ROM pong.bin of SHA-256 0{64}, here it has "),
    ("versions", protocol("versions", to=OLD_VERSIONS), REFUSED, "ale-py 0.11.2 -> .*--allow-other-versions"),
    ("one version", protocol("versions", "numpy", to="2.0.0"), REFUSED, r"\(numpy 2.0.0 -> [0-9.]+\)"),
    ("a version less", protocol("versions", "numpy", to=REMOVED), DAMAGED, "versions of ale-py, gymnasium, nu"),
    ("a version more", protocol("versions", to=lambda v: {**v, "jax": "1"}), DAMAGED, "versions of ale-py, g"),
    ("a version null", protocol("versions", "numpy", to=None), DAMAGED, r"\['numpy'\]: null"),
    ("a setting more", protocol("surplus", to=1), REFUSED, "'surplus', which is not known"),
    *(
        (f"no {field}", manifest("protocol", field, to=REMOVED), DAMAGED, f'"{field}" is a required')
        for field in PROTOCOL_FIELDS
        if field != "surplus"
    ),
]

TRANSITION_EDITS = [
    ("an action", row(5, "action", to=5), DIVERGED, "decision 5: action: recorded 5, replayed [0-4]"),
    ("last action", row(11, "action", to=4), DIVERGED, "decision 11: action: recorded 4"),
    ("unknown action", row(5, "action", to=6), DAMAGED, r"line 6 breaks .* at \['action'\]: 6 is greater"),
    ("action as a float", row(5, "action", to=float), DAMAGED, r"line 6 .*action 0.0, which should be a whole"),
    ("action false", row(5, "action", to=bool), DAMAGED, r"line 6 breaks .* at \['action'\]: false is not"),
    ("action as text", row(5, "action", to="0"), DAMAGED, r"line 6 breaks .* at \['action'\]"),
    ("prediction", row(5, "prediction", "policy", to="x"), DIVERGED, r"decision 5: prediction\['policy'\]: reco"),
    ("prediction, more", row(5, "prediction", "why", to="x"), DIVERGED, r"decision 5: prediction\['why'\]"),
    ("prediction, less", row(0, "prediction", "policy", to=REMOVED), DIVERGED, r"decision 0: prediction\['pol"),
    ("prediction null", row(5, "prediction", to=None), DAMAGED, r"line 6 breaks .* at \['prediction'\]"),
    ("a reward", row(5, "rewards", 2, to=1.0), DIVERGED, r"decision 5: rewards\[2\]: recorded 1.0, replayed 0.0"),
    ("reward an integer", row(5, "rewards", 0, to=0), DIVERGED, r"decision 5: rewards\[0\]: recorded 0, replaye"),
    ("reward -0.0", row(5, "rewards", 0, to=-0.0), DIVERGED, r"decision 5: rewards\[0\]: recorded -0.0"),
    ("reward true", row(5, "rewards", 0, to=False), DAMAGED, r"line 6 breaks .* at \['rewards'\]\[0\]"),
    ("reward less", row(5, "rewards", to=[0.0] * 3), DIVERGED, "decision 5: rewards: recorded"),
    ("reward more", row(5, "rewards", to=[0.0] * 5), DIVERGED, "decision 5: rewards: recorded"),
    ("rewards empty", row(5, "rewards", to=[]), DAMAGED, r"line 6 breaks .* at \['rewards'\]"),
    ("raw frames", row(5, "raw_frames", to=3), DIVERGED, "decision 5: raw_frames: recorded 3, replayed 4"),
    ("raw frames as a float", row(5, "raw_frames", to=4.0), DIVERGED, "decision 5: raw_frames: recorded 4.0"),
    ("raw frames true", row(5, "raw_frames", to=True), DAMAGED, r"line 6 breaks .* at \['raw_frames'\]"),
    ("decision as a float", row(5, "decision", to=5.0), DIVERGED, "decision 5: decision: recorded 5.0, replayed 5"),
    ("decision true", row(1, "decision", to=True), DAMAGED, r"line 2 breaks .* at \['decision'\]: true"),
    ("decision", row(5, "decision", to=6), DAMAGED, "line 6 holds decision 6 where decision 5 should be"),
    ("first decision 1", row(0, "decision", to=1), DAMAGED, "line 1 holds decision 1 where decision 0"),
    *(
        (f"no {field}", row(5, field, to=REMOVED), DAMAGED, f'line 6 breaks .* "{field}" is a required')
        for field in ("decision", "observation", "action", "prediction", "rewards", "next_observation", "truncated")
    ),
    *(
        (f"{flag}, row {number}", row(number, flag, to=lambda is_set: not is_set), DIVERGED, rf"{number}: {flag}: ")
        for flag in ("terminated", "truncated")
        for number in (0, 5, 10, 11)
    ),
    ("flag 1", row(5, "terminated", to=1), DAMAGED, r"line 6 breaks .* at \['terminated'\]: 1 is not of type"),
    *(
        (f"{name} row {what}", edit, DAMAGED, rf"line {line} holds decision {found} where decision {line - 1} s")
        for name, number in (("first", 0), ("middle", 6), ("last but one", 10))
        for what, edit, line, found in (
            ("removed", drop(TRANSITIONS, number), number + 1, number + 1),
            ("doubled", double(TRANSITIONS, number), number + 2, number),
            ("swapped", swap(TRANSITIONS, number), number + 1, number + 1),
        )
    ),
    ("last row removed", drop(TRANSITIONS, 11), DAMAGED, "ends before decision 11, .*line 45 holds raw frame 71 of"),
    ("last row removed, frames too", both(drop(TRANSITIONS, 11), keep(FRAMES, 44)), DAMAGED, "before decision 11"),
    ("last row doubled", double(TRANSITIONS, 11), DAMAGED, "line 13 holds decision 11 where decision 12"),
    ("a row after the end", follow(TRANSITIONS, decision=12), DIVERGED, "decision 12: .*over after 12 decisions .*"),
    ("no rows", replace(TRANSITIONS, b""), DAMAGED, "ends before decision 0"),
    ("no file of rows", remove(TRANSITIONS), DAMAGED, "transitions.jsonl is missing, which manifest.json promi"),
    ("no rows, no frames", both(*(replace(n, b"") for n in (TRANSITIONS, FRAMES))), DAMAGED, "before decision 0"),
    ("torn tail", cut(TRANSITIONS, 1), DAMAGED, r"transitions.jsonl has a torn tail of \d+ bytes from byte \d+"),
    ("torn tail of one byte", tear_to_one_byte(TRANSITIONS), DAMAGED, "transitions.jsonl has a torn tail of 1 bytes"),
    ("torn tail behind the end", append(TRANSITIONS, b'{"dec'), DAMAGED, "torn tail of 5 bytes"),
    ("empty line", append(TRANSITIONS, b"\n"), DAMAGED, "line 13 is not strict JSON"),
    ("empty line inside", text(TRANSITIONS, b"\n", b"\n\n", line=4), DAMAGED, "line 6 is not strict JSON"),
    ("a key twice", text(TRANSITIONS, b'"action": 0', b'"action": 2, "action": 0'), DAMAGED, "'action' stands tw"),
    ("a key twice inside", text(TRANSITIONS, b'"id": "pl', b'"id": "", "id": "pl'), DAMAGED, "'id' stands twice"),
    ("NaN", text(TRANSITIONS, ZERO, NAN, line=5), DAMAGED, "line 6 is not strict JSON: NaN is not JSON"),
    ("1e999", text(TRANSITIONS, ZERO, NAN.replace(b"NaN", b"1e999")), DAMAGED, "1e999 is beyond every float"),
    ("not UTF-8", text(TRANSITIONS, b'"ram"', b'"\xff"', line=5), DAMAGED, "line 6 is not strict JSON: 'utf-8'"),
    ("half a surrogate", text(TRANSITIONS, b'"ram"', b'"\\ud800"'), DAMAGED, "line 1 is not strict JSON"),
    ("nested", text(TRANSITIONS, b"null", b"[" * 99999, line=5), DAMAGED, "line 6 is not strict JSON"),
    ("U+2028", text(TRANSITIONS, b'"ram"', '"r\u2028m"'.encode(), line=5), DIVERGED, "decision 5: observation"),
    ("a huge integer", text(TRANSITIONS, ZERO, ZERO.replace(b"0.0", b"9" * 30)), DAMAGED, "line 1 is not strict"),
]

FRAME_EDITS = [
    *(
        (f"RAM byte {byte} of frame {number}", frame(number, "ram_bytes", byte, to=flip), DIVERGED, message)
        for number, byte in ((0, 0), (21, 64), (47, 127))
        for message in (rf"decision {number // 4}, raw frame {27 + number}: ram_bytes\[{byte}\]: recorded \d+, replay",)
    ),
    ("RAM byte as a float", frame(21, "ram_bytes", 5, to=float), DIVERGED, r"frame 48: ram_bytes\[5\]: recorded"),
    ("RAM byte 256", frame(21, "ram_bytes", 5, to=256), DAMAGED, r"line 22 breaks .*\['ram_bytes'\]\[5\]: 256"),
    ("127 RAM bytes", frame(21, "ram_bytes", 5, to=REMOVED), DAMAGED, r"line 22 breaks .*\['ram_bytes'\]: "),
    ("RGB digest", frame(21, "rgb_sha256", to=other_digit), DIVERGED, "5, raw frame 48: rgb_sha256: recorded"),
    ("RGB digest in capitals", frame(21, "rgb_sha256", to=str.upper), DAMAGED, r"line 22 breaks .*\['rgb_sha256'"),
    ("frame reward", frame(21, "reward", to=1.0), DIVERGED, "raw frame 48: reward: recorded 1.0, replayed 0.0"),
    ("frame reward integer", frame(21, "reward", to=0), DIVERGED, "raw frame 48: reward: recorded 0, replayed 0.0"),
    ("frame action", frame(21, "requested_action_id", to=4), DIVERGED, "frame 48: requested_action_id: recorded 4"),
    ("frame decision", frame(21, "decision", to=6), DIVERGED, "raw frame 48: decision: recorded 6, replayed 5"),
    ("frame terminated", frame(47, "terminated", to=True), DIVERGED, "raw frame 74: terminated: recorded true"),
    ("frame truncated", frame(47, "truncated", to=True), DIVERGED, "raw frame 74: truncated: recorded true"),
    ("frame number", frame(21, "raw_frame", to=47), DAMAGED, "line 22 holds raw frame 47 where raw frame 48 should"),
    ("frame number as a float", frame(21, "raw_frame", to=48.0), DIVERGED, "frame 48: raw_frame: recorded 48.0"),
    *(
        (f"{name} frame {what}", edit, DAMAGED, rf"line {line} holds raw frame {found} where raw frame {line + 26}")
        for name, number in (("first", 0), ("middle", 21), ("last but one", 46))
        for what, edit, line, found in (
            ("removed", drop(FRAMES, number), number + 1, number + 28),
            ("doubled", double(FRAMES, number), number + 2, number + 27),
            ("swapped", swap(FRAMES, number), number + 1, number + 28),
        )
    ),
    ("last frame removed", drop(FRAMES, 47), DAMAGED, "frames.jsonl ends before raw frame 74 of decision 11"),
    ("last frame doubled", double(FRAMES, 47), DAMAGED, "line 49 holds raw frame 74 of decision 11, which no ro"),
    ("a frame after the end", follow(FRAMES, decision=12, raw_frame=75), DAMAGED, "raw frame 75 of decision 12, "),
    ("no frames", replace(FRAMES, b""), DAMAGED, "frames.jsonl ends before raw frame 27 of decision 0"),
    ("torn frames", cut(FRAMES, 9), DAMAGED, "torn tail of .*ends before raw frame 74 of decision 11"),
    ("torn behind the end", append(FRAMES, b'{"dec'), DAMAGED, "frames.jsonl has a torn tail of 5 bytes"),
    ("NaN in a frame", text(FRAMES, b'"reward": 0.0', b'"reward": NaN', line=9), DAMAGED, "line 10 is not strict"),
    ("a key twice", text(FRAMES, b'"decision"', b'"decision": 0, "decision"'), DAMAGED, "'decision' stands twi"),
    ("orphans of a complete run", drop(TRANSITIONS, 11), DAMAGED, "line 45 holds raw frame 71 of decision 11, wh"),
]

TOTALS = {
    "reward": -1.0,
    "decisions": 11,
    "raw_frames": 47,
    "points_scored": 1,
    "points_lost": 1,
    "terminated": True,
    "truncated": False,
    "backend": "jev",
    "end_reason": "point_limit",
    "reset_frames": 25,
    "simulated_seconds": next_up,
    "error_type": "RuntimeError",
}
SUMMARY_EDITS = [
    *((field, summary(field, to), DIVERGED, f"at the summary: {field}: ") for field, to in TOTALS.items()),
    ("status", summary("status", "incomplete"), DIVERGED, 'summary: end_reason: recorded "decision_limit", repl'),
    ("reward an integer", summary("reward", 0), DIVERGED, "summary: reward: recorded 0, replayed 0.0"),
    ("decisions as a float", summary("decisions", 12.0), DIVERGED, "summary: decisions: recorded 12.0, replayed"),
    ("api attempts", summary("api_attempts", 3), DIVERGED, "summary: api_attempts: recorded 3, replayed 0"),
    ("no end reason", summary("end_reason", None), DIVERGED, "summary: end_reason: recorded null, replayed"),
    ("error as the end", summary("end_reason", "error"), DIVERGED, "summary: end_reason: recorded"),
    ("unknown status", summary("status", "done"), DAMAGED, r"summary.json breaks .* at \['status'\]"),
    ("unknown end", summary("end_reason", "tired"), DAMAGED, r"summary.json breaks .* at \['end_reason'\]"),
    ("no status", summary("status", REMOVED), DAMAGED, "summary.json breaks"),
    ("half a summary", cut(SUMMARY, 99), DAMAGED, "summary.json is not strict JSON"),
    ("NaN", text(SUMMARY, b"0.0", b"NaN"), DAMAGED, "summary.json is not strict JSON: NaN"),
]

POINT_EDITS = [
    ("no point limit", manifest("point_limit", to=None), DIVERGED, r"decision 57: .*raw_frames: recorded 2"),
    ("point limit gone", manifest("point_limit", to=REMOVED), DIVERGED, "at decision 57"),
    ("greater point limit", manifest("point_limit", to=2), DIVERGED, "at decision 57"),
    ("point limit as a float", manifest("point_limit", to=1.0), DAMAGED, "point_limit 1.0, which should be"),
    ("point limit true", manifest("point_limit", to=True), DAMAGED, r"\['point_limit'\]: true"),
    ("the point", row(57, "rewards", 1, to=1.0), DIVERGED, r"decision 57: rewards\[1\]: recorded 1.0, replay"),
    ("point moved", row(57, "rewards", to=[-1.0, 0.0]), DIVERGED, r"decision 57: rewards\[0\]: recorded -1.0"),
    ("point removed", row(57, "rewards", to=[0.0, 0.0]), DIVERGED, r"decision 57: rewards\[1\]: recorded 0.0"),
    ("ended by point", row(57, "truncated", to=False), DIVERGED, "decision 57: truncated: recorded false, repl"),
    ("ended by game", row(57, "terminated", to=True), DIVERGED, "decision 57: terminated: recorded true, replay"),
    ("a row after the point", follow(TRANSITIONS, decision=58), DIVERGED, "decision 58: .*point_limit"),
    *(
        (f"observation {'/'.join(map(str, path))}", row(50, "observation", *path, to=to), DIVERGED, "decision 50: ob")
        for path, to in (
            (("schema_version",), "v2"),
            (("coordinates", "origin"), "bottom_left"),
            (("control", "last_requested_action_id"), None),
            (("control", "last_executed_action_id"), 0),
            (("objects", 2, "present"), lambda is_set: not is_set),
            (("objects", 2, "bbox", 0), lambda x: x + 1),
            (("objects", 2, "velocity", 1), next_up),
            (("objects", 2, "age_since_last_seen_raw_frames"), float),
            (("history", 0, "offset_raw_frames"), -13),
            (("history", 0), REMOVED),
            (("events_observed",), ["point_lost"]),
            (("candidate_actions", 3, "effect"), "up"),
        )
    ),
    ("next observation", row(50, "next_observation", "objects", 2, "bbox", 1, to=7), DIVERGED, "50: next_obs"),
    ("last RGB digest", frame(229, "rgb_sha256", to=other_digit), DIVERGED, "decision 57, raw frame 256: rgb_sha"),
    ("points lost", summary("points_lost", 0), DIVERGED, "summary: points_lost: recorded 0, replayed 1"),
    ("reward, point", summary("reward", 1.0), DIVERGED, "summary: reward: recorded 1.0, replayed -1.0"),
    ("end, point", summary("end_reason", "decision_limit"), DIVERGED, "summary: end_reason: recorded"),
]

MODEL_EDITS = [
    ("program is text", manifest("question_program", to="x"), DAMAGED, r"\['question_program'\]: "),
    ("chosen action", choose(5, 3), DIVERGED, r"decision 5: prediction\['chosen_action'\]: rec"),
    ("chosen action 0.0", choose(5, 0.0), DIVERGED, r"chosen_action'\]: recorded 0.0"),
    ("chosen action false", choose(5, False), DIVERGED, "recorded false, replayed"),
    ("program hash", row(5, "prediction", "program_hash", to=other_digit), DIVERGED, r"5: prediction\['program_h"),
    ("no program hash", row(5, "prediction", "program_hash", to=REMOVED), DIVERGED, r"5: prediction\['program_h"),
    ("program", manifest("question_program", "guidance", to="Lose."), DIVERGED, r"decision 0: prediction\['progr"),
    ("action", row(5, "action", to=3), DIVERGED, r"decision 5: prediction\['chosen_action'\]: recorded 0"),
    ("action and choice", both(row(5, "action", to=3), choose(5, 3)), DIVERGED, r"decision 5: .*\(prefers action 0\)"),
    ("probability", row(5, "prediction", "action_probabilities", "0", to="0.75"), DIVERGED, "no number from 0 to 1"),
    ("probabilities", row(5, "prediction", "action_probabilities", "1", to=0.2), DIVERGED, "adds up to 1.15, not to 1"),
    ("requested model", row(5, "prediction", "requested_model", to="jev-2"), DIVERGED, r"5: .*requested_model"),
    ("backend", row(5, "prediction", "backend", to="mock"), DIVERGED, r"5: prediction\['backend'\]: recorded \"mock"),
    ("backend of all", all_predictions("backend", "mock"), DIVERGED, 'summary: backend: recorded "jev", replayed "m'),
    ("a local prediction", row(5, "prediction", to={"policy": "random-v1"}), DIVERGED, r"decision 5: prediction\["),
    ("a point", row(5, "rewards", 0, to=-1.0), DIVERGED, r"decision 5: rewards\[0\]"),
    ("no program", manifest("policy", to="jev"), REFUSED, "policy 'jev' is not known"),
]

INTERRUPTED_EDITS = [
    *(
        (f"{field}, interrupted", summary(field, to), DIVERGED, f"at the summary: {field}: ")
        for field, to in {
            "reward": 1.0,
            "decisions": 10,
            "points_scored": 1,
            "raw_frames": 35,
            "terminated": True,
            "truncated": True,
            "backend": "jev",
            "end_reason": "decision_limit",
            "reset_frames": 25,
            "simulated_seconds": 1.0,
        }.items()
    ),
    ("raw frames beyond a hold", summary("raw_frames", 41), DIVERGED, "summary: raw_frames: recorded 41"),
    ("interrupted called complete", summary("status", "complete"), DAMAGED, "ends before decision 9"),
    ("a row less", both(drop(TRANSITIONS, 8), keep(FRAMES, 32)), DIVERGED, "summary: decisions: recorded 9"),
]

ORPHANS_EDITS = [
    ("frames of a later decision", frames_from(36, "decision", 10), DAMAGED, "raw frame 63 of decision 10"),
    ("an orphan's number", frame(37, "raw_frame", to=65), DAMAGED, "line 38 holds raw frame 65 of decision 9"),
    ("an orphan's RAM", frame(38, "ram_bytes", 9, to=flip), DIVERGED, r"decision 9, raw frame 65: ram_bytes\[9\]"),
    ("an orphan's RGB", frame(39, "rgb_sha256", to=other_digit), DIVERGED, "raw frame 66: rgb_sha256"),
    ("an orphan's action", frame(36, "requested_action_id", to=5), DIVERGED, "frame 63: requested_action_id: re"),
    ("an orphan's reward", frame(36, "reward", to=-1.0), DIVERGED, "decision 9, raw frame 63: reward"),
    ("an orphan removed", drop(FRAMES, 37), DAMAGED, "line 38 holds raw frame 65 of decision 9, which no"),
    ("a fifth orphan", follow(FRAMES, raw_frame=67), DAMAGED, "line 41 holds raw frame 67 of decision 9, which no"),
    ("orphans, then a torn line inside", text(FRAMES, b"\n", b"", line=36), DAMAGED, "line 37 is not strict"),
]

OPEN_EDITS = [
    ("frames of two decisions", keep(TRANSITIONS, 7), DAMAGED, "line 33 holds raw frame 59 of decision 8, which no"),
    ("frames torn under a row", cut(FRAMES, 9), DAMAGED, "frames.jsonl ends before raw frame 62 of decision 8"),
    ("a frame less", drop(FRAMES, 35), DAMAGED, "frames.jsonl ends before raw frame 62 of decision 8"),
    ("rows less than frames", remove(TRANSITIONS), DAMAGED, "transitions.jsonl is missing, which manifest.json"),
]

LONG_EDITS = [
    ("", nothing, DIVERGED, "decision 11: truncated: recorded false, replayed true"),
    ("marked", row(11, "truncated", to=True), DIVERGED, "decision 12: .*over after 12 decisions .*decision_limit"),
]


EDITS = {
    "manifest": ("short", MANIFEST_EDITS),
    "protocol": ("short", PROTOCOL_EDITS),
    "transitions": ("short", TRANSITION_EDITS),
    "frames": ("short", FRAME_EDITS),
    "summary": ("short", SUMMARY_EDITS),
    "ended by a point": ("point", POINT_EDITS),
    "played by a model": ("model", MODEL_EDITS),
    "interrupted": ("interrupted", INTERRUPTED_EDITS),
    "killed": ("open", OPEN_EDITS),
    "killed between the files": ("orphans", ORPHANS_EDITS),
    "a short hold": ("short hold", [("", nothing, DIVERGED, "decision 5: .*raw_frames: recorded 2, replayed 4")]),
    "a short last hold": ("last hold", [("", nothing, DIVERGED, "decision 11: .*raw_frames: recorded 3, replayed 4")]),
    "more decisions than allowed": ("long", LONG_EDITS),
    "on after the point": ("after point", [("", nothing, DIVERGED, "decision 57: rewards: .*raw_frames: recorded 4")]),
}


@QUICK
@pytest.mark.parametrize(
    ("base", "edit", "expected", "message"),
    [
        pytest.param(base, *line, id=f"{title}: {name}")
        for title, (base, table) in EDITS.items()
        for name, *line in table
    ],
)
def test_whatever_is_edited_is_caught_in_its_place(base, edit, expected, message, episodes, tmp_path, capsys):
    folder = shutil.copytree(episodes[base], tmp_path / "episode")
    edit(folder)
    assert (bytes_of(folder) == bytes_of(episodes[base])) == (edit is nothing)
    code, said = judge(capsys, tmp_path, folder)
    assert code == expected, said
    assert re.search(message, said, re.DOTALL), said
    assert not said.startswith("verified"), said


def leaves(value, path=()):
    """Path and value of every number, text, flag, null and empty list within a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [leaf for key, item in items for leaf in leaves(item, (*path, key))]
    return found or [(path, value)]


def other(value):
    """A value of the same type, or of another where there is none."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return value + "x" if isinstance(value, str) else 0


# Facts that no replay can know.
UNKNOWABLE = {("video_clock",), ("wall_seconds",)}


@QUICK
@pytest.mark.parametrize(("name", "number"), [(MANIFEST, None), (SUMMARY, None), (TRANSITIONS, 9), (FRAMES, 38)])
def test_no_value_at_all_can_be_changed_and_still_verify(name, number, episodes, tmp_path):
    folder = shutil.copytree(episodes["short"], tmp_path / "episode")
    original = read(folder, name)
    paths = leaves(original if number is None else original[number])
    assert len(paths) > 10
    for path, value in paths:
        content = json.loads(json.dumps(original))
        change(content, path if number is None else (number, *path), other(value))
        write(folder, name, content)
        try:
            code = replay_episode(folder).exit_code
        except RecorderError as error:
            code = error.exit_code
        is_knowable = path not in UNKNOWABLE and path[0] != "provenance"
        assert (code in {DIVERGED, DAMAGED, REFUSED}) == is_knowable, path


@QUICK
@pytest.mark.parametrize("name", [TRANSITIONS, FRAMES])
def test_a_line_longer_than_any_honest_one_is_refused(name, episodes, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("recorder.reading.LINE_LIMIT_BYTES", 1 << 20)
    folder = shutil.copytree(episodes["short"], tmp_path / "episode")
    text(name, b"{", b"{" + b" " * (3 << 20), line=5)(folder)
    code, said = judge(capsys, tmp_path, folder)
    assert code == DAMAGED
    assert f"{name} line 6 is longer than 1048576 bytes" in said


@pytest.mark.parametrize("kind", ["pong-play-v2", "breakout-play-v1"])
def test_an_unknown_kind_is_refused_by_name(kind, episodes, tmp_path, capsys):
    folder = shutil.copytree(episodes["short"], tmp_path / "episode")
    manifest("kind", to=kind)(folder)
    code, said = judge(capsys, tmp_path, folder)
    assert code == REFUSED
    assert repr(kind) in said


@pytest.mark.parametrize("versions", [None, OLD_VERSIONS])
def test_a_missing_package_names_the_extra_that_installs_it(versions, episodes, tmp_path, capsys, monkeypatch):
    folder = shutil.copytree(episodes["short"], tmp_path / "episode")
    if versions:
        put_versions(folder, versions)
    monkeypatch.setitem(sys.modules, "ale_py", None)
    code, said = judge(capsys, tmp_path, folder)
    assert code == REFUSED
    assert "replay-recorder[atari]" in said


def test_a_missing_rom_stops_both_ends_before_anything_is_written(episodes, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("ALE_ROMS_DIR", str(tmp_path))
    out = ["--out", str(tmp_path / "out")]
    for command, arguments in (
        (replay.cli.replay_main, ["--episode", str(episodes["short"]), *out]),
        (recorder.cli.main, ["play", *PLAY_HISTORICAL, "--decisions", "2", *out]),
    ):
        assert command(arguments) == REFUSED
        said, err = capsys.readouterr()
        # Before it ale-py says where it looks.
        assert err.splitlines()[-1].startswith("error: the ROM of ")
        assert said == ""
    assert list(tmp_path.iterdir()) == []


def test_results_are_never_put_into_an_episode(episodes, tmp_path, capsys):
    folder = shutil.copytree(episodes["short"], tmp_path / "episode")
    for out in (folder, folder / "out", folder / "deep" / "out"):
        assert replay.cli.replay_main(["--episode", str(folder), "--out", str(out)]) == USAGE
        assert capsys.readouterr().err.count("\n") == 1
    assert bytes_of(folder) == bytes_of(episodes["short"])


@QUICK
def test_the_report_of_a_divergence_names_code_decision_raw_frame_and_field(episodes, tmp_path, capsys):
    folder = shutil.copytree(episodes["short"], tmp_path / "episode")
    frame(21, "ram_bytes", 64, to=7)(folder)
    code, _ = judge(capsys, tmp_path, folder)
    report = read(tmp_path / "judged", "verification.json")
    assert (report["verdict"], report["exit_code"], code) == ("diverged", DIVERGED, DIVERGED)
    (found,) = report["first_divergence"]
    assert (found["record"], found["decision"], found["raw_frame"], found["field"]) == ("frame", 5, 48, "ram_bytes[64]")
    assert found["recorded"] == 7
    assert (report["decisions"], report["reset_frames"], report["layout"]) == (6, 26, "pong-play-v1")


@QUICK
def test_nothing_comes_after_a_game_that_ended_by_itself(tmp_path, capsys):
    folder = record(tmp_path / "episode", "random", seed=0, decisions=3000)
    assert read(folder, SUMMARY)["end_reason"] == "native_termination"
    last = read(folder, TRANSITIONS)[-1]
    assert (last["decision"], last["terminated"], last["truncated"]) == (978, True, False)
    follow(TRANSITIONS, decision=979, terminated=False)(folder)
    code, said = judge(capsys, tmp_path, folder)
    assert code == DIVERGED
    assert "decision 979: decision: recorded 979" in said
    assert "over after 979 decisions by native_termination" in said


HARMLESS = [
    ("a line separator in a string", text(TRANSITIONS, b"{", '{"note": "a\u2028b\u0085c", '.encode(), line=5), ""),
    ("spaces", text(TRANSITIONS, b'"action": ', b'"action" :   ', line=5), ""),
    ("other spaces in frames", text(FRAMES, b'"reward": ', b'"reward":', line=5), ""),
    ("another end of line", text(TRANSITIONS, b"\n", b"\r\n", line=5), ""),
    (
        "another order of keys",
        rows(TRANSITIONS, lambda content: content[5].update(action=content[5].pop("action"))),
        "",
    ),
    ("a later field of rows", row(5, "surplus", to=1), ""),
    ("a later field of frames", frame(5, "surplus", to=1), ""),
    ("a later field of the manifest", manifest("surplus", to=1), ""),
    ("a later field of the summary", summary("surplus", 1), ""),
    ("no provenance", manifest("provenance", to=REMOVED), ""),
    ("a total less", summary("points_lost", REMOVED), "not checked: points_lost: summary.json does not state them"),
    ("a point limit that was not reached", manifest("point_limit", to=5), ""),
]


@QUICK
@pytest.mark.parametrize(("edit", "message"), [line[1:] for line in HARMLESS], ids=[line[0] for line in HARMLESS])
def test_what_changes_no_value_still_verifies(edit, message, episodes, tmp_path, capsys):
    folder = shutil.copytree(episodes["short"], tmp_path / "episode")
    edit(folder)
    code, said = judge(capsys, tmp_path, folder)
    assert code == VERIFIED
    assert said.startswith("verified: ")
    assert message in said


@QUICK
def test_what_a_model_answered_cannot_be_asked_again_and_the_report_says_so(episodes, tmp_path, capsys):
    code, said = judge(capsys, tmp_path, episodes["model"])
    assert code == VERIFIED
    assert "not checked: predictions: the model is not asked again" in said
    assert "12 predictions" in said


@QUICK
@pytest.mark.parametrize(
    ("answers", "action", "is_same"),
    [
        ({str(number): {"q": -0.2 * number} for number in range(6)}, 0, True),
        ({str(number): {"q": -0.2 * number} for number in range(6)}, 1, False),
        # A tie, as far as the published roundings go.
        ({"0": {"q": 0.19999999999999996}, "1": {"q": 0.2}}, 0, True),
        ({"0": {"q": 0.2}, "1": {"q": 0.2}}, 1, True),
        ({"0": {"q": 0.2}}, 1, False),
        # Nothing to go by.
        ({"0": {"q": "0.2"}, "1": {"q": 0.1}}, 1, False),
        ({"0": {"q": 0.2}, "1": {"q": True}}, 1, False),
        ({"0": {"q": 0.2}, "1": {"q": 1.5}}, 1, False),
        ({"0": {"q": 0.2}, "1": None}, 1, False),
        ({}, 1, False),
        ([0.5, 0.2], 1, False),
        (None, 1, False),
    ],
)
def test_a_model_requests_an_action_that_its_own_numbers_prefer(answers, action, is_same, episodes, tmp_path):
    folder = shutil.copytree(episodes["model"], tmp_path / "episode")
    prediction = {"backend": "jev", "program_hash": canonical_digest(PROGRAM), "answers": answers}
    row(0, "prediction", to={**prediction, "requested_model": "jev-1.13.0"})(folder)
    row(0, "action", to=action)(folder)
    fields = {mismatch.field for mismatch in replay_episode(folder).mismatches}
    assert ("prediction['answers']" not in fields) == is_same


# Interruptions


def leave_bytes(frames, transitions):
    """The files after so many bytes of each, with no summary."""

    def edit(folder):
        (folder / SUMMARY).unlink()
        for name, length in ((FRAMES, frames), (TRANSITIONS, transitions)):
            os.truncate(folder / name, length)

    return edit


def line_ends(folder, name):
    """Byte offsets behind each line."""
    data = (folder / name).read_bytes()
    return [0, *(match.end() for match in re.finditer(b"\n", data))]


@QUICK
@pytest.mark.parametrize("decision", [0, 1, 7])
@pytest.mark.parametrize("cut_off", ["one byte", "one frame", "half a hold", "the frames", "half a row", "a row's end"])
def test_a_kill_at_any_moment_of_a_decision_leaves_a_prefix(decision, cut_off, episodes, tmp_path, capsys):
    folder = shutil.copytree(episodes["short"], tmp_path / "episode")
    frames, transitions = line_ends(folder, FRAMES), line_ends(folder, TRANSITIONS)
    before, after = transitions[decision], transitions[decision + 1]
    hold = frames[4 * decision : 4 * decision + 5]
    left, whole_frames = {
        "one byte": ((hold[0] + 1, before), 0),
        "one frame": ((hold[1], before), 1),
        "half a hold": ((hold[2] + 300, before), 2),
        "the frames": ((hold[4], before), 4),
        "half a row": ((hold[4], (before + after) // 2), 4),
        "a row's end": ((hold[4], after - 1), 4),
    }[cut_off]
    leave_bytes(*left)(folder)
    code, said = judge(capsys, tmp_path, folder)
    # One raw frame is evidence; nothing at all is none.
    assert code == (VERIFIED if decision or whole_frames else REFUSED), said
    assert said.startswith("verified prefix: " if code == VERIFIED else "UNVERIFIABLE: ")
    assert f"replayed {decision} decision" in said
    compared = read(tmp_path / "judged", "verification.json")["compared"]
    assert compared.get("rgb", 0) == 4 * decision + whole_frames
    assert ("torn tail" in said) == (cut_off in {"one byte", "half a hold", "half a row", "a row's end"})
    assert (f"of decision {decision}, whose transition" in said) == bool(whole_frames)


@QUICK
@pytest.mark.parametrize("left", [(), (FRAMES,), (FRAMES, TRANSITIONS)])
@pytest.mark.parametrize("has_summary", [False, True])
def test_a_kill_before_the_first_decision_leaves_nothing_to_verify(left, has_summary, episodes, tmp_path, capsys):
    folder = shutil.copytree(episodes["short"], tmp_path / "episode")
    for name in (FRAMES, TRANSITIONS):
        (folder / name).unlink()
        if name in left:
            (folder / name).touch()
    if has_summary:
        write(folder, SUMMARY, {**read(folder, SUMMARY), "status": "running", "decisions": 0, "reset_frames": 0})
    else:
        (folder / SUMMARY).unlink()
    code, said = judge(capsys, tmp_path, folder)
    assert code == REFUSED
    assert said.startswith("UNVERIFIABLE: ")


@QUICK
def test_a_summary_that_still_says_running_makes_a_prefix(episodes, tmp_path, capsys):
    folder = shutil.copytree(episodes["short"], tmp_path / "episode")
    write(folder, SUMMARY, {**read(folder, SUMMARY), "status": "running", "end_reason": None, "decisions": 0})
    code, said = judge(capsys, tmp_path, folder)
    assert code == VERIFIED
    assert said.startswith("verified prefix: ")
    assert "the summary says 'running'" in said


@QUICK
def test_an_error_after_the_last_decision_makes_a_prefix(episodes, tmp_path):
    folder = shutil.copytree(episodes["short"], tmp_path / "episode")
    ended = {"status": "incomplete", "end_reason": "error", "error_type": "OSError"}
    write(folder, SUMMARY, {**read(folder, SUMMARY), **ended})
    verdict = replay_episode(folder)
    assert (verdict.name, verdict.decisions, verdict.mismatches) == ("verified prefix", 12, [])


@QUICK
def test_a_historical_summary_may_count_raw_frames_of_a_decision_that_was_not_written(episodes, tmp_path, capsys):
    folder = shutil.copytree(episodes["interrupted"], tmp_path / "episode")
    counted = {"raw_frames": 38, "reward": -1.0, "points_lost": 1, "simulated_seconds": 38 / 60}
    write(folder, SUMMARY, {**read(folder, SUMMARY), **counted})
    code, said = judge(capsys, tmp_path, folder)
    assert code == VERIFIED
    assert "not checked: raw_frames, reward, points_scored, points_lost, truncated of the summary" in said


def refuse_second_run(folder):
    """A second run into the same folder is refused and changes nothing."""
    before = bytes_of(folder)
    with pytest.raises(UsageError, match="exists already"):
        record(folder)
    assert bytes_of(folder) == before


def assert_prefix(folder, decisions):
    """So many decisions verify, and a summary counts neither more nor less."""
    counted = read(folder, SUMMARY)
    verdict = replay_episode(folder)
    assert (verdict.faults, verdict.mismatches) == ([], [])
    assert verdict.name == ("verified prefix" if decisions else "unverifiable")
    assert verdict.decisions == decisions
    if counted["status"] != "running":
        assert (counted["status"], counted["end_reason"]) == ("incomplete", "error")
        assert (counted["decisions"], counted["raw_frames"]) == (decisions, 4 * decisions)
    refuse_second_run(folder)


FORK = multiprocessing.get_context("fork")


def test_a_recording_that_is_killed_at_any_moment_leaves_a_prefix(tmp_path):
    moments = random.Random(0)
    replayed = []
    for number in range(10):
        folder = tmp_path / str(number)
        process = FORK.Process(target=record, args=(folder,), kwargs={"seed": number, "decisions": 10**6})
        process.start()
        while not (folder / SUMMARY).exists():
            time.sleep(0.001)
        time.sleep(moments.uniform(0.0, 0.25))
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert process.exitcode == -signal.SIGKILL
        whole = (folder / TRANSITIONS).read_bytes().count(b"\n") if (folder / TRANSITIONS).exists() else 0
        assert read(folder, SUMMARY)["status"] == "running"
        assert_prefix(folder, whole)
        replayed.append(whole)
    assert max(replayed) > 50


def fail(error, at):
    """A policy that raises in a decision."""
    decide = make_pong_policy("track-4px", 26)
    decisions = iter(range(10**6))

    def policy(observation):
        if next(decisions) == at:
            raise error
        return decide(observation)

    return policy


def record_with(out, policy, **options):
    """Record as `short`, with a policy of one's own."""
    settings = {"policy_name": "track-4px", "seed": 26, "max_decisions": 12, **options}
    return record_pong(out, settings=PongSettings(), policy=policy, **settings)


@QUICK
@pytest.mark.parametrize("error", [RuntimeError("no idea"), KeyboardInterrupt(), SystemExit(3)], ids=repr)
@pytest.mark.parametrize("at", [0, 1, 11])
def test_a_policy_that_raises_leaves_the_decisions_before_it(error, at, tmp_path):
    folder = tmp_path / "episode"
    with pytest.raises(type(error)):
        record_with(folder, fail(error, at))
    assert read(folder, SUMMARY)["error_type"] == type(error).__name__
    assert_prefix(folder, at)


@QUICK
@pytest.mark.parametrize("action", [6, -1, True, 2.0, "2", None])
def test_an_action_that_there_is_not_is_refused_before_it_is_requested(action, tmp_path):
    decide = make_pong_policy("track-4px", 26)
    actions = iter([None] * 3)

    def policy(observation):
        good, prediction = decide(observation)
        return (good, prediction) if next(actions, "end") is None else (action, prediction)

    folder = tmp_path / "episode"
    with pytest.raises(Exception, match="is not in Discrete"):
        record_with(folder, policy)
    assert_prefix(folder, 3)


@QUICK
@pytest.mark.parametrize("at", [1, 6, 12])
def test_who_is_told_of_a_decision_may_raise(at, tmp_path):
    def stop(number):
        if number == at:
            raise KeyboardInterrupt

    folder = tmp_path / "episode"
    with pytest.raises(KeyboardInterrupt):
        record_with(folder, make_pong_policy("track-4px", 26), on_decision=stop)
    assert_prefix(folder, at)


@QUICK
@pytest.mark.parametrize("at", [0, 5, 11])
def test_an_interruption_just_after_a_decision_was_written_counts_it(at, tmp_path, monkeypatch):
    write_decision = recorder.pong_play._write_decision

    def interrupted(*arguments, **options):
        write_decision(*arguments, **options)
        if sum(path.read_bytes().count(b"\n") for path in (tmp_path / "episode").glob(TRANSITIONS)) == at + 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(recorder.pong_play, "_write_decision", interrupted)
    with pytest.raises(KeyboardInterrupt):
        record_with(tmp_path / "episode", make_pong_policy("track-4px", 26))
    assert_prefix(tmp_path / "episode", at + 1)


def record_on_full_disk(folder, limit_bytes):
    """A file can have no more than so many bytes."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        record(folder)
    except OSError as error:
        sys.exit(error.errno)


@pytest.mark.parametrize("limit_bytes", [7_000, 20_000, 30_001, 45_000])
def test_a_full_disk_leaves_the_decisions_that_fitted(limit_bytes, episodes, tmp_path):
    folder = tmp_path / "episode"
    process = FORK.Process(target=record_on_full_disk, args=(folder, limit_bytes))
    process.start()
    process.join()
    assert process.exitcode == errno.EFBIG
    fitted = sum(end <= limit_bytes for end in line_ends(episodes["short"], TRANSITIONS)) - 1
    assert 0 < fitted < 12
    assert read(folder, SUMMARY)["error_type"] == "OSError"
    assert_prefix(folder, fitted)


@QUICK
@pytest.mark.parametrize("name", [TRANSITIONS, FRAMES])
def test_a_disk_that_was_full_for_a_moment_leaves_the_decisions_that_are_counted(name, tmp_path, monkeypatch):
    folder = tmp_path / "episode"
    write_to, failures = os.write, []

    def write(descriptor, data):
        """What fits into 20,000 bytes; the next write fails; after it there is room again."""
        is_meant = (folder / name).exists() and os.path.samestat(os.fstat(descriptor), (folder / name).stat())
        room = 20_000 - os.fstat(descriptor).st_size
        if failures or not is_meant or len(data) <= room:
            return write_to(descriptor, data)
        if room > 0:
            return write_to(descriptor, data[:room])
        failures.append(descriptor)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(OSError, match="No space left"):
        record(folder)
    assert len(failures) == 1
    assert_prefix(folder, read(folder, SUMMARY)["decisions"])


def run_record(*arguments, limit_bytes=None):
    """The command in a process of its own, perhaps with a limit to the size of files."""
    limit = None if limit_bytes is None else (limit_bytes, limit_bytes)
    return subprocess.Popen(
        [sys.executable, "-m", "recorder.cli", "play", *PLAY_HISTORICAL, *map(str, arguments)],
        preexec_fn=None if limit is None else lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),  # noqa: PLW1509 - no threads
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


PLAY_HISTORICAL = ["--env", GAME, "--track", "objects", "--layout", "pong-play-v1", "--policy", "track-4px"]


def test_the_command_says_in_one_sentence_which_file_the_full_disk_has_no_room_for(tmp_path):
    process = run_record("--decisions", 12, "--out", tmp_path / "episode", limit_bytes=20_000)
    out, err = process.communicate()
    assert (process.returncode, out) == (REFUSED, ""), err
    assert err.count("\n") == 1
    assert f"{tmp_path / 'episode' / TRANSITIONS}: File too large: free some space" in err
    rows_written = (tmp_path / "episode" / TRANSITIONS).read_bytes().count(b"\n")
    assert 0 < rows_written < 12
    assert_prefix(tmp_path / "episode", rows_written)


def test_the_command_can_be_interrupted(tmp_path):
    folder = tmp_path / "episode"
    process = run_record("--decisions", 10**6, "--out", folder)
    while not (folder / TRANSITIONS).exists() or (folder / TRANSITIONS).stat().st_size < 20_000:
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, out, err.count("\n")) == (130, "", 1)
    assert "is a prefix that `replay` verifies" in err
    assert_prefix(folder, (folder / TRANSITIONS).read_bytes().count(b"\n"))


# Inspection


def inspect(capsys, *arguments):
    """Exit code of `inspect-step`, and what it says on both streams."""
    code = replay.cli.inspect_main([*map(str, arguments)])
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    return code, out, err


@pytest.mark.parametrize(
    ("base", "decision", "raw_frames", "said"),
    [
        ("short", 0, [27, 28, 29, 30], ["ball      not seen", "rewards           [0.0,0.0,0.0,0.0]"]),
        ("short", 11, [71, 72, 73, 74], ["ended             truncated"]),
        ("point", 0, [27, 28, 29, 30], ["ended             no"]),
        ("point", 57, [255, 256], ["rewards           [0.0,-1.0]", "ball      x 156, y 161, 2 x 4 px"]),
        ("orphans", 8, [59, 60, 61, 62], ["ended             no"]),
    ],
)
def test_a_decision_is_shown_with_its_objects_and_raw_frames(
    base, decision, raw_frames, said, episodes, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "200")
    folder = episodes[base]
    code, out, err = inspect(capsys, "--decision", decision, "--episode", folder)
    assert (code, err) == (VERIFIED, "")
    assert out.startswith(f"decision {decision} of {folder} (ALE/Pong-v5, seed ")
    assert "local policy: nothing was sent" in out
    assert f"{len(raw_frames)} raw frames, for each of which the action was requested" in out
    assert all(text in out for text in said), out

    code, out, _ = inspect(capsys, "--decision", decision, "--episode", folder, "--json")
    shown = json.loads(out)
    assert code == VERIFIED
    assert shown["transition"] == read(folder, TRANSITIONS)[decision]
    assert shown["frames"] == [each for each in read(folder, FRAMES) if each["decision"] == decision]
    assert [each["raw_frame"] for each in shown["frames"]] == raw_frames
    assert (shown["policy"], shown["faults"]) == ("track-ball-center-4px-v1", [])


@pytest.mark.parametrize(
    ("base", "edit", "decision", "held"),
    [
        ("short", nothing, 12, "decisions 0 to 11"),
        ("short", nothing, 10**9, "decisions 0 to 11"),
        ("orphans", nothing, 9, "decisions 0 to 8"),
        ("short", cut(TRANSITIONS, 1), 11, "decisions 0 to 10$"),
        ("short", replace(TRANSITIONS, b""), 0, "no decision"),
    ],
)
def test_a_decision_that_there_is_not_is_refused(base, edit, decision, held, episodes, tmp_path, capsys):
    folder = shutil.copytree(episodes[base], tmp_path / "episode")
    edit(folder)
    code, out, err = inspect(capsys, "--decision", decision, "--episode", folder)
    assert (code, out) == (USAGE, "")
    assert re.search(f"has no decision {decision}: it holds {held}", err.strip())


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (row(3, "decision", to=4), "line 4 holds decision 4 where decision 3 should be"),
        (drop(TRANSITIONS, 1), "line 4 holds decision 4 where decision 3 should be"),
        (row(3, "action", to="2"), r"line 4 breaks pong-play-v1.transition.schema.json at \['action'\]"),
        (text(TRANSITIONS, ZERO, NAN, line=3), "line 4 is not strict JSON: NaN is not JSON"),
        (frame(13, "ram_bytes", 5, to=256), "frames.jsonl line 14 breaks pong-play-v1.frame.schema.json"),
        (drop(FRAMES, 13), "damaged: .*frames.jsonl holds 3 of the decision's 4 raw frames"),
        (replace(FRAMES, b""), "damaged: .*frames.jsonl holds 0 of the decision's 4 raw frames"),
        (cut(MANIFEST, 99), "manifest.json is not strict JSON"),
    ],
)
def test_a_damaged_decision_is_shown_as_such(edit, message, episodes, tmp_path, capsys):
    folder = shutil.copytree(episodes["short"], tmp_path / "episode")
    edit(folder)
    code, _, err = inspect(capsys, "--decision", 3, "--episode", folder)
    assert code == DAMAGED
    assert re.search(message, err), err


def test_an_episode_without_raw_frames_is_inspected_without_them(episodes, tmp_path, capsys):
    folder = shutil.copytree(episodes["short"], tmp_path / "episode")
    make_generation(folder, has_limit=False, has_frames=False)
    code, out, _ = inspect(capsys, "--decision", 11, "--episode", folder, "--json")
    assert code == VERIFIED
    assert (json.loads(out)["frames"], json.loads(out)["faults"]) == ([], [])


@QUICK
@pytest.mark.parametrize(("base", "decision"), [("short", 0), ("short", 11), ("point", 57), ("model", 5)])
def test_the_image_of_a_decision_is_the_screens_whose_digests_are_recorded(base, decision, episodes, tmp_path, capsys):
    image = tmp_path / "strip.png"
    code, out, err = inspect(capsys, "--decision", decision, "--episode", episodes[base], "--image", image)
    assert (code, err) == (VERIFIED, "")
    assert f"raw frames drawn in {image}" in out
    strip = np.asarray(Image.open(image))
    screens = [strip[:, left : left + 160] for left in range(0, strip.shape[1], 164)]
    digests = [hashlib.sha256(screen.tobytes()).hexdigest() for screen in screens]
    recorded = [each for each in read(episodes[base], FRAMES) if each["decision"] == decision]
    assert digests == [each["rgb_sha256"] for each in recorded]


@QUICK
@pytest.mark.parametrize(
    ("edit", "options", "expected", "message"),
    [
        (row(3, "rewards", 0, to=1.0), [], DIVERGED, "the replay leaves the record at decision 3: run `replay"),
        (lambda folder: put_versions(folder, OLD_VERSIONS), [], REFUSED, "numpy 2.5.3 -> .*--allow-other-versions"),
        (lambda folder: put_versions(folder, OLD_VERSIONS), ["--allow-other-versions"], VERIFIED, ""),
        (protocol("rom_sha256", to="0" * 64), [], REFUSED, "ROM pong.bin"),
        (manifest("policy", to="x"), [], REFUSED, "policy 'x' is not known"),
    ],
)
def test_an_image_is_drawn_of_what_was_recorded_or_not_at_all(
    edit, options, expected, message, episodes, tmp_path, capsys
):
    folder = shutil.copytree(episodes["short"], tmp_path / "episode")
    edit(folder)
    image = tmp_path / "strip.png"
    code, _, err = inspect(capsys, "--decision", 5, "--episode", folder, "--image", image, *options)
    assert code == expected, err
    assert re.search(message, err), err
    assert image.exists() == (expected == VERIFIED)


def test_an_image_goes_neither_into_an_episode_nor_over_a_file(episodes, tmp_path, capsys):
    folder = shutil.copytree(episodes["short"], tmp_path / "episode")
    (tmp_path / "taken.png").touch()
    for image in (folder / "strip.png", tmp_path / "taken.png"):
        assert inspect(capsys, "--decision", 0, "--episode", folder, "--image", image)[0] == USAGE
    assert bytes_of(folder) == bytes_of(episodes["short"])
    assert (tmp_path / "taken.png").read_bytes() == b""


def exchange(number, observation, **fields):
    """A row of the log, as the lab wrote it."""
    return {
        "exchange_id": number,
        "request": {"model": "jev-1.13.0", "state": {"observation": observation}, "questions": {}},
        "response": {"model": "jev-1.13.0", "answers": {}, "usage": {}},
        "transport": {"attempt": 1, "status": 200},
        **fields,
    }


def inspect_model(capsys, episodes, tmp_path, *, beside=None, at_root=None, options=()):
    """What `inspect-step` says of decision 3, exchange 4, with logs in these places."""
    suite = tmp_path / "suite"
    suite.mkdir()
    folder = shutil.copytree(episodes["model"], suite / "seed-26")
    for place, exchanges in ((folder, beside), (suite, at_root)):
        if exchanges is not None:
            (place / EXCHANGES).write_bytes(b"".join(map(encode_historical_line, exchanges)))
    code, out, err = inspect(capsys, "--decision", 3, "--episode", folder, "--json", *options)
    assert (code, err) == (VERIFIED, "")
    shown = json.loads(out)
    return shown["input_origin"], shown["request"], shown["response"]


@pytest.fixture
def seen(episodes):
    """The observation of decision 3."""
    return read(episodes["model"], TRANSITIONS)[3]["observation"]


def test_an_exchange_is_found_beside_the_episode(seen, episodes, tmp_path, capsys):
    log = [exchange(3, {}), exchange(4, seen), exchange(5, {})]
    origin, request, response = inspect_model(capsys, episodes, tmp_path, beside=log)
    assert origin == "recorded"
    assert (request, response) == (log[1]["request"], log[1]["response"])


def test_an_exchange_is_found_at_the_root_of_the_suite(seen, episodes, tmp_path, capsys):
    log = [exchange(4, seen)]
    for number, beside in enumerate((None, [exchange(9, {})])):
        (tmp_path / str(number)).mkdir()
        found = inspect_model(capsys, episodes, tmp_path / str(number), beside=beside, at_root=log)
        assert found[0] == "recorded at the root of the run"
        assert found[1:] == (log[0]["request"], log[0]["response"])


def test_the_log_beside_the_episode_goes_before_that_of_the_suite(seen, episodes, tmp_path, capsys):
    log = [exchange(4, seen)]
    origin, request, _ = inspect_model(capsys, episodes, tmp_path, beside=log, at_root=[exchange(4, {})])
    assert origin == "recorded"
    assert request == log[0]["request"]


@pytest.mark.parametrize("log", [None, [], [exchange(3, {})], [exchange(True, {})], [exchange(4.0, {})]])
def test_an_exchange_that_was_recorded_and_is_nowhere_is_called_missing(log, episodes, tmp_path, capsys):
    origin, request, response = inspect_model(capsys, episodes, tmp_path, beside=log)
    assert re.fullmatch("recorded but missing: .* exchange 4", origin)
    assert (request, response) == (None, None)


def test_an_exchange_without_a_response_is_called_failed(seen, episodes, tmp_path, capsys):
    log = [exchange(4, seen, response=None)]
    origin, request, response = inspect_model(capsys, episodes, tmp_path, beside=log)
    assert "failed" in origin
    assert (request, response) == (log[0]["request"], None)


def test_of_two_exchanges_with_one_id_none_is_taken(seen, episodes, tmp_path, capsys):
    log = [exchange(4, seen, response=None), exchange(4, seen)]
    origin, request, response = inspect_model(capsys, episodes, tmp_path, beside=log)
    assert "more than one" in origin
    assert (request, response) == (None, None)


def test_an_exchange_about_another_observation_is_not_taken_for_the_decisions(episodes, tmp_path, capsys):
    origin, request, _ = inspect_model(capsys, episodes, tmp_path, beside=[exchange(4, {"objects": []})])
    assert "another observation" in origin
    assert request is None


def test_a_model_without_exchange_ids_has_only_its_program(episodes, tmp_path, capsys):
    folder = shutil.copytree(episodes["model"], tmp_path / "episode")
    (folder / EXCHANGES).write_bytes(encode_historical_line(exchange(4, {})))
    for edit, origin in ((nothing, "wording unavailable"), (manifest("question_program", to=REMOVED), "unavailable")):
        rows(TRANSITIONS, lambda content: [each["prediction"].pop("exchange_id", None) for each in content])(folder)
        edit(folder)
        code, out, _ = inspect(capsys, "--decision", 3, "--episode", folder, "--json")
        assert code == VERIFIED
        assert json.loads(out)["input_origin"].startswith(origin)
        assert (json.loads(out)["request"], json.loads(out)["response"]) == (None, None)


# Refusals of `record play`


OBJECTS = ["--env", GAME, "--track", "objects"]
LAYOUT = ["--layout", "pong-play-v1"]
REFUSALS = [
    (
        "another game",
        ["--env", "ALE/Breakout-v5", "--track", "objects", *LAYOUT],
        "use --env ALE/Pong-v5 --track objec",
    ),
    ("no game", ["--env", "CartPole-v1", *LAYOUT], "--layout is for Atari games"),
    ("a factory", ["--factory", "environments:make_rotor", *LAYOUT], "--layout is for Atari games"),
    ("no track", ["--env", GAME, *LAYOUT], "use --env ALE/Pong-v5 --track objects"),
    (
        "random policy of all",
        [*OBJECTS, *LAYOUT, "--policy", "track-3px"],
        "knows the policies track-2px, track-4px, in",
    ),
    ("recorded name", [*OBJECTS, *LAYOUT, "--policy", "random-v1"], "knows the policies"),
    ("policy of a module", [*OBJECTS, *LAYOUT, "--policy", "environments:policy"], "knows the policies"),
    ("raw frames", [*OBJECTS, *LAYOUT, "--frames", "8"], "has no limit of raw frames: use --decisions"),
    ("episodes", [*OBJECTS, *LAYOUT, "--episodes", "2"], "one episode a folder"),
    ("mode", [*OBJECTS, *LAYOUT, "--mode", "1"], "no place for --mode"),
    ("difficulty", [*OBJECTS, *LAYOUT, "--difficulty", "1"], "no place for --difficulty"),
    ("all actions", [*OBJECTS, *LAYOUT, "--full-action-space"], "no place for --full-action-space"),
    ("no pictures", [*OBJECTS, *LAYOUT, "--no-rgb"], "no place for --no-rgb"),
    ("info", [*OBJECTS, *LAYOUT, "--info", "lives"], "no place for --info"),
    ("keyword arguments", [*OBJECTS, *LAYOUT, "--env-kwargs", '{"frameskip": 4}'], "no place for --env-kwargs"),
    ("screen", [*OBJECTS, *LAYOUT, "--observe", "rgb"], "not from --observe rgb"),
    ("grey screen", [*OBJECTS, *LAYOUT, "--observe", "grayscale"], "not from --observe grayscale"),
    ("objects of the screen", [*OBJECTS, "--observe", "rgb"], "not from --observe rgb"),
    ("vision without track", ["--env", GAME, "--observe", "vision"], "add --track objects"),
    ("track without game", ["--env", "CartPole-v1", "--track", "objects"], "--track is for Atari games"),
    (
        "track of another game",
        ["--env", "ALE/Breakout-v5", "--track", "objects"],
        "the object track is made for ALE/Pon",
    ),
    ("vision unseen", [*OBJECTS, "--observe", "vision", "--no-rgb"], "render_mode='rgb_array'"),
    ("track's policy", [*OBJECTS, "--policy", "track-3px"], "use track-2px, track-4px, intercept, random"),
    ("policy without track", ["--env", GAME, "--policy", "track-2px"], "track-2px"),
    ("long hold", [*OBJECTS, *LAYOUT, "--hold", "17"], "hold.*from 1 to 16"),
    ("sticky", [*OBJECTS, *LAYOUT, "--sticky", "1.5"], "sticky probability must be from 0 to 1"),
    ("sticky NaN", [*OBJECTS, *LAYOUT, "--sticky", "nan"], "sticky probability must be from 0 to 1"),
    ("many no-ops", [*OBJECTS, *LAYOUT, "--noop-max", "61"], "noop.*from 0 to 60"),
    ("RAM", [*OBJECTS, *LAYOUT, "--ram", "none"], "no place for --ram"),
    ("seed", [*OBJECTS, *LAYOUT, "--seed", str(2**64)], "seed"),
    ("point limit", [*OBJECTS, *LAYOUT, "--point-limit", str(2**64)], "limit"),
]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [pytest.param(*line[1:], id=line[0]) for line in REFUSALS],
)
def test_what_the_layout_or_the_track_cannot_hold_is_refused_in_one_sentence(arguments, message, tmp_path, capsys):
    length = [] if "--frames" in arguments else ["--decisions", "2"]
    code = recorder.cli.main(["play", *arguments, *length, "--out", str(tmp_path / "out")])
    out, err = capsys.readouterr()
    assert (code, out) == (USAGE, ""), err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert re.search(message, err), err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "many", ""])
@pytest.mark.parametrize("option", ["--decisions", "--point-limit", "--hold"])
def test_a_number_that_counts_nothing_is_refused(option, value, tmp_path, capsys):
    arguments = [*OBJECTS, *LAYOUT, *([] if option == "--decisions" else ["--decisions", "2"]), f"{option}={value}"]
    with pytest.raises(SystemExit) as stopped:
        recorder.cli.main(["play", *arguments, "--out", str(tmp_path / "out")])
    assert stopped.value.code == USAGE
    assert "must be a whole number from 1 up" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["folder", "file", "link to nothing", "inside an episode", "deep inside an episode"])
def test_an_output_that_exists_or_lies_in_an_episode_is_refused(place, episodes, tmp_path, capsys):
    out = tmp_path / "out"
    if place == "folder":
        out.mkdir()
    elif place == "file":
        out.write_bytes(b"mine")
    elif place == "link to nothing":
        out.symlink_to(tmp_path / "nowhere")
    else:
        out = shutil.copytree(episodes["short"], out) / ("in" if place == "inside an episode" else "in/deep")
    before = sorted(tmp_path.rglob("*"))
    code = recorder.cli.main(["play", *OBJECTS, *LAYOUT, "--decisions", "2", "--out", str(out)])
    said, err = capsys.readouterr()
    assert (code, said, err.count("\n")) == (USAGE, "", 1)
    assert "choose another" in err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_missing_package_is_told_before_anything_is_written(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    code = recorder.cli.main(["play", *OBJECTS, *LAYOUT, "--decisions", "2", "--out", str(tmp_path / "out")])
    assert code == REFUSED
    assert "replay-recorder[atari]" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_one_episode_and_says_how_to_verify_it(tmp_path, capsys):
    folder = tmp_path / "some" / "where"
    arguments = [*OBJECTS, *LAYOUT, "--policy", "track-4px", "--seed", "26", "--decisions", "12", "--out", str(folder)]
    assert recorder.cli.main(["play", *arguments]) == 0
    said = capsys.readouterr().out
    assert "recorded 1 episode, 12 decisions of 48 raw frames" in said
    assert f"verify the first with: replay --episode {folder}\n" in said
    assert sorted(bytes_of(folder)) == [FRAMES, MANIFEST, SUMMARY, TRANSITIONS]
    written = read(folder, MANIFEST)
    assert written["record_files"] == [TRANSITIONS, FRAMES]
    assert list(written)[:8] == [
        *("kind", "protocol", "seed", "split", "policy", "max_decisions", "point_limit", "video_clock")
    ]
    assert list(written["protocol"]) == [*PUBLISHED_PROTOCOL, "rom_sha256", "versions", "protocol_hash"]


PUBLISHED_PROTOCOL = [
    *("hold_frames", "sticky", "observation", "noop_max", "game", "mode", "difficulty", "frameskip"),
    *("full_action_space", "extractor"),
]
