"""Whatever is changed is found: one ulp in the simulator, and every field of every record, with digests or without."""

import copy
import fnmatch
import hashlib
import itertools
import json
import math
import shutil

import gymnasium
import numpy as np
import orjson
import pytest
from gymnasium.envs.classic_control.acrobot import AcrobotEnv
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from environments import FramesEnv, RotorEnv, SpaceEnv, drawn_actions, make_held_rotor, record, record_factory
from recorder import RecordEpisode
from recorder.encoding import decode_value, encode_value
from recorder.errors import DamagedError, RecorderError, UntrustedCodeError
from recorder.records import (
    ARRAYS,
    FRAMES,
    MANIFEST,
    RECORD_FILES,
    RESET,
    SUMMARY,
    TRANSITIONS,
    digest_of,
    encode_document,
    encode_line,
    schema_folder,
    validate_row,
)
from replay.opening import replay_episode

VERIFIED, DIVERGED, DAMAGED, REFUSED = 0, 1, 3, 4

# Episodes that have, together, every field of every record.


def play_frames(out):
    """RAM, pictures, raw frames, info, arrays on the side, options, predictions, policy and protocol; terminated."""
    kwargs = {"render_mode": "rgb_array", "steps": 5}
    with RecordEpisode(
        FramesEnv(**kwargs),
        out,
        factory="environments:make_frames",
        factory_kwargs=kwargs,
        info_keys=["mood", "pressure", "map"],
        policy={"name": "drawn", "run_seed": 7},
        protocol={"title": "a protocol", "rounds": [1, 2]},
    ) as recorder:
        recorder.reset(seed=3, options={"position": 2.5})
        for number, action in zip(range(5), drawn_actions(FramesEnv(), 7), strict=False):
            recorder.predict({"why": f"reason {number}", "p": 0.25})
            recorder.step(action)
    return recorder.episode_folder


def play_spec(out):
    """Built from a spec with wrappers and their arguments; truncated by its time limit."""
    env = gymnasium.wrappers.ClipReward(gymnasium.make("CartPole-v1", max_episode_steps=7), 0.25, 0.75)
    folder, *_ = record(env, out, decisions=7, ram="numpy:state", policy="drawn")
    return folder


def play_limit(out):
    """Ended by the caller at the stated limit."""
    with RecordEpisode(RotorEnv(), out, factory="environments:make_rotor", ram="numpy:state") as recorder:
        recorder.limit(decisions=5)
        recorder.reset(seed=1)
        for _, action in zip(range(5), drawn_actions(RotorEnv(), 7), strict=False):
            recorder.step(action)
        recorder.end_episode()
    return recorder.episode_folder


def play_wide(out):
    """Actions beyond a line; the second episode of its run, abandoned."""
    kwargs = {"space_name": "box beyond a line", "decisions": 9}
    env = SpaceEnv(**kwargs)
    actions = drawn_actions(env, 7)
    with RecordEpisode(env, out, factory="environments:make_space_env", factory_kwargs=kwargs) as recorder:
        recorder.reset(seed=5)
        recorder.reset()
        folder = recorder.episode_folder
        for _ in range(3):
            recorder.step(next(actions))
        recorder.reset()
    return folder


def play_held(out):
    """Actions held for three raw frames, up to limits that cut the last hold short."""
    kwargs = {"hold_frames": 3}
    env = make_held_rotor(**kwargs)
    with RecordEpisode(
        env, out, factory="environments:make_held_rotor", factory_kwargs=kwargs, ram="numpy:state"
    ) as recorder:
        recorder.limit(raw_frames=7, points=9)
        recorder.reset(seed=2)
        for _, action in zip(range(3), drawn_actions(RotorEnv(), 7), strict=False):
            recorder.step(action)
        recorder.end_episode()
    return recorder.episode_folder


PLAYS = {"frames": play_frames, "spec": play_spec, "limit": play_limit, "wide": play_wide, "held": play_held}


@pytest.fixture(scope="module")
def episodes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("episodes")
    return {name: play(folder / name) for name, play in PLAYS.items()}


def judge(folder):
    """Exit code, and the verdict or the error that gave it."""
    try:
        verdict = replay_episode(folder, trust=["environments"])
    except RecorderError as error:
        return error.exit_code, error
    return verdict.exit_code, verdict


def read(folder, name):
    """A document, or the list of a file's lines."""
    data = (folder / name).read_bytes()
    return json.loads(data) if name.endswith(".json") else [json.loads(line) for line in data.splitlines()]


def write(folder, name, content):
    data = encode_document(content) if name.endswith(".json") else b"".join(map(encode_line, content))
    assert data != (folder / name).read_bytes()
    (folder / name).write_bytes(data)


