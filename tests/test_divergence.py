"""No key of a mapping hides another from the comparison, whatever it is called."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recorder.encoding import encode_value
from replay.divergence import ArraySources, Place, compare_rows

TAG_LIKE = ("items", "tuple", "graph", "dict", "dtype", "sha256", "file", "int", "float", "bytes", "text", "shape")


def differences(recorded, replayed):
    return compare_rows(Place("transition", 3), recorded, replayed, ArraySources())


@pytest.mark.parametrize("name", TAG_LIKE)
@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: (value,), lambda value: {"deep": value}])
def test_a_key_that_looks_like_a_tag_hides_nothing(name, wrap):
    one, other = ({name: 1, "position": position} for position in (2.0, 999.0))
    (mismatch,) = differences({"observation": encode_value(wrap(one))}, {"observation": encode_value(wrap(other))})
    assert "position" in mismatch.field
    (mismatch,) = differences({"info": {name: 1, "health": 0.5}}, {"info": {name: 1, "health": 9.5}})
    assert mismatch.field == "info['health']"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False) | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(TAG_LIKE), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=400, deadline=None)
@given(VALUES, VALUES)
def test_two_values_compare_equal_only_if_they_are_spelled_the_same(one, other):
    left, right = encode_value(one), encode_value(other)
    assert bool(differences({"observation": left}, {"observation": right})) == (repr(left) != repr(right))
    assert bool(differences({"info": {"x": left}}, {"info": {"x": right}})) == (repr(left) != repr(right))
