"""The script of measurements runs and gives every figure that it promises; how fast anything is stays untested."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "measure_overhead.py"


def test_the_script_prints_every_figure_as_strict_json(tmp_path):
    command = [sys.executable, str(SCRIPT), "--decisions", "200", "--repeats", "1", "--json"]
    done = subprocess.run(
        [*command, "--folder", str(tmp_path), "--no-memory"], check=True, capture_output=True, text=True
    )
    measured = json.loads(done.stdout, parse_constant=lambda name: 1 / 0)
    assert len(measured["rows"]) >= 3
    for row in measured["rows"]:
        assert row["recorded_over_bare"] > 0
        assert row["replayed_over_recorded"] > 0
        assert row["bytes_per_decision"] > 100
        assert set(row["steps_per_s"]) >= {"bare", "recorded", "replayed"}
    assert list(tmp_path.iterdir()) == []


def test_peak_memory_is_measured_in_a_process_of_its_own(tmp_path):
    command = [sys.executable, str(SCRIPT), "--memory-of", "recorded", "--decisions", "300", "--folder", str(tmp_path)]
    assert float(subprocess.run(command, check=True, capture_output=True, text=True).stdout) > 10