def redo_digests(folder, *, is_redoing_files=True):
    """What a careful forger does: every digest fits again."""
    if (folder / MANIFEST).exists():
        manifest = read(folder, MANIFEST)
        if isinstance(manifest, dict):
            (folder / MANIFEST).write_bytes(encode_document({**manifest, "digest": digest_of(manifest)}))
    if not (folder / SUMMARY).exists():
        return
    summary = read(folder, SUMMARY)
    if is_redoing_files:
        for name in RECORD_FILES:
            if (folder / name).exists() and name in summary.get("files", {}):
                data = (folder / name).read_bytes()
                summary["files"][name] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    (folder / SUMMARY).write_bytes(encode_document({**summary, "digest": digest_of(summary)}))


@pytest.mark.parametrize("name", PLAYS)
def test_the_originals_verify(name, episodes):
    code, verdict = judge(episodes[name])
    assert code == VERIFIED, verdict
    assert verdict.name == ("verified prefix" if name == "wide" else "verified")
    assert not verdict.faults
    assert not verdict.mismatches


@pytest.mark.parametrize("name", PLAYS)
def test_the_originals_verify_after_their_digests_were_done_again(name, episodes, tmp_path):
    folder = shutil.copytree(episodes[name], tmp_path / "copy")
    redo_digests(folder)
    for path in folder.iterdir():
        assert path.read_bytes() == (episodes[name] / path.name).read_bytes()
    assert judge(folder)[0] == VERIFIED


# One ulp in the simulator


def step_side_by_side(envs, actions, *, seed, has_state):
    """The first decision in which two bare environments differ in anything that is recorded, and in what."""
    for env in envs:
        env.reset(seed=seed)
    for decision, action in enumerate(actions):
        (first, reward, *flags, _), (second, other_reward, *other_flags, _) = (env.step(action) for env in envs)
        differing = {"next_observation"} if first.tobytes() != second.tobytes() else set()
        differing |= {"reward"} if reward != other_reward else set()
        differing |= {"flags"} if flags != other_flags else set()
        if has_state and np.asarray(envs[0].state).tobytes() != np.asarray(envs[1].state).tobytes():
            differing |= {"ram"}
        if differing:
            return decision, differing
    return None, set()


def recorded_actions(folder):
    return [decode_value(row["action"]) for row in read(folder, TRANSITIONS)]


def assert_found(verdict, decision, differing):
    assert verdict.name == ("verified" if decision is None else "diverged"), verdict.to_json()
    assert {mismatch.place.decision for mismatch in verdict.mismatches} == ({decision} - {None})
    fields = {mismatch.field for mismatch in verdict.mismatches}
    found = {"next_observation", "reward"} & fields
    found |= {"ram"} if "ram" in fields else set()
    found |= {"flags"} if {"terminated", "truncated"} & fields else set()
    assert found == differing


GRAVITIES = [9.81, 30.0, 5.0, 3.3, 2.5, 0.5]


@pytest.mark.parametrize("gravity", GRAVITIES)
@pytest.mark.parametrize("ram", ["numpy:state", None])
def test_one_ulp_of_gravity_is_found_at_its_true_first_decision(gravity, ram, tmp_path):
    kwargs = {"gravity": gravity, "steps": 60}
    (folder,) = record_factory("make_rotor", tmp_path / "run", kwargs, decisions=60, ram=ram)
    changed = math.nextafter(gravity, math.inf)
    manifest = read(folder, MANIFEST)
    manifest["environment"]["factory"]["kwargs"]["dict"]["gravity"] = changed
    write(folder, MANIFEST, manifest)
    redo_digests(folder)
    envs = [RotorEnv(gravity, 60), RotorEnv(changed, 60)]
    decision, differing = step_side_by_side(envs, recorded_actions(folder), seed=0, has_state=ram is not None)
    assert_found(judge(folder)[1], decision, differing)


def test_the_first_decisions_of_those_ulps_are_not_all_the_same():
    found = set()
    for gravity in GRAVITIES:
        envs = [RotorEnv(gravity, 60), RotorEnv(math.nextafter(gravity, math.inf), 60)]
        actions = itertools.islice(drawn_actions(RotorEnv(), 7), 60)
        found.add(step_side_by_side(envs, actions, seed=0, has_state=False)[0])
    assert len(found) >= 3
    assert max(decision for decision in found if decision is not None) > 3


@pytest.mark.parametrize("constant", ["LINK_MASS_1", "LINK_MASS_2", "LINK_COM_POS_1", "LINK_MOI"])
def test_one_ulp_in_a_simulator_of_gymnasium_is_found_at_its_true_first_decision(constant, tmp_path, monkeypatch):
    (folder,) = record(gymnasium.make("Acrobot-v1"), tmp_path / "run", decisions=100, ram="numpy:state")
    value = math.nextafter(getattr(AcrobotEnv, constant), math.inf)
    plain, changed = AcrobotEnv(), AcrobotEnv()
    setattr(changed, constant, value)
    decision, differing = step_side_by_side([plain, changed], recorded_actions(folder), seed=0, has_state=True)
    assert differing == {"ram"}
    monkeypatch.setattr(AcrobotEnv, constant, value)
    assert_found(judge(folder)[1], decision, differing)


