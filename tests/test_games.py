"""`record games`: the list of games, and each of them recorded and replayed in processes of its own."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired

import psutil
import pytest

import recorder.cli
from recorder import game_check
from recorder.errors import CannotRunError
from recorder.game_check import GameResult, choose_games
from recorder.games import list_games

ale_py = pytest.importorskip("ale_py", reason="ale-py is not installed")

PONG, BREAKOUT, TETRIS = "ALE/Pong-v5", "ALE/Breakout-v5", "ALE/Tetris-v5"


def games(capsys, *arguments):
    """Exit code, stdout and stderr of `record games`, run in this process."""
    code = recorder.cli.main(["games", *arguments])
    return code, *capsys.readouterr()


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """Where temporary folders come to be, here and in other processes."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    yield folder
    assert [path.name for path in folder.iterdir() if path.name.startswith("record-games")] == []


@pytest.fixture
def customize(tmp_path, monkeypatch):
    """Runs some code at the start of every other Python process."""

    def write(code):
        folder = tmp_path / "customized"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(f"import os, signal, sys, time\n{code}\n")
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ["PYTHONPATH"]]))

    return write


# The list


def test_the_list_has_every_game_that_has_a_rom_and_nothing_else(capsys):
    code, out, err = games(capsys)
    assert code == 0
    assert out.splitlines() == list_games()
    assert len(list_games()) > 100
    assert {PONG, BREAKOUT, TETRIS} < set(out.splitlines())
    roms = {path.stem.replace("_", "") for path in Path(ale_py.roms.__file__).parent.glob("*.bin")}
    assert {game.removeprefix("ALE/").removesuffix("-v5").lower() for game in list_games()} <= roms
    assert err.startswith(f"{len(list_games())} games; play one with: record play --env ALE/")


def test_the_list_as_json_is_one_object(capsys):
    code, out, err = games(capsys, "pong", "TETRIS", "--json")
    listed = [{"game": PONG}, {"game": TETRIS}]
    assert (code, err) == (0, "")
    assert json.loads(out) == {"kind": "games", "checked": False, "games": listed, "failed": []}


@pytest.mark.parametrize("name", [PONG, "Pong", "pong", "PONG", "ale/pong", "ale/PONG-V5", "pong-v5"])
def test_a_game_is_found_by_its_name_in_any_case(name):
    assert choose_games([name]) == [PONG]


def test_games_are_kept_in_their_order_and_named_once():
    assert choose_games(["tetris", "Pong", TETRIS, "pong-v5"]) == [TETRIS, PONG]


UNKNOWN = {
    "Pongg": "no game 'ALE/Pongg': did you mean ALE/Pong-v5?",
    "ALE/Pong-v4": "no game 'ALE/Pong-v4': did you mean ALE/Pong-v5?",
    "CartPole-v1": "no game 'ALE/CartPole-v1': `record games` lists them",
    "": "no game 'ALE/': `record games` lists them",
    "\x1b[31mred": r"no game 'ALE/\x1b[31mred': `record games` lists them",
    "pong pong": "no game 'ALE/pong pong': did you mean ALE/Pong-v5?",
}


@pytest.mark.parametrize("name", UNKNOWN, ids=ascii)
@pytest.mark.parametrize("options", [[], ["--check"], ["--check", "--json"]])
def test_an_unknown_game_is_refused_before_any_is_checked(name, options, capsys):
    code, out, err = games(capsys, "Pong", name, *options)
    assert (code, out) == (CannotRunError.exit_code, "")
    assert err == f"error: there is {UNKNOWN[name]}\n"


