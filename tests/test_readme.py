"""The README says what is true: its blocks run in order, its demo's numbers are the demo's, its length is kept."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RUNNABLE = re.findall(r"<!-- run -->\n```(\w+)\n(.*?)```", README, re.DOTALL)
BIN = Path(sys.executable).parent


def run(command, cwd):
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_block_runs_in_the_order_of_the_page(tmp_path):
    assert len(RUNNABLE) == 3
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    for language, block in RUNNABLE:
        command = [sys.executable, "-c", block] if language == "python" else ["sh", "-e", "-c", block]
        run(command, tmp_path)
    assert (tmp_path / "replays" / "episode-0000" / "replay.mp4").is_file()
    assert (tmp_path / "strip.png").is_file()
    assert run([str(BIN / "replay"), "--episode", "runs/cartpole/episode-0000"], tmp_path).startswith("verified: ")


def test_the_page_is_at_most_150_lines():
    assert len(README.splitlines()) <= 150


@pytest.mark.parametrize(
    "path", re.findall(r"\]\(([^)#]+)\)|`((?:src|tests|schemas|scripts|experiments)/[\w./]+)`", README)
)
def test_every_path_of_the_page_exists(path):
    assert (ROOT / "".join(path)).exists()


def test_no_file_names_a_package_registry():
    for name in ("README.md", "requirements.lock", "pyproject.toml", "Makefile", ".ci/run"):
        assert not re.search(r"pypi|https?://", (ROOT / name).read_text(encoding="utf-8")), name
