"""The commands work from an installed wheel, schemas included, far from any checkout."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The commands of a fresh virtual environment that holds the wheel.

    Its dependencies are borrowed from this one by path, which leaves out this one's editable install.
    """
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(command, check=True, capture_output=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return folder / "bin"


def run(installed, cwd, *command):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    path = str(installed / command[0])
    done = subprocess.run([path, *command[1:]], cwd=cwd, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_holds_packages_and_schemas_and_nothing_else(wheel):
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"recorder", "replay", "studies"}
    schemas = {path.name for path in (ROOT / "schemas").iterdir()}
    packed = {name.rpartition("/")[2] for name in zipfile.ZipFile(wheel).namelist() if "/schemas/" in name}
    assert packed == schemas


def test_the_commands_run_from_the_wheel(installed, tmp_path):
    where = run(installed, tmp_path, "python", "-c", "import recorder, replay; print(recorder.__file__)")
    assert str(installed.parent) in where
    run(installed, tmp_path, "record", "play", "--env", "recorder/CartPole-v1", "--decisions", "25", "--out", "run")
    assert run(installed, tmp_path, "replay", "--episode", "run/episode-0000").startswith("verified: ")
    assert "decision 3" in run(installed, tmp_path, "inspect-step", "--decision", "3", "--episode", "run/episode-0000")
    manifest = ROOT / "experiments" / "first-episodes.manifest.json"
    said = run(installed, tmp_path, "restore_experiments", "--out", "restored", "--manifest", str(manifest))
    assert said.startswith("verified first-episodes.tar.gz")
