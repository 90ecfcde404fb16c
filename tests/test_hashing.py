"""The hasher of pictures gives hashlib's digests whatever the order of calls, and whatever becomes of its worker."""

import gc
import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import gymnasium
import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recorder import RecordEpisode, hashing
from recorder.hashing import LEAST_SLOTS, MOST_SLOTS, TOLD_TOGETHER, open_hasher
from replay.opening import replay_episode

DESCRIPTORS = Path("/proc/self/fd")
SCREEN = (210, 160, 3)
SMALL = (5, 7, 3)

pytestmark = pytest.mark.skipif(not DESCRIPTORS.is_dir(), reason="there is no /proc to count descriptors in")


class ScreensEnv(gymnasium.Env):
    """Draws another big picture after every step."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 60}  # noqa: RUF012 - Gymnasium's way
    observation_space = gymnasium.spaces.Discrete(10**6)
    action_space = gymnasium.spaces.Discrete(6)
    render_mode = "rgb_array"

    def __init__(self):
        self._screens = [picture(number, SCREEN) for number in range(97)]
        self._count = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._count = 0
        return 0, {}

    def step(self, action):
        self._count += 1
        return self._count, 1.0, False, False, {}

    def render(self):
        return self._screens[self._count % len(self._screens)]


def make_screens():
    return ScreensEnv()


def record(folder):
    return RecordEpisode(ScreensEnv(), folder, factory="test_hashing:make_screens")


def hold_back(recorder):
    """Stop a recorder's clock: however slow the machine is, the next 32 decisions are one batch."""
    writer = recorder._writer
    writer._clock, writer._handed_over_at, writer._appended_at = (lambda: 0.0), 0.0, 0.0


def picture(number, shape=SMALL):
    return np.random.default_rng(number).integers(0, 256, shape, np.uint8)


def sha256(picture):
    return hashlib.sha256(picture.tobytes()).hexdigest()


def worker_of(hasher):
    """The worker's process."""
    return hasher._stop.peek()[2][0]


def kill(hasher):
    """Kill the worker, and wait until it is dead."""
    worker = worker_of(hasher)
    os.kill(worker.pid, signal.SIGKILL)
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)


def draw(hasher, picture):
    """Hand over a picture as an emulator does that draws by itself."""
    hasher.reserve()[...] = picture
    return hasher.commit()


def open_descriptors():
    """What each descriptor of this process is, but for that of the folder of descriptors."""
    return {path.name: str(path.readlink()) for path in DESCRIPTORS.iterdir() if path.is_symlink()}


def children():
    return {process.pid for process in psutil.Process().children()}


@pytest.fixture
def few_slots(monkeypatch):
    """Hashers with the least number of slots, whatever the pictures' size."""
    monkeypatch.setattr(hashing, "SLOTS_BYTES", 1)


@pytest.fixture
def hasher(few_slots):
    hasher = hashing._WorkerHasher(SMALL)
    assert len(hasher._slots) == LEAST_SLOTS
    yield hasher
    hasher.close()


# Orders of calls

SUBMIT, DRAW, OTHER = "submit", "draw", "other shape"
CALLS = st.lists(st.sampled_from([SUBMIT, DRAW, DRAW, OTHER]) | st.integers(0, 10**6), max_size=60)


