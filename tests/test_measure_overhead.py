"""The script of measurements runs and gives every figure that it promises; how fast anything is stays untested."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "measure_overhead.py"
WAYS = {"bare", "recorded", "replayed"}

# More than the measured process ever takes; Linux would hand it down as that one's ru_maxrss.
BALLAST_MB = 300


def run(*arguments):
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], check=False, capture_output=True, text=True)


def test_the_script_prints_every_figure_as_strict_json(tmp_path):
    done = run("--decisions", "200", "--repeats", "1", "--json", "--folder", str(tmp_path), "--no-memory")
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout, parse_constant=lambda name: 1 / 0)
    assert [(row["work"].split(",")[0], row["decisions"]) for row in measured["rows"]] == [
        ("CartPole-v1", 200),
        ("CartPole-v1", 50),
        ("LewmPushT-v1", 20),
        ("LewmPushT-v1", 20),
        ("ALE/Pong-v5", 50),
    ]
    for row in measured["rows"]:
        assert row["episodes"] >= 1
        assert row["recorded_over_bare"] > 0
        assert row["replayed_over_bare"] > 0
        assert row["replayed_over_recorded"] > 0
        assert isinstance(row["overhead_us_per_decision"], float)  # so few decisions may take less time recorded
        assert row["bytes_per_decision"] > 100
        assert set(row["steps_per_s"]) - {"minari"} == WAYS
        assert all(speed > 0 for speed in row["steps_per_s"].values())
        assert (row["minari_over_bare"] is None) == ("minari" not in row["steps_per_s"])
    assert measured["empty_episode_us"] > 0
    assert measured["memory_mb"] == []
    assert str(tmp_path) in measured["file_creation_us"]
    assert all(cost > 0 for cost in measured["file_creation_us"].values())
    assert list(tmp_path.iterdir()) == []


def test_one_row_can_be_asked_for_as_a_table(tmp_path):
    arguments = ["--decisions", "100", "--repeats", "1", "--folder", str(tmp_path), "--no-memory"]
    done = run(*arguments, "--only", "22 decisions")
    assert done.returncode == 0, done.stderr
    assert "22 decisions an episode" in done.stdout
    assert "500 decisions an episode" not in done.stdout
    assert "creating a file takes" in done.stdout


def test_a_row_that_is_not_there_is_a_usage_error_that_names_those_that_are():
    done = run("--only", "Tetris")
    assert done.returncode == 2
    assert "LewmPushT-v1" in done.stderr


@pytest.mark.parametrize("way", ["bare", "recorded"])
def test_peak_memory_is_that_of_the_measured_process_however_big_the_one_that_started_it(tmp_path, way):
    ballast = bytearray(BALLAST_MB << 20)
    ballast[::4096] = b"\1" * len(ballast[::4096])
    done = run("--memory-of", way, "--decisions", "300", "--folder", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert 10 < float(done.stdout) < BALLAST_MB