@pytest.mark.parametrize("constant", ["force_mag", "length", "tau"])
@pytest.mark.parametrize("ram", ["numpy:state", None])
def test_one_ulp_in_cartpole_shows_in_its_state_and_not_in_its_rounded_observation(
    constant, ram, tmp_path, monkeypatch
):
    folder, *_ = record(gymnasium.make("CartPole-v1"), tmp_path / "run", decisions=40, ram=ram)
    plain, changed = CartPoleEnv(), CartPoleEnv()
    value = math.nextafter(getattr(plain, constant), math.inf)
    setattr(changed, constant, value)
    envs = [plain, changed]
    decision, differing = step_side_by_side(envs, recorded_actions(folder), seed=0, has_state=ram is not None)
    assert (decision is None) == (ram is None)
    original = CartPoleEnv.__init__

    def build(self, *args, **kwargs):
        original(self, *args, **kwargs)
        setattr(self, constant, value)

    monkeypatch.setattr(CartPoleEnv, "__init__", build)
    assert_found(judge(folder)[1], decision, differing)


def test_one_ulp_of_a_recorded_number_is_told_as_one_ulp(episodes, tmp_path):
    folder = shutil.copytree(episodes["limit"], tmp_path / "copy")
    rows = read(folder, TRANSITIONS)
    values = rows[3]["next_observation"]["values"]
    values[1] = float(np.nextafter(np.float32(values[1]), np.float32(np.inf)))
    rows[4]["observation"] = rows[3]["next_observation"]
    write(folder, TRANSITIONS, rows)
    redo_digests(folder)
    code, verdict = judge(folder)
    (mismatch,) = verdict.mismatches
    assert code == DIVERGED
    assert (mismatch.place.record, mismatch.place.decision) == ("transition", 3)
    assert (mismatch.field, mismatch.index, mismatch.ulp, mismatch.elements) == ("next_observation", (1,), 1, 1)


# Every field of every record

# (episode, line) of the lines that are changed; documents have no lines.
LINES = {
    TRANSITIONS: {"frames": (1, 4), "spec": (3, 6), "limit": (2,), "wide": (1,), "held": (1,)},
    FRAMES: {"frames": (4, 14), "spec": (3, 6), "limit": (2,), "wide": (1,), "held": (1,)},
}
RECORD_OF = {MANIFEST: "manifest", RESET: "reset", TRANSITIONS: "transition", FRAMES: "frame", SUMMARY: "summary"}

# What no replay can see once all digests were done again, by "EPISODE RECORD.FIELD... CHANGE", and why.
UNSEEN = {
    "* manifest.provenance*": "who made it, when and from which commit: nothing of it reaches the simulator",
    "* manifest.policy*": "the policy is not run",
    "* manifest.protocol[. ]*": "settings in words; its own digest was done again as well",
    "* transition.prediction*": "why the policy chose: the policy is not run",
    "[!w]* manifest.episode_index*": "the number within a run that is not at hand, and whose seed was given",
    "* manifest.reset.seed_origin*": "where the seed came from; the seed itself is compared",
    "* manifest.environment.distribution*": "the version that counts stands in the fingerprint",
    "* manifest.environment.assets*": "none of these environments has files of its own",
    "* manifest.environment.*_space deleted": "optional text; what the spaces gave is compared value by value",
    "* manifest.environment.spec.reward_threshold*": "no environment and no wrapper reads it",
    "* manifest.environment.spec.nondeterministic*": "a remark of whoever registered it",
    "* manifest.environment.spec.vector_entry_point*": "only vectors are built from it",
    "* manifest.environment.spec.additional_wrappers[[]*].name *": "the wrapper is built from its entry point",
    "spec manifest.environment.spec.order_enforce deleted": "true is what Gymnasium takes without it",
    "spec manifest.environment.spec.disable_env_checker deleted": "false is what Gymnasium takes without it",
    "wide manifest.environment.factory.kwargs.dict.decisions [!n]*": "an end that was not reached",
    "* manifest.channels.*.absent*": "a reason in words",
    "* manifest.channels.rgb.source letter": "any text says that pictures are recorded",
    "* manifest.info_keys doubled": "which keys, not how often",
    "* manifest.info_keys reversed": "which keys, not in which order",
    "* manifest.fingerprint.machine*": "told as a difference of machines; the values decide",
    "* manifest.fingerprint.versions* deleted": "a version that is not stated cannot be compared",
    "* summary.error_type*": "only an environment that raises in its reset raises again",
    "wide summary.end_reason closed": "who ended it, not the environment: both leave the same prefix",
    "wide summary.end_reason error": "who ended it, not the environment: both leave the same prefix",
    "held manifest.limits.points [dno]*": "an end that was not reached",
    "spec manifest.reset.options a *": "the environment looks for its own options in what it is given",
    "wide manifest.reset.options *": "this environment takes no options",
    "spec manifest.environment.spec.additional_wrappers*.min_reward *": "a bound that no reward reaches",
    "* manifest.fingerprint.versions emptied": "a version that is not stated cannot be compared",
}
# Fields of the manifest that decide what is built and run: their change may also be refused before anything runs.
MAY_BE_REFUSED = (
    "manifest.environment",
    "manifest.channels",
    "manifest.fingerprint.versions",
    "manifest.format_version",
)


