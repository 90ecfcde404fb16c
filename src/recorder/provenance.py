"""Where and with what a record was made: versions, machine, arithmetic, command, commit and wall clock."""

from __future__ import annotations

import datetime
import functools
import importlib.metadata
import os
import platform
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from recorder.records import Row

# Distributions whose code reaches a record's bytes, by import name: these count wherever they are imported.
ENGINES = {
    "gymnasium": "gymnasium",
    "numpy": "numpy",
    "pymunk": "pymunk",
    "Box2D": "box2d",
    "ale_py": "ale-py",
    "mujoco": "mujoco",
    "shapely": "shapely",
}

# These count only where the environment's own modules import them: a learner in the same process has them too.
ARRAY_LIBRARIES = {"scipy": "scipy", "jax": "jax", "jaxlib": "jaxlib", "torch": "torch", "numba": "numba"}

# Draw the pictures only: versions of these matter where RGB is recorded, and nowhere else.
RENDERERS = ("pygame", "PIL", "cv2")

# Settings that change the last bits of arithmetic or the order of sets.
ARITHMETIC_VARIABLES = (
    "PYTHONHASHSEED",
    "OPENBLAS_CORETYPE",
    "NPY_DISABLE_CPU_FEATURES",
    "GLIBC_TUNABLES",
    "OMP_NUM_THREADS",
    "MKL_CBWR",
)

GIT_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Difference:
    """One fact that was not the same when the record was made.

    Attributes:
        kind: `version` differences stop a replay unless allowed; `machine` differences are only told.
        name: Package or fact.
        recorded: Value in the manifest.
        here: Value on this machine; None where it is missing.
    """

    kind: Literal["version", "machine"]
    name: str
    recorded: str | None
    here: str | None

    def __str__(self) -> str:
        """As a reader sees it."""
        return f"{self.name} {self.recorded or 'none'} -> {self.here or 'none'}"


def describe_fingerprint(
    distributions: Iterable[str] = (), modules: Iterable[str] = (), *, is_drawing: bool = False
) -> Row:
    """The manifest's `fingerprint`: versions that reach a record's bytes, and the machine.

    Args:
        distributions: Further distributions to name, such as the environment's own.
        modules: Names of the modules that define the environment and its wrappers.
        is_drawing: Whether pictures are recorded, so that the renderer's version counts; one has to have been
            drawn before, since environments import their renderer when they first need it.
    """
    names = {distribution for module, distribution in ENGINES.items() if module in sys.modules}
    imported = {top for module in modules for top in _imported_by(module)}
    names |= {distribution for module, distribution in ARRAY_LIBRARIES.items() if module in imported}
    if is_drawing:
        drawing = (find_distribution(module) for module in RENDERERS if module in sys.modules)
        names |= {distribution for distribution in drawing if distribution is not None}
    names |= {"replay-recorder", *distributions}
    versions = {name: version for name in sorted(names) if (version := find_version(name)) is not None}
    return {"versions": {"python": platform.python_version(), **versions}, "machine": dict(_machine_facts())}


def compare_fingerprint(recorded: Mapping[str, Any]) -> list[Difference]:
    """How this process differs from the one that a fingerprint describes."""
    differences = []
    for name, version in recorded["versions"].items():
        here = platform.python_version() if name == "python" else find_version(name)
        if here != version:
            is_patch_release = name == "python" and here is not None and _minor(here) == _minor(version)
            differences.append(Difference("machine" if is_patch_release else "version", name, version, here))
    facts = _machine_facts()
    differences += [
        Difference("machine", name, value, facts.get(name))
        for name, value in recorded["machine"].items()
        if value != facts.get(name)
    ]
    return differences


def describe_provenance() -> Row:
    """The manifest's `provenance`: who made it, when, from which commit. Never compared by a replay."""
    now = datetime.datetime.now(tz=datetime.UTC)
    return {
        "written_by": f"replay-recorder {find_version('replay-recorder') or 'unknown'}",
        "started_at": now.isoformat(timespec="seconds"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]) if sys.argv and sys.argv[0] else None,
        "git": _git_facts(str(Path.cwd())),
    }


@functools.cache
def find_version(distribution: str) -> str | None:
    """The installed version of a distribution, or None."""
    try:
        return importlib.metadata.version(distribution)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None


@functools.cache
def find_distribution(module: str) -> str | None:
    """The distribution that installed a module's top-level package, or None for local code."""
    names = _packages_distributions().get(module.partition(".")[0])
    return names[0] if names else None


@functools.cache
def _packages_distributions() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()


@functools.cache
def _machine_facts() -> dict[str, str | None]:
    return {
        "platform": f"{platform.system()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()).strip() or None,
        "cpu": _cpu_model(),
        "numpy_cpu_features": _numpy_cpu_features(),
        **{name: os.environ.get(name) for name in ARITHMETIC_VARIABLES},
    }


def _imported_by(module: str) -> set[str]:
    """Top-level names of the modules that a module has in its namespace."""
    namespace = vars(sys.modules[module]) if module in sys.modules else {}
    return {value.__name__.partition(".")[0] for value in list(namespace.values()) if isinstance(value, ModuleType)}


def _cpu_model() -> str | None:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or None
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match.group(1).strip() if match else platform.processor() or None


def _numpy_cpu_features() -> str | None:
    """The CPU features that numpy dispatches to, which decide the last bits of its transcendental functions."""
    config: Any = np.show_config(mode="dicts")
    found = config.get("SIMD Extensions", {}).get("found") if isinstance(config, dict) else None
    return " ".join(sorted(found)) if found else None


@functools.cache
def _git_facts(folder: str) -> Row | None:
    commit = _ask_git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    status = _ask_git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "is_dirty": bool(status) if status is not None else None}


def _ask_git(folder: str, *arguments: str) -> str | None:
    try:
        answer = subprocess.run(  # noqa: S603 - fixed arguments
            ["git", "-C", folder, *arguments],  # noqa: S607 - the user's git
            capture_output=True,
            text=True,
            timeout=GIT_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]
