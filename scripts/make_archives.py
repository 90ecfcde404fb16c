"""Record the episodes of `experiments/` again and pack them.

Their record files come out byte for byte the same; the manifests inside say when and where they were made. Those
of `pong-play` are also, byte for byte, the files that a public lab published in September 2026.

Usage: python scripts/make_archives.py OUT_FOLDER
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

PUSH_T = ["--env", "recorder/LewmPushT-v1", "--policy", "make_archives:seek_block", "--seed", "8"]
CARTPOLE = ["--env", "CartPole-v1", "--policy", "random", "--seed", "0", "--ram", "numpy:state"]
PONG = ["--env", "ALE/Pong-v5", "--track", "objects", "--layout", "pong-play-v1", "--policy", "track-2px"]

# Archives, and what is recorded where in them.
ARCHIVES = {
    "first-episodes": {
        "push-t": [*PUSH_T, "--decisions", "60", "--rgb"],
        "cartpole": [*CARTPOLE, "--decisions", "120"],
    },
    "pong-play": {
        "policy-online-v1/development-heuristic/seed-27": [
            *PONG, "--seed", "27", "--decisions", "500", "--point-limit", "5",
        ],
    },
}  # fmt: skip

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
    """Record, pack, and say where the archives are."""
    out.mkdir(parents=True, exist_ok=True)
    for archive, runs in ARCHIVES.items():
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / archive
            for name, arguments in runs.items():
                code = record(["play", "--out", str(source / name), *arguments])
                if code:
                    return code
            print(f"packed {pack_archive(source, out / f'{archive}.tar.gz')}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