@pytest.fixture(scope="module")
def shared_hasher():
    """One hasher for many examples: what one leaves unasked must not matter to the next."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hashing, "SLOTS_BYTES", 1)
        hasher = hashing._WorkerHasher(SMALL)
    yield hasher
    hasher.close()


@settings(max_examples=150, deadline=None, derandomize=True)
@given(calls=CALLS)
def test_every_order_of_calls_gives_the_digests_of_hashlib(calls, shared_hasher):
    unasked = []
    for number, call in enumerate(calls):
        if call == OTHER:
            other = picture(number, (4, 4, 3))
            unasked.append((shared_hasher.submit(other), sha256(other)))
        elif isinstance(call, str):
            take = shared_hasher.submit if call == SUBMIT else lambda one: draw(shared_hasher, one)
            unasked.append((take(picture(number)), sha256(picture(number))))
        elif unasked:
            ticket, expected = unasked.pop(call % len(unasked))
            assert shared_hasher.digest(ticket) == expected
    for ticket, expected in unasked[: len(calls) // 2]:
        assert shared_hasher.digest(ticket) == expected


@pytest.mark.parametrize("slots_bytes", [1, 10 * SMALL[0] * SMALL[1] * SMALL[2], 1 << 22])
@pytest.mark.parametrize("late", [0, 1, TOLD_TOGETHER, 3 * LEAST_SLOTS, 10**6])
@pytest.mark.parametrize("is_reversed", [False, True])
def test_more_pictures_than_slots_and_digests_that_are_asked_early_and_late(
    slots_bytes, late, is_reversed, monkeypatch
):
    monkeypatch.setattr(hashing, "SLOTS_BYTES", slots_bytes)
    hasher = hashing._WorkerHasher(SMALL)
    slots = len(hasher._slots)
    assert slots == {1: LEAST_SLOTS, 1 << 22: MOST_SLOTS}.get(slots_bytes, 10)
    waiting, found = [], {}
    for number in range(2 * slots + 5):
        waiting.append((number, hasher.submit(picture(number))))
        if len(waiting) > late:
            first, ticket = waiting.pop(0)
            found[first] = hasher.digest(ticket)
    for number, ticket in waiting[::-1] if is_reversed else waiting:
        found[number] = hasher.digest(ticket)
    assert found == {number: sha256(picture(number)) for number in range(2 * slots + 5)}
    hasher.close()


def test_a_picture_whose_buffer_is_reused_at_once_has_the_digest_that_it_had(hasher):
    buffer = np.empty(SMALL, np.uint8)
    tickets = []
    for number in range(40):
        buffer[...] = picture(number)
        tickets.append(hasher.submit(buffer))
        buffer[...] = 0
    assert [hasher.digest(ticket) for ticket in tickets] == [sha256(picture(number)) for number in range(40)]


@pytest.mark.parametrize(
    "view",
    [
        lambda whole: whole[::2, ::3],
        lambda whole: whole[::-2, ::-3],
        lambda whole: np.asfortranarray(whole[::2, ::3]),
        lambda whole: np.broadcast_to(whole[:1, :1], whole[::2, ::3].shape),
    ],
    ids=["every second", "backwards", "columns first", "one pixel"],
)
def test_a_picture_that_is_not_contiguous_is_hashed_in_c_order(view, hasher):
    seen = view(picture(1, (2 * SMALL[0] - 1, 3 * SMALL[1] - 2, 3)))
    assert seen.shape == SMALL
    assert not seen.flags.c_contiguous
    assert hasher.digest(hasher.submit(seen)) == hashlib.sha256(seen.tobytes()).hexdigest()


@pytest.mark.parametrize("shape", [(7, 5, 3), (5, 7), (5, 7, 4), (0, 7, 3), (1000, 1000, 3), ()])
def test_a_picture_of_another_shape_is_hashed_as_well(shape, hasher):
    before, other, after = hasher.submit(picture(1)), hasher.submit(picture(2, shape)), hasher.submit(picture(3))
    assert hasher.digest(other) == sha256(picture(2, shape))
    assert [hasher.digest(before), hasher.digest(after)] == [sha256(picture(1)), sha256(picture(3))]


def test_what_is_drawn_stays_until_the_next_call(hasher):
    for number in range(3 * LEAST_SLOTS):
        slot = hasher.reserve()
        slot[...] = picture(number)
        ticket = hasher.commit()
        assert slot.tobytes() == picture(number).tobytes()
        assert hasher.digest(ticket) == sha256(picture(number))


# Which hasher


def test_a_big_picture_goes_to_a_worker_where_there_is_a_second_core(monkeypatch):
    monkeypatch.setattr(hashing, "usable_cores", lambda: 2)
    hasher = open_hasher(picture(1, SCREEN))
    assert isinstance(hasher, hashing._WorkerHasher)
    assert hasher.digest(hasher.submit(picture(1, SCREEN))) == sha256(picture(1, SCREEN))
    hasher.close()


OWN = {
    "one core": ("usable_cores", lambda: 1),
    "no process to be had": ("_start_worker", lambda *_: (_ for _ in ()).throw(BlockingIOError(11, "try again"))),
    "no memory to be had": ("_open_memory", lambda: (_ for _ in ()).throw(OSError(28, "no space"))),
}


@pytest.mark.parametrize("why", [*OWN, "a small picture", "no interpreter"])
def test_the_own_hasher_is_taken_without_a_second_core_and_where_no_worker_can_be_had(why, monkeypatch):
    shape = SMALL if why == "a small picture" else SCREEN
    monkeypatch.setattr(hashing, "usable_cores", lambda: 2)
    if why in OWN:
        monkeypatch.setattr(hashing, *OWN[why])
    if why == "no interpreter":
        monkeypatch.setattr(sys, "executable", "")
    before = open_descriptors()
    hasher = open_hasher(picture(1, shape))
    assert isinstance(hasher, hashing._OwnHasher)
    tickets = [hasher.submit(picture(1, shape)), draw(hasher, picture(2, shape)), hasher.submit(picture(3, (2, 2, 3)))]
    expected = [sha256(picture(1, shape)), sha256(picture(2, shape)), sha256(picture(3, (2, 2, 3)))]
    assert [hasher.digest(ticket) for ticket in tickets] == expected
    hasher.close()
    gc.collect()
    assert open_descriptors() == before


# A worker that dies


@pytest.mark.parametrize("moment", range(0, 3 * LEAST_SLOTS, 2))
@pytest.mark.parametrize("late", [0, 5, 10**6])
def test_a_worker_that_is_killed_costs_no_digest(moment, late, hasher):
    waiting, found = [], {}
    for number in range(3 * LEAST_SLOTS):
        if number == moment:
            kill(hasher)
        waiting.append((number, draw(hasher, picture(number))))
        if len(waiting) > late:
            first, ticket = waiting.pop(0)
            found[first] = hasher.digest(ticket)
    found |= {number: hasher.digest(ticket) for number, ticket in waiting}
    assert found == {number: sha256(picture(number)) for number in range(3 * LEAST_SLOTS)}


def test_a_worker_that_is_killed_with_everything_asked_costs_no_later_digest(hasher):
    assert hasher.digest(hasher.submit(picture(1))) == sha256(picture(1))
    kill(hasher)
    assert [hasher.digest(hasher.submit(picture(n))) for n in range(20)] == [sha256(picture(n)) for n in range(20)]


def test_a_worker_that_is_killed_while_it_hashes_costs_no_digest():
    rng = np.random.default_rng(1)
    pictures = [picture(number, SCREEN) for number in range(60)]
    for delay_s in rng.uniform(0, 0.006, 12):
        hasher = hashing._WorkerHasher(SCREEN)
        hasher.digest(hasher.submit(pictures[0]))  # it has started
        killer = threading.Timer(delay_s, os.kill, (worker_of(hasher).pid, signal.SIGKILL))
        killer.start()
        tickets = [hasher.submit(each) for each in pictures]
        killer.join()
        assert [hasher.digest(ticket) for ticket in tickets] == list(map(sha256, pictures))
        hasher.close()


def test_a_worker_that_is_killed_with_answers_half_read_costs_no_digest(hasher, monkeypatch):
    """A pipe may give half a digest; no system is known to do it."""
    tickets = [hasher.submit(picture(number)) for number in range(TOLD_TOGETHER)]
    real = os.read
    monkeypatch.setattr(hashing.os, "read", lambda descriptor, _: real(descriptor, 20))
    assert hasher.digest(tickets[0]) == sha256(picture(0))
    kill(hasher)
    found = [hasher.digest(ticket) for ticket in tickets[1:]]
    assert found == [sha256(picture(number)) for number in range(1, TOLD_TOGETHER)]


def test_a_worker_that_never_starts_costs_no_digest(monkeypatch, few_slots):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    hasher = hashing._WorkerHasher(SMALL)
    tickets = [hasher.submit(picture(number)) for number in range(20)]
    assert [hasher.digest(ticket) for ticket in tickets] == [sha256(picture(number)) for number in range(20)]
    hasher.close()


# The end


@pytest.mark.parametrize("is_asked", [True, False])
@pytest.mark.parametrize("ending", ["close", "close twice", "garbage collection", "killed, then close"])
def test_no_process_and_no_descriptor_is_left_behind(ending, is_asked):
    gc.collect()
    before, processes = open_descriptors(), children()
    hasher = hashing._WorkerHasher(SCREEN)
    tickets = [hasher.submit(picture(number, SCREEN)) for number in range(12)]
    assert len(open_descriptors()) > len(before)
    (worker,) = children() - processes
    if is_asked:
        assert [hasher.digest(ticket) for ticket in tickets] == [sha256(picture(n, SCREEN)) for n in range(12)]
    if ending.startswith("killed"):
        kill(hasher)
    if ending != "garbage collection":
        hasher.close()
        assert not psutil.pid_exists(worker)
    if ending == "close twice":
        hasher.close()
    del hasher
    gc.collect()
    assert not psutil.pid_exists(worker)
    assert children() == processes
    assert open_descriptors() == before


@pytest.mark.parametrize("count", [1, TOLD_TOGETHER, 19])
def test_a_digest_can_be_had_after_closing(count):
    """Who holds decisions back may still ask."""
    hasher = hashing._WorkerHasher(SMALL)
    tickets = [hasher.submit(picture(number)) for number in range(count)]
    hasher.close()
    assert [hasher.digest(ticket) for ticket in tickets] == [sha256(picture(n)) for n in range(len(tickets))]


def test_a_closed_hasher_writes_into_no_file_that_was_opened_since(hasher, tmp_path):
    ticket = hasher.submit(picture(1))
    hasher.close()
    files = [(tmp_path / str(number)).open("w+b") for number in range(4)]
    assert hasher._requests in {file.fileno() for file in files}
    assert hasher.digest(ticket) == sha256(picture(1))
    for file in files:
        file.close()
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b""] * 4


PROGRAM = """
import os, signal, sys, time, json
sys.path[:0] = {paths!r}
import numpy as np
from recorder import hashing
from test_hashing import SCREEN, hold_back, picture, record, sha256, worker_of
"""


def run_program(source, *arguments, timeout=20, **kwargs):
    """Run a program of its own and return what it printed."""
    program = PROGRAM.format(paths=[str(Path(__file__).parent), *sys.path]) + textwrap.dedent(source)
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        **kwargs,
    )
    assert not done.stderr, done.stderr
    return done.stdout


@pytest.mark.parametrize("decisions", [2 * TOLD_TOGETHER, 19])
def test_a_program_that_never_closes_its_recorder_loses_no_decision(decisions, tmp_path):
    source = """
        recorder = record(sys.argv[1])
        recorder.reset(seed=1)
        hold_back(recorder)
        for number in range(int(sys.argv[2])):
            recorder.step(number % 6)
    """
    run_program(source, tmp_path / "run", decisions)
    lines = (tmp_path / "run" / "episode-0000" / "transitions.jsonl").read_bytes().splitlines()
    assert len(lines) == decisions


def test_the_worker_of_a_process_that_is_killed_ends(tmp_path):
    source = """
        hasher = hashing._WorkerHasher(SCREEN)
        hasher.submit(picture(1, SCREEN))
        print(worker_of(hasher).pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    worker = int(run_program(source))
    deadline = time.monotonic() + 10
    while psutil.pid_exists(worker) and psutil.Process(worker).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.01)


