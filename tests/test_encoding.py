"""Values keep type, dtype, shape and bits on their way to JSON and back."""

import contextlib
import enum
import json
import math

import jsonschema
import numpy as np
import pytest
import referencing
from gymnasium.spaces import GraphInstance
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from recorder.encoding import INLINE_ELEMENTS, decode_value, encode_value
from recorder.errors import DamagedError, EncodingError
from recorder.records import SCHEMA_NAMES, encode_line, read_strict_json, row_validator, schema_folder


def schema_validator(name):
    """The schemas judged by another implementation of JSON Schema than the one that records use."""
    schemas = {n: json.loads((schema_folder() / f"{n}.schema.json").read_bytes()) for n in SCHEMA_NAMES}
    resources = [(schema["$id"], referencing.Resource.from_contents(schema)) for schema in schemas.values()]
    registry = referencing.Registry().with_resources(resources)
    return jsonschema.Draft202012Validator(schemas[name], registry=registry)


OTHER_VALIDATOR = schema_validator("value")


def there_and_back(value):
    """Through strict JSON on the wire, valid under the schema for both validators."""
    line = encode_line({"value": encode_value(value)})
    assert json.loads(line, parse_constant=pytest.fail) is not None
    spelled = read_strict_json(line, where="a test")["value"]
    assert row_validator("value")(spelled)
    OTHER_VALIDATOR.validate(spelled)
    return decode_value(spelled)


def same(left, right):  # noqa: PLR0911 - one return a kind
    """Same types, dtypes, shapes and bits, all the way down."""
    if type(left) is not type(right):
        return False
    if isinstance(left, np.longdouble):
        return left == right  # its bytes hold some that are no value
    if isinstance(left, np.ndarray | np.generic):
        return left.dtype.str == right.dtype.str and left.shape == right.shape and left.tobytes() == right.tobytes()
    if isinstance(left, float):
        return np.float64(left).tobytes() == np.float64(right).tobytes()
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


ODD_NAN = np.array([0xFFC00000, 0x7FC00001, 0x7F800001], np.uint32).view(np.float32)

VALUES = {
    "none": None,
    "true": True,
    "zero": 0,
    "one as float": 1.0,
    "minus zero": -0.0,
    "big float": 1e300,
    "tiny float": 5e-324,
    "nan": math.nan,
    "negative nan": np.uint64(0xFFF8000000000000).view(np.float64).item(),
    "infinity": -math.inf,
    "int at 2^53": 2**53,
    "int beyond 2^53": 2**53 + 1,
    "huge int": -(10**40),
    "text": 'µ\u2028\x00"',
    "lone surrogate": "a\ud800",
    "bytes": b"\x00\xff",
    "empty tuple": (),
    "nested": [(1, [2.0, None]), {"b": (True,), "a": {}}],
    "integer keys": {2: "b", 1: "a"},
    "mixed keys": {1: "a", "1": "b", (1, 2): "c"},
    "surrogate key": {"\udfff": 1},
    "float32 scalar": np.float32(0.1),
    "float16 scalar": np.float16(0.1),
    "nan scalar": np.float32("nan"),
    "odd nan scalar": ODD_NAN[0],
    "int64 scalar beyond 2^53": np.int64(2**60 + 1),
    "uint64 scalar": np.uint64(2**64 - 1),
    "bool scalar": np.bool_(False),
    "complex scalar": np.complex64(1 + 2j),
    "longdouble scalar": np.longdouble(1.5),
    "text scalar": np.str_("abc"),
    "date scalar": np.datetime64("2026-01-01", "ns"),
    "0-d array": np.array(1.5, np.float32),
    "empty array": np.zeros((0, 3), np.int8),
    "matrix": np.arange(6, dtype=np.int16).reshape(2, 3),
    "transposed": np.arange(6.0).reshape(2, 3).T,
    "strided": np.arange(10.0)[::3],
    "reversed": np.arange(5)[::-1],
    "big-endian": np.array([1.5, -2.0], ">f4"),
    "big-endian ints": np.array([1, 2**40], ">i8"),
    "non-finite": np.array([np.nan, np.inf, -np.inf, -0.0], np.float64),
    "odd nans": ODD_NAN,
    "sum overflows": np.array([1e308, 1e308]),
    "big ints": np.array([2**63 - 1, -(2**63), 2**53, 0]),
    "big unsigned": np.array([2**64 - 1], np.uint64),
    "bools": np.array([[True], [False]]),
    "strings": np.array(["ab", "c"]),
    "byte strings": np.array([b"ab", b"c"]),
    "complex": np.array([1 + 2j, -0.0j]),
    "many": np.arange(INLINE_ELEMENTS + 1, dtype=np.float32),
    "graph": GraphInstance(np.ones((2, 1), np.float32), np.zeros((1, 2), np.float32), np.array([[0, 1]])),
    "graph without edges": GraphInstance(np.ones((2, 1), np.float32), None, None),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_comes_back_with_type_dtype_shape_and_bits(name):
    assert same(there_and_back(VALUES[name]), VALUES[name])


@settings(max_examples=200, deadline=None)
@given(hnp.arrays(hnp.scalar_dtypes(), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)))
def test_any_array_comes_back(array):
    assert same(there_and_back(array), array)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None)