def test_without_the_package_the_extra_is_named(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    code, out, err = games(capsys, "--check")
    assert (code, out) == (4, "")
    assert "pip install 'replay-recorder[atari]'" in err


def test_a_package_without_games_is_no_success(capsys, monkeypatch):
    monkeypatch.setattr(game_check, "list_games", list)
    code, out, err = games(capsys, "--check")
    assert (code, out) == (4, "")
    assert "registers no ALE/ game" in err


# The check


def test_games_are_recorded_and_replayed_and_nothing_is_left_behind(scratch, tmp_path):
    """As a person runs it, in a folder with a file that has a module's name."""
    (tmp_path / "json.py").write_text("raise SystemExit('this is no module of yours')")
    command = [Path(sys.executable).parent / "record", "games", "pong", "Breakout", TETRIS, "--check"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[-1] == "3 of 3 games recorded and replayed"
    for game, actions in ((PONG, 6), (BREAKOUT, 4), (TETRIS, 5)):
        (row,) = (line for line in lines if game in line)
        assert [cell.strip() for cell in row.strip("│").split("│")][:5] == [game, "2", "8", str(actions), "verified"]
    assert list(scratch.iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["json.py", "scratch"]


def test_a_game_that_fails_is_named_with_its_reason_and_the_rest_go_on(scratch, tmp_path, capsys, monkeypatch):
    roms = tmp_path / "roms"
    roms.mkdir()
    for game in ("pong", "breakout"):
        rom = ale_py.roms.get_rom_path(game).read_bytes()
        (roms / f"{game}.bin").write_bytes(rom + b"x" if game == "breakout" else rom)
    monkeypatch.setenv("ALE_ROMS_DIR", str(roms))
    code, out, err = games(capsys, "tetris", "breakout", "pong", "--check", "--json")
    assert (code, err) == (1, "")
    printed = json.loads(out)
    assert (printed["kind"], printed["checked"], printed["failed"]) == ("games", True, [TETRIS, BREAKOUT])
    tetris, breakout, pong = printed["games"]
    assert (pong["game"], pong["verdict"], pong["reason"], pong["raw_frames"]) == (PONG, "verified", None, 8)
    assert (tetris["verdict"], tetris["decisions"]) == ("failed", None)
    assert tetris["reason"].startswith("the recording ended with exit code 4: ")
    assert "tetris.bin" in tetris["reason"]
    assert "breakout.bin does not match" in breakout["reason"]
    assert "\n" not in breakout["reason"]


CRASH = """
if "ALE/Tetris-v5" in sys.orig_argv:
    os.kill(os.getpid(), signal.SIGSEGV)
if "ALE/Breakout-v5" in sys.orig_argv:
    time.sleep(60)
"""


def test_a_crash_and_a_hang_fail_their_games_only(scratch, capsys, monkeypatch, customize):
    customize(CRASH)
    monkeypatch.setattr(game_check, "TIMEOUT_S", 3.0)
    code, out, _ = games(capsys, "tetris", "breakout", "pong", "--check")
    assert code == 1
    assert out.splitlines()[-3:] == [
        f"FAILED {TETRIS}: the recording was ended by SIGSEGV",
        f"FAILED {BREAKOUT}: the recording took longer than 3 s",
        "1 of 3 games recorded and replayed",
    ]


EPISODE = {"episode": "EPISODE", "decisions": 2, "raw_frames": 8, "return": 0.0, "end_reason": "frame_limit"}
RECORDED = json.dumps({"out": "run", "episodes": [EPISODE]})
VERDICT = {"verdict": "verified", "compared": {"ram": 9, "rgb": 9}, "faults": [], "first_divergence": []}
DIVERGENCE = {"decision": 1, "raw_frame": 7, "field": "ram"}


def ended(code=0, stdout="", stderr=""):
    return CompletedProcess([], code, stdout, stderr)


def replayed(code=0, **changes):
    return ended(code, json.dumps({**VERDICT, **changes}))


OUTCOMES = {
    "verified": (ended(stdout=RECORDED), replayed(), None),
    "a prefix": (ended(stdout=RECORDED), replayed(verdict="verified prefix"), "verdict of the replay is 'verified pr"),
    "no RAM": (ended(stdout=RECORDED), replayed(compared={"rgb": 9}), "compared RAM of 0 raw frames, not of 9"),
    "no RGB": (ended(stdout=RECORDED), replayed(compared={"ram": 9}), "compared RGB of 0 raw frames, not of 9"),
    "less RGB": (ended(stdout=RECORDED), replayed(compared={"ram": 9, "rgb": 8}), "compared RGB of 8 raw frames"),
    "diverged": (
        ended(stdout=RECORDED),
        replayed(1, verdict="diverged", first_divergence=[DIVERGENCE]),
        "the replay ended with exit code 1: diverged at decision 1, raw frame 7: ram",
    ),
    "damaged": (
        ended(stdout=RECORDED),
        replayed(3, verdict="damaged", faults=["reset.json is missing"]),
        "the replay ended with exit code 3: reset.json is missing",
    ),
    "unforeseen": (
        ended(70, "", "Traceback ...\nKeyError: 'x'\nerror: unforeseen, please report it with the lines above\n"),
        None,
        "the recording ended with exit code 70: KeyError: 'x'",
    ),
    "silent": (ended(5), None, "the recording ended with exit code 5"),
    "aborted": (ended(-6, "", "terminate called\n"), None, "the recording was ended by SIGABRT: terminate called"),
    "nameless signal": (ended(-40), None, "the recording was ended by signal 40"),
    "hung replay": (ended(stdout=RECORDED), TimeoutExpired([], 120), "the replay took longer than 120 s"),
    "no process": (OSError(11, "try again"), None, "the recording could not be started: [Errno 11] try again"),
    "printing emulator": (ended(stdout=f"Loading roms\n{RECORDED}\n"), replayed(), None),
    "nothing": (ended(), None, "its result cannot be read: IndexError"),
    "no JSON": (ended(stdout="recorded 1 episode"), None, "its result cannot be read: JSONDecodeError"),
    "other JSON": (ended(stdout="[1]"), None, "its result cannot be read: TypeError"),
    "no episode": (ended(stdout='{"episodes": []}'), None, "has 0 raw frames in 0 episodes, not 8 in one"),
    "two episodes": (ended(stdout=json.dumps({"episodes": [EPISODE, EPISODE]})), None, "16 raw frames in 2 episodes"),
}


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_every_way_to_fail_has_its_sentence(outcome, tmp_path):
    *results, reason = OUTCOMES[outcome]
    (tmp_path / "manifest.json").write_text('{"environment": {"action_space": "Discrete(6)"}}')
    waiting = [result for result in results if result is not None]

    def run(command):
        result = waiting.pop(0)
        if isinstance(result, Exception):
            raise result
        return CompletedProcess(
            command, result.returncode, result.stdout.replace("EPISODE", str(tmp_path)), result.stderr
        )

    found = game_check._check_game(PONG, tmp_path, run)
    assert waiting == []
    if reason is None:
        assert (found.verdict, found.reason, found.actions) == ("verified", None, 6)
    else:
        assert found.verdict == "failed"
        assert reason in found.reason


def test_names_and_reasons_cannot_move_the_cursor(capsys):
    results = [GameResult("ALE/\x1b[31m[red]-v5", "failed", "a\x1b[2Jb\nc")]
    game_check._show_results(results, is_json=False)
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert r"ALE/\x1b[31m[red]-v5" in out
    assert out.splitlines()[-2:] == [
        r"FAILED ALE/\x1b[31m[red]-v5: a\x1b[2Jb\nc",
        "0 of 1 game recorded and replayed",
    ]


def test_as_many_games_run_at_a_time_as_there_are_usable_cores(monkeypatch):
    running, most = [], []

    def check(game, folder, run):
        running.append(game)
        time.sleep(0.01)
        most.append(len(running))
        running.remove(game)
        return GameResult(game, "verified")

    monkeypatch.setattr(game_check, "_check_game", check)
    monkeypatch.setattr(game_check, "usable_cores", lambda: 3)
    wanted = list_games()[:20][::-1]
    assert [result.game for result in game_check.check_games(wanted)] == wanted
    assert max(most) == 3


@pytest.mark.parametrize("is_whole_group", [False, True])
def test_ctrl_c_ends_quickly_and_leaves_nothing(is_whole_group, scratch):
    command = [sys.executable, "-m", "recorder.cli", "games", "--check"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    wait_for(lambda: len(psutil.Process(process.pid).children()) >= 1)
    time.sleep(0.3)
    children = psutil.Process(process.pid).children(recursive=True)
    started = time.monotonic()
    if is_whole_group:
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert time.monotonic() - started < 5
    assert (process.returncode, out, err) == (130, "", "interrupted: not every game was checked\n")
    wait_for(lambda: not any(map(is_running, children)))


def is_running(process):
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def wait_for(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