# Forks

FORK = """
    hasher = hashing._WorkerHasher(SCREEN)
    def ask(tickets):
        expected = [sha256(picture(number, SCREEN)) for number in range(len(tickets))]
        return [hasher.digest(ticket) for ticket in tickets] == expected
    def submit(first, last):
        return [hasher.submit(picture(number, SCREEN)) for number in range(first, last)]
    tickets = submit(0, 20)
    said, says = os.pipe()
    child = os.fork()
"""


def test_a_fork_and_its_parent_both_get_their_digests():
    source = """
    if child == 0:
        tickets += submit(20, 90)
        os.write(says, b"right" if ask(tickets) else b"wrong")
        hasher.close()
        os._exit(0)
    os.waitpid(child, 0)  # until the child has its own slots, the parent must not fill them
    tickets += submit(20, 100)
    print(os.read(said, 9).decode(), ask(tickets), worker_of(hasher).poll())
    """
    assert run_program(FORK + source).split() == ["right", "True", "None"]


def test_a_fork_that_only_asks_takes_no_answer_from_its_parent():
    source = """
    if child == 0:
        os.write(says, b"right" if ask(tickets) else b"wrong")
        os._exit(0)
    os.waitpid(child, 0)
    print(os.read(said, 9).decode(), ask(tickets))
    """
    assert run_program(FORK + source, timeout=3).split() == ["right", "True"]