@given(JSON)
def test_any_plain_python_value_comes_back(value):
    assert same(there_and_back(value), value)


TAGS = st.sampled_from(
    ["dtype", "shape", "values", "value", "hex", "dict", "tuple", "items", "graph", "int", "float", "bytes", "text"]
)
MALFORMED = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.sampled_from(["<f4", "|O", "NaN", "00", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TAGS, inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=500, deadline=None)
@given(MALFORMED)
def test_a_malformed_spelling_is_damage_and_nothing_else(spelled):
    with contextlib.suppress(DamagedError):
        decode_value(spelled)


def test_decoded_arrays_are_fresh_and_writable():
    for array in (np.arange(3.0), np.array([1 + 1j]), np.zeros((0,))):
        back = decode_value(encode_value(array))
        assert back.flags.writeable
        assert back.flags.c_contiguous


def test_the_spelling_does_not_change_with_the_array_it_came_from():
    array = np.zeros(3)
    spelled = encode_value({"a": (array,)})
    array[:] = 7
    assert same(decode_value(spelled), {"a": (np.zeros(3),)})


def test_the_order_of_keys_never_reaches_the_spelling():
    forwards, backwards = {"a": 1, "b": 2}, {"b": 2, "a": 1}
    assert encode_line(encode_value(forwards)) == encode_line(encode_value(backwards))
    assert encode_line(encode_value({1: 1, "x": 2})) == encode_line(encode_value({"x": 2, 1: 1}))


def test_floats_of_any_width_are_exact_decimals():
    assert encode_value(np.float32(0.1)) == {"dtype": "<f4", "value": 0.10000000149011612}


class Colour(enum.IntEnum):
    RED = 1


class Tensor:
    """Stands for an array of another library."""


LOOP = []
LOOP.append(LOOP)

REFUSED = {
    "object array": (np.array([None]), "dtype object"),
    "structured array": (np.zeros(1, [("a", int)]), "no exact spelling"),
    "set": ({1}, "builtins.set"),
    "enum": (Colour.RED, "Colour"),
    "tensor": (Tensor(), "convert it to a numpy array"),
    "masked array": (np.ma.masked_array([1]), "MaskedArray"),
    "matrix": (np.matrix([[1]]), "matrix"),
    "list in itself": (LOOP, "contains itself"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_exact_spelling_is_refused_with_its_place(name):
    value, words = REFUSED[name]
    with pytest.raises(EncodingError, match=words) as caught:
        encode_value({"outer": [0, value]})
    assert caught.value.path[:2] == ("outer", 1)
    assert "['outer'][1]" in str(caught.value)


@pytest.mark.parametrize("name", SCHEMA_NAMES)
def test_the_schemas_are_valid_json_schema_2020_12(name):
    jsonschema.Draft202012Validator.check_schema(schema_validator(name).schema)