def schema_fields():
    """Every property that the schemas name, as RECORD.FIELD.FIELD, values and arrays of objects included."""

    def walk(prefix, schema):
        for name, inner in schema.get("properties", {}).items():
            yield f"{prefix}.{name}"
            yield from walk(f"{prefix}.{name}", inner)
            yield from walk(f"{prefix}.{name}[]", inner.get("items", {}))
        if isinstance(schema.get("additionalProperties"), dict):
            yield from walk(f"{prefix}.*", schema["additionalProperties"])

    for name in RECORD_OF.values():
        yield from walk(name, json.loads((schema_folder() / f"{name}.schema.json").read_bytes()))


# Fields that the records have though no schema names them.
UNNAMED_FIELDS = tuple(
    f"manifest.environment.spec.{name}"
    for name in (
        "reward_threshold",
        "nondeterministic",
        "max_episode_steps",
        "order_enforce",
        "disable_env_checker",
        "vector_entry_point",
    )
)
FIELDS = (*schema_fields(), *UNNAMED_FIELDS)
# Present in none of the episodes: longer states are recorded as digests (see the test of their own below).
ELSEWHERE = {
    "reset.ram.sha256": "test_a_long_state_is_compared_by_its_digest",
    "reset.ram.bytes": "test_a_long_state_is_compared_by_its_digest",
    "frame.ram.sha256": "test_a_long_state_is_compared_by_its_digest",
    "frame.ram.bytes": "test_a_long_state_is_compared_by_its_digest",
    "manifest.environment.assets[].name": "no environment here has assets",
    "manifest.environment.assets[].sha256": "no environment here has assets",
}


class Site:
    """One place in one record of one episode: its keys from the top, and what stands there."""

    def __init__(self, episode, name, line, keys, value):
        self.episode = episode
        self.name = name
        self.line = line
        self.keys = keys
        self.value = value

    @property
    def path(self):
        """As RECORD.FIELD[0].FIELD."""
        parts = (f"[{key}]" if isinstance(key, int) else f".{key}" for key in self.keys)
        return RECORD_OF[self.name] + "".join(parts)

    def changes(self):
        """Changed values by a word for the change; DELETED for none at all."""
        value = self.value
        if value is None:
            yield from (("an object", {"a": 1}), ("a digest", "0" * 64), ("1", 1), ("0.5", 0.5), ("a text", "a"))
            yield "true", True
        elif isinstance(value, int | float):
            yield from self._number_changes(value)
        elif isinstance(value, str):
            yield from self._text_changes(value)
        elif isinstance(value, list):
            yield from list_changes(value)
        elif value:
            yield "emptied", {}
        if value is not None:
            yield "null", None
        if isinstance(self.keys[-1], str):
            yield "deleted", DELETED

    def _number_changes(self, value):
        if isinstance(value, bool):
            yield "flipped", not value
        elif isinstance(value, float):
            yield "one ulp", math.nextafter(value, math.inf)
            yield "negated", -value
        else:
            yield "one more", value + 1
            if self.name in LINES or self.name == RESET:
                yield "as float", float(value)

    def _text_changes(self, value):
        middle = len(value) // 2
        letter = {"0": "1", "a": "b"}.get(
            value[middle : middle + 1], "0" if set(value) <= set("0123456789abcdef") else "x"
        )
        if letter == value[middle : middle + 1]:
            letter = "y" if letter == "x" else "1"
        yield "letter", value[:middle] + letter + value[middle + 1 :]
        if self.keys[-1] == "dtype":
            yield from ((f"dtype {dtype}", dtype) for dtype in SWAPPED_DTYPES[value])
        if self.keys == ("end_reason",):
            reasons = ("terminated", "truncated", "decision_limit", "abandoned", "closed", "error")
            yield from ((reason, reason) for reason in reasons if reason != value)
        if self.keys == ("status",):
            yield "other", {"complete": "incomplete", "incomplete": "complete"}[value]
        if self.keys == ("clocks", "raw_frame_source"):
            yield "other", {"environment": "decision", "decision": "environment"}[value]


def list_changes(value):
    yield ("emptied", []) if value else ("filled", [1])
    if value:
        yield "shortened", value[:-1]
        yield "doubled", [*value, value[-1]]
    if value[::-1] != value:
        yield "reversed", value[::-1]


