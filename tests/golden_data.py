"""Reads the golden data."""

import gzip
import json
from pathlib import Path

import numpy as np

GOLDEN = Path(__file__).parent / "golden"


def read_lines(name):
    """Records of a Push-T file, without its header."""
    with gzip.open(GOLDEN / "push-t" / f"{name}.jsonl.gz", "rt", encoding="utf-8") as stream:
        return [json.loads(line) for line in stream][1:]


def read_cartpole(name):
    return json.loads((GOLDEN / "cartpole" / f"{name}.json").read_bytes())


def float32s(digits):
    """Float32 values from their bits in hex, most significant digit first."""
    return np.array([int(bits, 16) for bits in digits], np.uint32).view(np.float32)