def test_a_fork_that_does_something_else_does_not_keep_its_parent_from_closing():
    source = """
    if child == 0:
        time.sleep(3)
        os._exit(0)
    right, started = ask(tickets), time.monotonic()
    hasher.close()
    print(right, time.monotonic() - started < 2)
    os.kill(child, signal.SIGKILL)
    """
    assert run_program(FORK + source).split() == ["True", "True"]


def test_a_fork_that_ends_in_an_orderly_way_leaves_its_parent_the_worker():
    source = """
    if child == 0:
        sys.exit(0)
    os.waitpid(child, 0)
    tickets += submit(20, 100)
    print(ask(tickets), worker_of(hasher).poll())
    """
    assert run_program(FORK + source).split() == ["True", "None"]


def test_a_fork_that_drops_its_copy_leaves_its_parent_the_worker():
    source = """
    if child == 0:
        del hasher
        os._exit(0)
    os.waitpid(child, 0)
    tickets += submit(20, 100)
    print(ask(tickets), worker_of(hasher).poll())
    """
    assert run_program(FORK + source).split() == ["True", "None"]


# Interruptions


def interrupt(monkeypatch, name):
    """Let Ctrl-C come with the next call of a function of `os`, when its work is done."""
    real = getattr(os, name)

    def interrupted(*arguments):
        monkeypatch.setattr(hashing.os, name, real)
        real(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(hashing.os, name, interrupted)


class HungError(Exception):
    """Something waited for what never comes."""


@pytest.fixture
def deadline():
    """Raises after a while, so that what hangs is seen as such."""

    def give_up(*_):
        raise HungError

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, 1.5)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_an_interruption_while_answers_are_read_costs_no_digest(hasher, monkeypatch, deadline):
    tickets = [hasher.submit(picture(number)) for number in range(TOLD_TOGETHER)]
    interrupt(monkeypatch, "read")
    with pytest.raises(KeyboardInterrupt):
        hasher.digest(tickets[0])
    assert [hasher.digest(ticket) for ticket in tickets] == [sha256(picture(n)) for n in range(TOLD_TOGETHER)]