DELETED = object()
SWAPPED_DTYPES = {
    "<f4": ("<i4", ">f4", "<f8"),
    "<f8": ("<i8", ">f8", "<f4"),
    "<i8": ("<u8", ">i8", "<i4"),
    "|u1": ("|i1", "|b1", "<u2"),
}


def sites_of(folder, episode):
    for name in RECORD_OF:
        content = read(folder, name)
        for line in LINES.get(name, {}).get(episode, (None,)):
            yield from walk_sites(episode, name, line, (), content if line is None else content[line])


def walk_sites(episode, name, line, keys, value):
    if keys:
        yield Site(episode, name, line, keys, value)
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from walk_sites(episode, name, line, (*keys, key), inner)
    elif isinstance(value, list):
        for index in sorted({0, len(value) - 1} if value else set()):
            yield from walk_sites(episode, name, line, (*keys, index), value[index])


def field_of(site):
    """The longest field of the schemas that a site lies in."""
    found = ""
    for field in FIELDS:
        depth = field.count(".") + field.count("[]")
        if depth <= len(site.keys) and len(field) > len(found) and site_lies_in(site, field):
            found = field
    return found


def site_lies_in(site, field):
    record, *names = field.replace("[]", ".[]").split(".")
    if record != RECORD_OF[site.name] or len(names) > len(site.keys):
        return False
    return all(
        name == "*" or (name == "[]" and isinstance(key, int)) or name == key
        for name, key in zip(names, site.keys, strict=False)
    )


@pytest.fixture(scope="module")
def sites(episodes):
    """All sites by field."""
    by_field = {field: [] for field in FIELDS}
    for episode, folder in episodes.items():
        for site in sites_of(folder, episode):
            by_field[field_of(site)].append(site)
    return by_field


def test_every_place_in_every_record_belongs_to_a_field_of_the_table(sites):
    assert sum(map(len, sites.values())) > 500


def test_every_property_of_every_schema_is_in_some_record(sites):
    missing = {field for field, found in sites.items() if not found}
    assert missing == set(ELSEWHERE)


def test_every_reason_for_not_seeing_a_change_is_used(sites):
    labels = [
        f"{site.episode} {site.path} {change}"
        for found in sites.values()
        for site in found
        for change, _ in site.changes()
    ]
    for pattern in UNSEEN:
        assert fnmatch.filter(labels, pattern), pattern


@pytest.mark.parametrize("field", [field for field in FIELDS if field not in ELSEWHERE])
def test_every_change_of_a_field_is_found(field, sites, episodes, tmp_path):
    problems = []
    for number, site in enumerate(sites[field]):
        for change, value in site.changes():
            folder = tmp_path / f"{number} {change}"
            shutil.copytree(episodes[site.episode], folder)
            is_valid = apply_change(folder, site, value)
            problems += [
                f"{site.episode} {site.path} {change}: {problem}"
                for problem in judge_change(folder, site, change, is_valid)
            ]
            shutil.rmtree(folder)
    assert not problems, "\n".join(problems)


def apply_change(folder, site, value):
    """Change one place, and say whether the record is still valid under its schema."""
    content = read(folder, site.name)
    before = copy.deepcopy(content)
    holder = content if site.line is None else content[site.line]
    for key in site.keys[:-1]:
        holder = holder[key]
    if value is DELETED:
        del holder[site.keys[-1]]
    else:
        holder[site.keys[-1]] = value
    assert orjson.dumps(content) != orjson.dumps(before)
    write(folder, site.name, content)
    try:
        validate_row(RECORD_OF[site.name], content if site.line is None else content[site.line], where="a record")
    except DamagedError:
        return False
    return True


def judge_change(folder, site, change, is_valid):
    """What is wrong with how a change is judged: with the digests as they were, then with digests that fit."""
    yield from judge_as_it_is(folder, site, change, is_valid)
    if site.keys == ("digest",):
        return
    is_stated_digest = site.name == SUMMARY and site.keys[0] == "files"
    redo_digests(folder, is_redoing_files=not is_stated_digest)
    if site.keys[0] == "protocol":
        redo_protocol_digest(folder)
    yield from judge_with_digests_redone(folder, site, change, is_valid)


def judge_as_it_is(folder, site, change, is_valid):
    code, result = judge(folder)
    # Untrusted code is refused as such, though the manifest that names it is damaged too.
    is_refused = is_of_newer_format(site, change) or isinstance(result, UntrustedCodeError)
    if code != (REFUSED if is_refused else DAMAGED):
        yield f"as is: {describe(code, result)}"
    elif is_valid and is_given_by_the_environment(site) and not names_the_place(result, site):
        yield f"as is, not named: {describe(code, result)}"


