"""Record the episodes of `experiments/first-episodes` again and pack them.

Their record files come out byte for byte the same; the manifests inside say when and where they were made.

Usage: python scripts/make_first_archive.py OUT_FOLDER
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from recorder.archive import pack_archive
from recorder.cli import main as record

NAME = "first-episodes"
RUNS = (
    ("push-t", ["--env", "recorder/LewmPushT-v1", "--seed", "8", "--decisions", "60", "--rgb"]),
    ("cartpole", ["--env", "CartPole-v1", "--seed", "0", "--decisions", "120", "--ram", "numpy:state"]),
)


def main(out: Path) -> int:
    """Record, pack, and say where the archive is."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / NAME
        for name, arguments in RUNS:
            code = record(["play", "--policy", "random", "--out", str(source / name), *arguments])
            if code:
                return code
        out.mkdir(parents=True, exist_ok=True)
        print(f"packed {pack_archive(source, out / f'{NAME}.tar.gz')}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