def test_an_interruption_while_the_worker_is_told_costs_no_digest(hasher, monkeypatch, deadline):
    tickets = [hasher.submit(picture(number)) for number in range(TOLD_TOGETHER - 1)]
    interrupt(monkeypatch, "write")
    with pytest.raises(KeyboardInterrupt):
        hasher.digest(tickets[0])
    tickets += [hasher.submit(picture(number)) for number in range(TOLD_TOGETHER - 1, 30)]
    assert [hasher.digest(ticket) for ticket in tickets] == [sha256(picture(number)) for number in range(30)]


INTERRUPTED = """
    import random
    from collections import Counter
    from pathlib import Path

    moments, out = random.Random(3), Path(sys.argv[1])

    def step_on(recorder):
        for number in range(600):
            recorder.step(number % 6)

    with record(out / "whole") as recorder:
        recorder.reset(seed=1)
        step_on(recorder)
        whole = recorder.episode_folder

    def alarm(*_):
        global alarms
        alarms += 1
        raise KeyboardInterrupt if alarms == 1 else TimeoutError

    found = Counter()
    signal.signal(signal.SIGALRM, alarm)
    with record(out / "run") as recorder:
        for _ in range(120):
            if found["hung"] or found["wrong"]:
                break
            alarms = 0
            recorder.reset(seed=1)
            signal.setitimer(signal.ITIMER_REAL, moments.uniform(0.001, 0.012), 0.5)
            try:
                step_on(recorder)
            except KeyboardInterrupt:
                found["interrupted"] += 1
            except TimeoutError:
                pass
            signal.setitimer(signal.ITIMER_REAL, 0)
            found["hung"] += alarms > 1
            recorder.end_episode()
            for name in ("frames.jsonl", "transitions.jsonl"):
                is_prefix = (whole / name).read_bytes().startswith((recorder.episode_folder / name).read_bytes())
                found["wrong"] += not is_prefix
    print(json.dumps(found))
"""


def test_an_interruption_at_any_moment_leaves_the_bytes_of_the_uninterrupted_recording(tmp_path):
    found = json.loads(run_program(INTERRUPTED, tmp_path, timeout=60))
    assert (found["hung"], found["wrong"]) == (0, 0)
    assert found["interrupted"] > 90


def test_ctrl_c_reaches_the_recording_and_not_its_worker(tmp_path):
    """A terminal sends it to the whole group; the worker is still asked for the pictures of what is held back."""
    source = """
        try:
            with record(sys.argv[1]) as recorder:
                recorder.reset(seed=1)
                hold_back(recorder)
                for number in range(25):
                    recorder.step(2)
                worker = worker_of(recorder._stepper._hasher)
                os.killpg(0, signal.SIGINT)
                time.sleep(1)
        except KeyboardInterrupt:
            print(recorder.summary["end_reason"], recorder.summary["error_type"], worker.pid, worker.poll())
    """
    reason, error, worker, code = run_program(source, tmp_path / "run", start_new_session=True).split()
    assert (reason, error) == ("error", "KeyboardInterrupt")
    assert code in {"0", str(-signal.SIGKILL)}  # it was ended by its recording
    assert not psutil.pid_exists(int(worker))
    verdict = replay_episode(tmp_path / "run" / "episode-0000", trust=["test_hashing"])
    assert (verdict.name, verdict.decisions) == ("verified prefix", 25)
    assert verdict.compared["rgb"] == 26