def judge_with_digests_redone(folder, site, change, is_valid):
    code, result = judge(folder)
    problem = f"digests redone: {describe(code, result)}"
    if not is_valid:
        if code != (REFUSED if is_of_newer_format(site, change) else DAMAGED):
            yield f"schema broken, {problem}"
    elif is_unseen(site, change):
        if code != VERIFIED:
            yield f"seen, though the table says that nobody sees it, {problem}"
    elif code == DIVERGED:
        if is_given_by_the_environment(site) and not names_the_place(result, site):
            yield f"not named, {problem}"
    elif code != DAMAGED and not (code == REFUSED and site.path.startswith(MAY_BE_REFUSED)):
        yield problem


def is_of_newer_format(site, change):
    return site.keys == ("format_version",) and change == "one more"


def is_unseen(site, change):
    label = f"{site.episode} {site.path} {change}"
    return any(fnmatch.fnmatch(label, pattern) for pattern in UNSEEN)


def describe(code, result):
    facts = result if isinstance(result, Exception) else (*map(str, result.mismatches), *result.faults)
    return f"exit code {code}, {facts}"


def redo_protocol_digest(folder):
    manifest = read(folder, MANIFEST)
    if manifest.get("protocol"):
        canonical = json.dumps(manifest["protocol"], sort_keys=True, separators=(",", ":")).encode()
        manifest["protocol_sha256"] = hashlib.sha256(canonical).hexdigest()
    else:
        manifest["protocol_sha256"] = None
    (folder / MANIFEST).write_bytes(encode_document(manifest))
    redo_digests(folder)


def is_given_by_the_environment(site):
    return site.name in {RESET, TRANSITIONS, FRAMES} and site.keys[0] != "prediction"


def names_the_place(result, site):
    """Whether a divergence (or, for unreadable values, a fault) names the record, its line and the field."""
    record, field = RECORD_OF[site.name], site.keys[0]
    for mismatch in result.mismatches:
        place = mismatch.place
        if record == "reset" and (place.record, mismatch.field.partition("[")[0]) == (record, field):
            return True
        # A changed action changes what comes of it, and is named by its raw frames' requested action.
        if field == "action" and place.decision == site.line:
            return True
        is_here = place.raw_frame == site.line + 1 if record == "frame" else place.decision == site.line
        if place.record == record and is_here and mismatch.field.startswith(field):
            return True
    line = f" line {site.line + 1} " if site.line is not None else ""
    return any(
        f"{site.name}{line}" in fault or ARRAYS in fault for fault in result.faults if "was changed" not in fault
    )


def test_a_long_state_is_compared_by_its_digest(tmp_path):
    (folder,) = record_factory("make_rotor", tmp_path / "run", decisions=3, ram="environments:long_state")
    for name, line in ((RESET, None), (FRAMES, 1)):
        for key, value in (("sha256", "0" * 64), ("bytes", 5001), ("bytes", 4999)):
            changed = shutil.copytree(folder, tmp_path / f"{name} {key} {value}")
            content = read(changed, name)
            (content if line is None else content[line])["ram"][key] = value
            write(changed, name, content)
            for code in (DAMAGED, DIVERGED):
                found, verdict = judge(changed)
                assert found == code
                assert verdict.mismatches[0].field == f"ram['{key}']"
                assert verdict.mismatches[0].place.raw_frame == (None if line is None else 2)
                redo_digests(changed)


# Lines and files

# Only two of the episodes have arrays beyond a line.
FILES = [
    (episode, name)
    for episode in PLAYS
    for name in (*RECORD_FILES, SUMMARY)
    if name != ARRAYS or episode in {"frames", "wide"}
]


def remove_line(lines):
    return [*lines[:1], *lines[2:]]


def double_line(lines):
    return [*lines[:2], *lines[1:]]


def swap_lines(lines):
    return [lines[0], lines[2], lines[1], *lines[3:]]


def remove_last_line(lines):
    return lines[:-1]


def double_last_line(lines):
    return [*lines, lines[-1]]


def reverse_lines(lines):
    return lines[::-1]


def empty(lines):
    return lines[:0]


@pytest.mark.parametrize("name", [TRANSITIONS, FRAMES])
@pytest.mark.parametrize("episode", PLAYS)
@pytest.mark.parametrize(
    ("change", "place"),
    [
        (remove_line, 1),
        (double_line, 2),
        (swap_lines, 1),
        (remove_last_line, -1),
        (double_last_line, None),
        (reverse_lines, 0),
        (empty, 0),
    ],
)
def test_lines_that_are_moved_doubled_or_removed_are_found_where_it_begins(
    name, episode, change, place, episodes, tmp_path
):
    folder = shutil.copytree(episodes[episode], tmp_path / "copy")
    lines = (folder / name).read_bytes().splitlines(keepends=True)
    place = len(lines) if place is None else place % len(lines)
    (folder / name).write_bytes(b"".join(change(lines)))
    assert change(lines) != lines
    for expected in (DAMAGED, DIVERGED):
        code, verdict = judge(folder)
        assert code == expected
        assert verdict.mismatches, verdict.to_json()
        first = verdict.mismatches[0].place
        found = {TRANSITIONS: first.decision, FRAMES: (first.raw_frame or 0) - 1}
        if not (name == TRANSITIONS and change in {remove_last_line, empty}):
            assert found[name] == place
        else:
            # A transition that is missing shows in its raw frames, which nobody asks for any more.
            assert (first.record, first.decision) == ("frame", place)
        redo_digests(folder)


