"""Lines that are put together from parts are the lines that their rows make, whatever the raw frames hold."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recorder.encoding import encode_value
from recorder.frames import DecisionFrames
from recorder.records import encode_line, row_validator

KEPT = st.lists(
    st.tuples(
        st.none() | st.floats() | st.sampled_from([np.float32(0.5), np.float64("nan")]),
        st.booleans(),
        st.booleans(),
        st.binary(max_size=40) | st.just(b"x" * 5000),
    ),
    min_size=1,
    max_size=12,
)
ACTIONS = st.sampled_from([1, np.int64(3), np.zeros(2, np.float32), "µ\u2028", {"reward": "}"}, ("a", 1.5)])


@settings(max_examples=300, deadline=None)
@given(KEPT, ACTIONS, st.booleans(), st.booleans())
def test_lines_and_block_are_what_the_rows_spell(kept, action, has_ram, has_pictures):
    pictures = ["ab" * 32] * len(kept) if has_pictures else []
    rewards = [None if frame[0] is None else encode_value(frame[0]) for frame in kept]
    frames = DecisionFrames(7, 100, encode_value(action), kept, rewards, has_ram, pictures)
    lines = [encode_line(frames.row(index)) for index in range(len(kept))]
    fresh = DecisionFrames(7, 100, encode_value(action), kept, rewards, has_ram, pictures)
    assert fresh.lines() == lines
    assert fresh.block() == b"".join(lines)
    assert row_validator("frames")([frames.row(index) for index in range(len(kept))])


@pytest.mark.parametrize("is_quiet_valid", [False, True])
def test_only_quiet_rows_after_the_first_are_left_out_of_validation(is_quiet_valid):
    kept = [
        (None, False, False, b"a"),
        (1, False, False, b"b"),
        (1.0, False, False, b"c"),
        (None, True, False, b"d"),
    ]
    frames = DecisionFrames(0, 1, 1, kept, [None, 1, 1.0, None], True, [])
    numbers = [row["raw_frame"] for row in frames.rows_to_validate(is_quiet_valid=is_quiet_valid)]
    assert numbers == ([2, 4] if is_quiet_valid else [1, 2, 4])
