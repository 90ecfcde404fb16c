"""Record the episodes of `experiments/first-episodes` again and pack them.

Their record files come out byte for byte the same; the manifests inside say when and where they were made.

Usage: python scripts/make_first_archive.py OUT_FOLDER
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from recorder.archive import pack_archive
from recorder.cli import main as record

if TYPE_CHECKING:
    from collections.abc import Callable

    import gymnasium

NAME = "first-episodes"
RUNS = (
    ("push-t", ["--env", "recorder/LewmPushT-v1", "--policy", "make_first_archive:seek_block", "--seed", "8"]),
    ("cartpole", ["--env", "CartPole-v1", "--policy", "random", "--seed", "0", "--ram", "numpy:state"]),
)
MORE = {"push-t": ["--decisions", "60", "--rgb"], "cartpole": ["--decisions", "120"]}

REACH_PX = 100.0
SPREAD_PX = 60.0


def seek_block(env: gymnasium.Env[Any, Any], seed: int) -> Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
    """A policy for Push-T: go to a random place near the block's middle, so that it is pushed about."""
    del env
    random = np.random.default_rng(seed)

    def act(observation: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        target = observation[2:4] + random.uniform(-SPREAD_PX, SPREAD_PX, 2)
        return np.clip((target - observation[:2]) / REACH_PX, -1, 1).astype(np.float32)

    return act


def main(out: Path) -> int:
    """Record, pack, and say where the archive is."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / NAME
        for name, arguments in RUNS:
            code = record(["play", "--out", str(source / name), *arguments, *MORE[name]])
            if code:
                return code
        out.mkdir(parents=True, exist_ok=True)
        print(f"packed {pack_archive(source, out / f'{NAME}.tar.gz')}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