def test_a_last_decision_that_is_missing_in_both_files_is_found_by_the_totals(episodes, tmp_path):
    folder = shutil.copytree(episodes["frames"], tmp_path / "copy")
    write(folder, TRANSITIONS, read(folder, TRANSITIONS)[:-1])
    write(folder, FRAMES, read(folder, FRAMES)[:-3])
    redo_digests(folder)
    code, verdict = judge(folder)
    assert code == DIVERGED
    assert {mismatch.place.record for mismatch in verdict.mismatches} == {"summary"}
    assert {"decisions", "raw_frames", "return", "terminated", "end_reason"} <= {m.field for m in verdict.mismatches}


def test_a_shortened_episode_is_never_called_whole(episodes, tmp_path):
    folder = shutil.copytree(episodes["frames"], tmp_path / "copy")
    rows = read(folder, TRANSITIONS)[:-1]
    write(folder, TRANSITIONS, rows)
    write(folder, FRAMES, read(folder, FRAMES)[:-3])
    total = 0.0
    for row in rows:
        total += decode_value(row["reward"])
    totals = {"decisions": 4, "raw_frames": 12, "return": encode_value(total), "terminated": False}
    for end, expected in (("terminated", DIVERGED), ("decision_limit", DIVERGED), ("closed", VERIFIED)):
        status = "complete" if expected else "incomplete"
        summary = read(folder, SUMMARY) | totals | {"end_reason": end, "status": status}
        write(folder, SUMMARY, summary)
        redo_digests(folder)
        code, verdict = judge(folder)
        assert code == expected
        assert verdict.name == ("diverged" if expected else "verified prefix")


def test_decisions_after_the_end_are_found_though_everything_else_fits(episodes, tmp_path):
    folder = shutil.copytree(episodes["frames"], tmp_path / "copy")
    rows = read(folder, TRANSITIONS)
    write(folder, TRANSITIONS, [*rows, {**rows[-1], "decision": 5}])
    redo_digests(folder)
    code, verdict = judge(folder)
    assert code == DIVERGED
    assert (verdict.mismatches[0].place.decision, verdict.mismatches[0].field) == (5, "decision")


@pytest.mark.parametrize(("episode", "name"), FILES)
def test_files_that_are_cut_emptied_or_removed_are_found(name, episode, episodes, tmp_path):
    data = (episodes[episode] / name).read_bytes()
    changes = {
        "cut in half": data[: len(data) // 2],
        "last byte": data[:-1],
        "emptied": b"",
        "gone": None,
        "more": data + b"x",
    }
    for change, changed in changes.items():
        for is_redoing in (False, True):
            folder = shutil.copytree(episodes[episode], tmp_path / f"{change} {is_redoing}")
            (folder / name).unlink() if changed is None else (folder / name).write_bytes(changed)
            if is_redoing and name not in {MANIFEST, SUMMARY}:
                redo_digests(folder)
            code, result = judge(folder)
            if name.endswith(".json") and change == "last byte":
                # The newline after a document: its content is the same.
                assert code == (VERIFIED if name == SUMMARY or (name == RESET and is_redoing) else DAMAGED)
            elif name == ARRAYS and change == "more" and is_redoing:
                assert code == VERIFIED
                assert any("1 bytes of arrays.bin that no line refers to" in text for text in result.not_checked)
            elif change == "gone" and name == SUMMARY:
                # What an interrupted run leaves: nothing says how long it was meant to be.
                assert (code, result.name) == (VERIFIED, "verified prefix")
            elif change == "gone" and name == MANIFEST:
                assert code == 2
                assert MANIFEST in str(result)
            else:
                assert code == DAMAGED or (is_redoing and code == DIVERGED), (
                    change,
                    is_redoing,
                    describe(code, result),
                )


@pytest.mark.parametrize(("episode", "name"), FILES)
def test_no_flipped_bit_goes_unnoticed(name, episode, episodes, tmp_path):
    data = (episodes[episode] / name).read_bytes()
    rng = np.random.default_rng(1)
    folder = shutil.copytree(episodes[episode], tmp_path / "copy")
    for position in rng.integers(len(data), size=25).tolist():
        changed = bytearray(data)
        changed[position] ^= 1 << int(rng.integers(8))
        assert bytes(changed) != data
        (folder / name).write_bytes(changed)
        code, result = judge(folder)
        if is_read_the_same(data, changed):  # 1e-05 and 1E-05
            assert code in {VERIFIED, DAMAGED}
        elif code == REFUSED:
            assert isinstance(result, UntrustedCodeError) or "install a newer" in str(result)
        else:
            # The digest does not cover itself, but then it does not fit.
            assert code == DAMAGED, (position, bytes(changed[position - 20 : position + 20]), describe(code, result))


def is_read_the_same(left, right):
    try:
        return [json.loads(line) for line in left.splitlines()] == [json.loads(line) for line in right.splitlines()]
    except ValueError:
        return False


@pytest.mark.parametrize("episode", ["frames", "wide"])
def test_no_flipped_bit_of_an_array_goes_unnoticed_though_the_digests_of_the_files_fit(episode, episodes, tmp_path):
    folder = shutil.copytree(episodes[episode], tmp_path / "copy")
    data = (folder / ARRAYS).read_bytes()
    for position in [0, len(data) - 1, *np.random.default_rng(2).integers(len(data), size=10).tolist()]:
        changed = bytearray(data)
        changed[position] ^= 1
        (folder / ARRAYS).write_bytes(changed)
        redo_digests(folder)
        code, verdict = judge(folder)
        assert code == DAMAGED, position
        assert any(ARRAYS in fault for fault in verdict.faults)


def test_every_fault_of_the_bytes_is_listed_and_not_only_the_first(episodes, tmp_path):
    folder = shutil.copytree(episodes["frames"], tmp_path / "copy")
    for name in (TRANSITIONS, FRAMES, ARRAYS):
        data = bytearray((folder / name).read_bytes())
        data[-3] ^= 1
        (folder / name).write_bytes(data)
    (folder / RESET).unlink()
    code, verdict = judge(folder)
    assert code == DAMAGED
    for name in (RESET, TRANSITIONS, FRAMES, ARRAYS):
        assert any(name in fault for fault in verdict.faults), verdict.faults


@pytest.mark.parametrize(
    "text",
    [
        b'{"decision": NaN}\n',
        b'{"decision": 1, "decision": 1}\n',
        b"\xff\n",
        b"\n",
        b"[]\n",
        b"null\n",
        b"{}\n",
        b'{"action": {"int": "x"}}\n',
        b'{"action": {"tuple": 3}}\n',
        b"[" * 5000 + b"\n",
        b'{"action": ' + b"[" * 100 + b"]" * 100 + b"}\n",
    ],
    ids=ascii,
)
@pytest.mark.parametrize("name", [TRANSITIONS, FRAMES])
def test_a_line_that_no_recorder_writes_is_damage_with_its_place(text, name, episodes, tmp_path):
    folder = shutil.copytree(episodes["frames"], tmp_path / "copy")
    lines = (folder / name).read_bytes().splitlines(keepends=True)
    (folder / name).write_bytes(b"".join([lines[0], text, *lines[2:]]))
    redo_digests(folder)
    code, verdict = judge(folder)
    assert code == DAMAGED
    assert any(f"{name} line 2 (byte {len(lines[0])})" in fault for fault in verdict.faults), verdict.faults


def test_fields_of_a_later_format_are_left_alone(episodes, tmp_path):
    folder = shutil.copytree(episodes["frames"], tmp_path / "copy")
    for name in RECORD_OF:
        content = read(folder, name)
        for row in content if isinstance(content, list) else [content]:
            row["later"] = {"anything": [1, None]}
        write(folder, name, content)
    redo_digests(folder)
    assert judge(folder)[0] == VERIFIED


@pytest.mark.parametrize("name", [MANIFEST, SUMMARY])
def test_a_newer_format_is_refused_in_one_sentence(name, episodes, tmp_path):
    folder = shutil.copytree(episodes["frames"], tmp_path / "copy")
    write(folder, name, {**read(folder, name), "format_version": 2})
    code, error = judge(folder)
    assert code == REFUSED
    assert "format version 2" in str(error)
    assert "install a newer" in str(error)


@pytest.mark.parametrize(
    "env_id", ["CartPole-v", "CartPole", "", "a/b/c-v1", "CartPole-v1 ", "Acrobot-v1", "no_such:Env-v1", "CartPole-v99"]
)
def test_an_environment_id_that_was_changed_is_refused_and_nothing_of_it_imported(env_id, episodes, tmp_path):
    folder = shutil.copytree(episodes["spec"], tmp_path / "copy")
    manifest = read(folder, MANIFEST)
    manifest["environment"]["spec"]["id"] = env_id
    write(folder, MANIFEST, manifest)
    code, error = judge(folder)
    assert code == DAMAGED or isinstance(error, UntrustedCodeError)
    redo_digests(folder)
    assert judge(folder)[0] in {DIVERGED, REFUSED}
