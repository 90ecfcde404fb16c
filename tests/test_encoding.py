"""Values come back with type, dtype, shape and bits; what cannot is refused; malformed spellings are damage."""

import collections
import contextlib
import copy
import dataclasses
import enum
import json
import math
import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from environments import fold, graph
from recorder.encoding import DEPTH_LIMIT, EXACT_INTEGER, INLINE_ELEMENTS, decode_value, encode_value
from recorder.errors import DamagedError, EncodingError
from recorder.records import encode_line, read_strict_json, schema_folder, validate_row

QUICK = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class SideArrays:
    """Arrays beyond a line, kept in memory."""

    def __init__(self):
        self.data = b""

    def put(self, data):
        entry = {"file": "arrays.bin", "offset": len(self.data), "sha256": "0" * 64}
        self.data += data
        return entry

    def get(self, entry, length_bytes):
        return self.data[entry["offset"] : entry["offset"] + length_bytes]


def refuse(name):
    message = f"{name} on the wire"
    raise AssertionError(message)


def through_the_wire(value):
    """A value spelled, written as a line, validated, read strictly and decoded, along with the line."""
    arrays = SideArrays()
    line = encode_line(encode_value(value, arrays))
    spelled = json.loads(line, parse_constant=refuse)
    validate_row("value", spelled, where="a value")
    assert read_strict_json(line, where="a value") == spelled
    return decode_value(spelled, arrays), line


def assert_same(left, right):
    """Same types, dtypes, shapes and bits all the way down, by rules of this test's own."""
    assert type(left) is type(right)
    if isinstance(left, np.ndarray | np.generic):
        assert np.asarray(left).dtype.str == np.asarray(right).dtype.str
        assert np.shape(left) == np.shape(right)
        assert np.asarray(left).tobytes() == np.asarray(right).tobytes()
    elif isinstance(left, dict):
        assert {(type(key), repr(key)) for key in left} == {(type(key), repr(key)) for key in right}
        rights = {(type(key), repr(key)): value for key, value in right.items()}
        for key, value in left.items():
            assert_same(value, rights[type(key), repr(key)])
    elif isinstance(left, list | tuple):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_same(one, other)
    elif isinstance(left, float):
        assert struct.pack("<d", left) == struct.pack("<d", right)
    else:
        assert left == right


def assert_comes_back(value):
    before = fold_or_none(value)
    back, line = through_the_wire(value)
    assert_same(value, back)
    assert through_the_wire(back)[1] == line
    assert fold_or_none(value) == before
    if isinstance(back, np.ndarray):
        assert back.flags.writeable
        assert not np.shares_memory(back, value)


def fold_or_none(value):
    try:
        return fold(value)
    except TypeError:  # keys of several types have no order
        return None


def float_of_bits(bits):
    return struct.unpack("<d", struct.pack("<Q", bits))[0]


PAYLOAD_NAN = float_of_bits(0x7FF8DEADBEEF0001)
SIGNALLING_NAN = float_of_bits(0x7FF0000000000001)
NEGATIVE_NAN = float_of_bits(0xFFF8000000000000)
FLOATS = [0.0, -0.0, 0.1, 5e-324, 1.7976931348623157e308, math.inf, -math.inf, math.nan, PAYLOAD_NAN, NEGATIVE_NAN]
INTS = [0, -1, 2**53 - 1, 2**53, 2**53 + 1, -(2**53) - 1, 2**63, 2**64 - 1, -(2**63), 10**40, -(10**4000)]
TEXTS = ["", "abc", "\x00", "a\x00", "\u2028\u0085", "\ud800", "a\udfffb", "ä\U0001f600", '"\\/\n\r\t\x7f', "NaN"]


@pytest.mark.parametrize(
    "value", [None, True, False, *INTS, *FLOATS, SIGNALLING_NAN, *TEXTS, b"", b"\x00\xff"], ids=ascii
)
def test_plain_values_come_back(value):
    assert_comes_back(value)


@pytest.mark.parametrize(
    "value",
    [
        [],
        (),
        {},
        [[], ()],
        (1, 1.0, True, "1", None),
        {"z": 1, "a": [2.0, (3,)]},
        {"dict": 1},
        {"dtype": "<f4", "value": 1.0},
        {"float": "NaN"},
        {"": {"": ""}},
        {1: "int", "1": "text", 1.5: "float", None: "none", b"1": "bytes", (1, "a"): "tuple"},
        {np.int64(3): "numpy", True: "bool"},
        {"\ud800": 1, "a": 2},
        {"a\x00": 1},
        graph(np.zeros((2, 3), np.float32), np.ones((1, 1)), np.array([[0, 1]])),
        graph(np.array([1, 2])),
        [graph(np.array([1, 2])), {"g": (graph(np.zeros((0, 2))),)}],
    ],
    ids=repr,
)
def test_containers_come_back(value):
    assert_comes_back(value)


DTYPES = [
    "?",
    "i1",
    "i2",
    "i4",
    "i8",
    "u1",
    "u2",
    "u4",
    "u8",
    "f2",
    "f4",
    "f8",
    "c8",
    "c16",
    "S3",
    "U3",
    "M8[us]",
    "m8[D]",
]


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0), (2, 3), (1, 1, 1), (17, 19)])
def test_arrays_of_every_dtype_shape_and_byte_order_come_back(dtype, order, shape):
    dtype = np.dtype(dtype).newbyteorder(order)
    count = math.prod(shape)
    data = np.random.default_rng(0).integers(0, 120, count * dtype.itemsize, np.uint8)
    if dtype.kind == "b":
        data %= 2
    if dtype.kind == "U":  # code points of four bytes each
        data = np.zeros((count * 3, 4), np.uint8)
        data[:, 0 if order == "<" else 3] = 65
    assert_comes_back(np.frombuffer(data.tobytes(), dtype).reshape(shape).copy())


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f2", ">f4", ">f8"])
@pytest.mark.parametrize("size", [1, 5, INLINE_ELEMENTS, INLINE_ELEMENTS + 1])
def test_special_floats_in_arrays_keep_their_bits(dtype, size):
    special = np.array([math.nan, math.inf, -math.inf, -0.0, 0.0, 1.0], dtype)
    assert_comes_back(np.resize(special, size))
    for number in special:
        assert_comes_back(np.array(number))
    width = 8 * np.dtype(dtype).itemsize
    rng = np.random.default_rng(1)
    assert_comes_back(np.frombuffer(rng.bytes(size * width // 8), dtype).copy())
    nans = np.full(size, np.nan, dtype)
    nans.view(f"u{width // 8}")[0] ^= 1
    assert_comes_back(nans)
    assert_comes_back(-np.full(size, np.nan, dtype))


@pytest.mark.parametrize("dtype", ["i8", "u8", ">i8", ">u8"])
def test_64_bit_integers_at_every_limit_come_back(dtype):
    limits = np.iinfo(dtype)
    edge = EXACT_INTEGER
    values = [limits.min, limits.max, edge - 1, edge, edge + 1, max(-edge - 1, limits.min), 0]
    assert_comes_back(np.array(values, dtype))
    for value in np.array(values, np.dtype(dtype).newbyteorder("=")):
        assert_comes_back(value)


def test_integers_beyond_what_a_float64_holds_are_spelled_as_text():
    assert encode_value(EXACT_INTEGER) == EXACT_INTEGER
    assert encode_value(EXACT_INTEGER + 1) == {"int": "9007199254740993"}
    assert encode_value(np.uint64(2**64 - 1)) == {"dtype": "<u8", "value": "18446744073709551615"}
    assert encode_value(np.array([2**53 + 1]))["values"] == ["9007199254740993"]


@pytest.mark.parametrize(
    "value",
    [
        *(
            np.dtype(d).type(1)
            for d in ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]
        ),
        *(np.float32(x) for x in (math.nan, -math.nan, math.inf, -0.0, 0.1)),
        np.float64(PAYLOAD_NAN),
        np.frombuffer(b"\x01\x00\x80\x7f", "<f4")[0],
        np.datetime64("2020-01-02T03:04:05", "us"),
        np.datetime64("NaT"),
        np.timedelta64(3, "D"),
        np.str_(""),
        np.str_("a\ud800\x00"),
        np.str_("tail\x00"),
        np.bytes_(b""),
        np.bytes_(b"\x00"),
        np.bytes_(b"ab\x00"),
    ],
    ids=lambda value: f"{type(value).__name__} {value!r}".encode("ascii", "backslashreplace").decode(),
)
def test_numpy_scalars_come_back_as_scalars(value):
    assert_comes_back(value)
    assert_comes_back([value, {"k": (value,)}])


def test_bytes_that_only_fill_up_a_long_double_are_no_value():
    numbers = np.array([1.5, -0.0, np.inf], np.longdouble)
    filled = numbers.copy()
    value_bytes = 10 if np.finfo(np.longdouble).nmant == 63 else numbers.itemsize
    filled.view(np.uint8).reshape(3, -1)[:, value_bytes:] = 0xAB
    assert encode_value(filled) == encode_value(numbers)
    assert decode_value(encode_value(filled)).tolist() == numbers.tolist()
    assert encode_value(numbers[0]) == encode_value(filled[0])
    assert decode_value(encode_value(numbers[0])) == np.longdouble(1.5)


def test_a_scalar_an_array_without_dimensions_and_a_python_number_stay_three_things():
    spelled = [encode_line(encode_value(value)) for value in (1.0, np.float64(1.0), np.array(1.0), np.array([1.0]), 1)]
    assert len(set(spelled)) == 5


@pytest.mark.parametrize(
    "view",
    [
        np.arange(24).reshape(4, 6).T,
        np.arange(24.0)[::-2],
        np.arange(24, dtype=np.uint8).reshape(2, 3, 4)[:, ::-1, 1:3],
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.broadcast_to(np.float32(3), (2, 5)),
        np.arange(2000).reshape(40, 50).T,
        np.frombuffer(b"read only bytes.", np.uint8),
    ],
    ids=lambda view: f"{view.dtype} {view.shape} {view.strides}",
)
def test_views_come_back_as_whole_writable_arrays(view):
    back, _ = through_the_wire(view)
    assert back.tobytes() == view.tobytes()
    assert (back.shape, back.dtype) == (view.shape, view.dtype)
    assert back.flags.writeable
    back[...] = 0


def test_a_decoded_array_of_a_side_file_does_not_share_its_memory():
    arrays = SideArrays()
    spelled = encode_value(np.arange(1000), arrays)
    first, second = decode_value(spelled, arrays), decode_value(spelled, arrays)
    first[:] = 0
    assert second[999] == 999


def test_what_was_spelled_does_not_change_with_the_value():
    inner = np.zeros(3)
    value = {"a": inner, "b": [1, {"c": inner}]}
    spelled = encode_value(value)
    before = copy.deepcopy(spelled)
    inner[:] = 9
    value["b"].append(3)
    assert spelled == before


def test_the_order_of_insertion_never_reaches_the_line():
    keys = ["b", "a", "\U0001f600", "\uffff", "Z", ""]
    forth = encode_line(encode_value({key: {key: 1, "x": 2} for key in keys}))
    back = encode_line(encode_value({key: {"x": 2, key: 1} for key in reversed(keys)}))
    assert forth == back
    mixed = [1, "1", None, (2, "a"), b"z", 1.5, np.int8(7), "\ud800"]
    forth = encode_line(encode_value(dict.fromkeys(mixed, 0)))
    assert forth == encode_line(encode_value(dict.fromkeys(reversed(mixed), 0)))


def test_subclasses_of_dict_are_kept_as_mappings():
    for value in (
        collections.OrderedDict(b=1, a=2),
        collections.defaultdict(int, b=1, a=2),
        collections.Counter(b=1, a=2),
    ):
        back, _ = through_the_wire(value)
        assert type(back) is dict
        assert back == {"a": 2, "b": 1}


def test_an_array_beyond_a_line_goes_to_the_side_file_and_is_inline_hex_without_one():
    array = np.zeros(INLINE_ELEMENTS + 1, np.uint8)
    assert "file" in encode_value(array, SideArrays())
    assert "hex" in encode_value(array)
    assert "values" in encode_value(array[1:], SideArrays())
    assert_same(decode_value(encode_value(array)), array)


def test_three_megabytes_in_info_stay_off_the_line():
    info = {"screen": np.random.default_rng(0).integers(0, 255, (1000, 1000, 3), np.uint8)}
    back, line = through_the_wire(info)
    assert_same(back, info)
    assert len(line) < 300


class Colour(enum.IntEnum):
    RED = 1


class Tensor:
    """Quacks like an array of another library."""

    shape = (2,)
    dtype = "float32"

    def __array__(self, dtype=None, copy=None):
        return np.zeros(2, np.float32)

    def __len__(self):
        return 2

    def __float__(self):
        return 1.0


class Text(str):
    __slots__ = ()


class Number(float):
    pass


Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass
class Record:
    x: int = 1


def loop():
    items = []
    items.append(items)
    return items


def dict_loop():
    value = {}
    value["again"] = (value,)
    return value


REFUSED = {
    "object array": np.array([1, None], object),
    "object scalar array": np.array(None, object),
    "empty object array": np.zeros(0, object),
    "set": {1, 2},
    "frozenset": frozenset((1,)),
    "tensor": Tensor(),
    "IntEnum": Colour.RED,
    "str subclass": Text("a"),
    "float subclass": Number(1.0),
    "masked array": np.ma.masked_array([1, 2], [True, False]),
    "masked constant": np.ma.masked,
    "matrix": np.ones((1, 2)).view(np.matrix),
    "record array": np.rec.array([(1, 2.0)]),
    "structured": np.zeros(2, "i4,f4"),
    "structured scalar": np.zeros(2, "i4,f4")[0],
    "raw void": np.void(b"ab"),
    "named tuple": Point(1, 2),
    "dataclass": Record(),
    "complex": 1j,
    "range": range(3),
    "bytearray": bytearray(b"a"),
    "memoryview": memoryview(b"a"),
    "function": len,
    "class": int,
    "generator": (i for i in range(2)),
    "ellipsis": ...,
    "list that holds itself": loop(),
    "dict that holds itself": dict_loop(),
    "dtype": np.dtype("f4"),
}


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED)
def test_what_has_no_exact_spelling_is_refused_with_its_place(value):
    with pytest.raises(EncodingError):
        encode_value(value)
    with pytest.raises(EncodingError) as caught:
        encode_value({"fine": 1, "here": [0, (1, value)]}, SideArrays())
    assert caught.value.path[:3] == ("here", 1, 1)
    assert "value['here'][1][1]" in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_refused_part_of_a_graph_or_of_a_mapping_with_other_keys_is_named():
    with pytest.raises(EncodingError, match=r"\['nodes'\]"):
        encode_value(graph({1}))
    with pytest.raises(EncodingError, match=r"value\['\(1, 2\)'\]\[0\]"):
        encode_value({(1, 2): [object()]})


def test_a_refused_key_is_named():
    with pytest.raises(EncodingError, match=r"\['here'\].*frozenset"):
        encode_value({"here": {frozenset((1,)): 1}})
    with pytest.raises(EncodingError, match="Colour"):
        encode_value({Colour.RED: 1})


def test_nesting_up_to_the_limit_is_recorded_and_read_back():
    value = 1
    for _ in range(DEPTH_LIMIT):
        value = [value]
    assert_comes_back(value)
    with pytest.raises(EncodingError, match="deep"):
        encode_value([value])


MALFORMED = [
    {},
    {"dict": [1]},
    {"dict": None},
    {"dict": {}, "tuple": []},
    {"tuple": 3},
    {"items": [[1]]},
    {"items": [[1, 2, 3]]},
    {"items": [[[], 1]]},
    {"items": 5},
    {"graph": []},
    {"graph": {"nodes": 1}},
    {"graph": {"nodes": 1, "edges": 1, "edge_links": 1, "more": 1}},
    {"int": "x"},
    {"int": None},
    {"int": "9" * 5000},
    {"float": "x"},
    {"float": "00"},
    {"float": 3},
    {"float": []},
    {"bytes": "0"},
    {"bytes": 1},
    {"text": "ff"},
    {"text": []},
    {"unknown": 1},
    {"dtype": "<f4"},
    {"dtype": "<f4", "shape": [1]},
    {"dtype": "<f4", "shape": [2], "values": [1]},
    {"dtype": "<f4", "shape": [1], "values": ["x"]},
    {"dtype": "<f4", "shape": [1], "values": [[1, 2]]},
    {"dtype": "<f4", "shape": [1], "values": [{}]},
    {"dtype": "<f4", "shape": [1], "values": 1},
    {"dtype": "<f4", "shape": ["1"], "values": [1]},
    {"dtype": "<f4", "shape": [1.5], "values": [1]},
    {"dtype": "|u1", "shape": [1], "values": [256]},
    {"dtype": "|u1", "shape": [1], "values": [-1]},
    {"dtype": "|i1", "value": 128},
    {"dtype": "<i4", "value": "x"},
    {"dtype": "<f4", "value": "x"},
    {"dtype": "<f4", "value": {}},
    {"dtype": "<f4", "hex": ""},
    {"dtype": "<f4", "hex": "00"},
    {"dtype": "<f4", "hex": "zz"},
    {"dtype": "<f4", "hex": "0000000000000000"},
    {"dtype": "<f4", "shape": [1], "hex": "00"},
    {"dtype": "<f4", "shape": [1], "hex": 3},
    {"dtype": "<f4", "shape": [-1], "hex": "0000"},
    {"dtype": "O", "value": 1},
    {"dtype": None, "value": 1},
    {"dtype": "|O", "shape": [1], "hex": "0000000000000000"},
    {"dtype": "i4,f4", "value": 1},
    {"dtype": "(2,)f4", "value": 1},
    {"dtype": "|V4", "hex": "00000000"},
    {"dtype": "|S99999999999999", "hex": ""},
    {"dtype": "<M8[us]", "value": "yesterday"},
    {"dtype": "<M8[zz]", "value": 1},
    {"dtype": "garbage", "value": 1},
    {"dtype": "{", "value": 1},
    {"dtype": "<f4\x00", "value": 1},
    {"dtype": "\ud800", "value": 1},
    {"dtype": [], "value": 1},
    {"dtype": {"names": ["a"], "formats": ["i4"]}, "value": 1},
    {"dtype": 5, "value": 1},
    {"dtype": "<f4", "shape": [1], "file": "arrays.bin", "offset": 0, "sha256": "0" * 64},
]


@pytest.mark.parametrize("spelled", MALFORMED, ids=ascii)
def test_a_malformed_spelling_is_damage(spelled):
    for outer in (spelled, [spelled], {"tuple": [{"dict": {"a": spelled}}]}):
        with pytest.raises(DamagedError):
            decode_value(outer)


def test_a_spelling_nested_beyond_any_that_is_written_is_damage():
    spelled = 1
    for _ in range(100_000):
        spelled = [spelled]
    with pytest.raises(DamagedError):
        decode_value(spelled)


@pytest.mark.parametrize(
    "spelled",
    [
        {"tuple": {"a": 1}},
        {"tuple": "abc"},
        {"items": {}},
        {"dtype": "<f4", "shape": 1, "values": [1]},
        {"dtype": "<f4", "shape": [1], "values": [None]},
        {"dtype": "<f4", "value": []},
        {"dtype": "<f4", "value": None},
        {"dtype": "float32", "value": 1.0},
        {"dtype": "<f4", "shape": [-1], "values": [1.0]},
        {"dtype": "<f4", "shape": [1], "values": [1.0], "hex": "00000000"},
        {"dtype": "<f4", "shape": [1], "values": [1.0], "more": 1},
        {"dtype": "<f4", "shape": [2, 0], "file": "/etc/passwd", "offset": 0, "sha256": "0" * 64},
        {"int": 3},
        {"float": "nan"},
        {"tuple": [], "more": 1},
        {"bytes": "0 0"},
    ],
    ids=repr,
)
def test_what_no_writer_spells_breaks_the_schema(spelled):
    with pytest.raises(DamagedError, match=r"breaks value\.schema\.json"):
        validate_row("value", spelled, where="a value")


plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters()),
    st.binary(max_size=20),
)
number_dtypes = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?", sizes=(16, 32, 64)),
    hnp.complex_number_dtypes(endianness="?", sizes=(64, 128)),
    hnp.datetime64_dtypes(endianness="?"),
)
number_arrays = hnp.arrays(number_dtypes, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=8))
raw_floats = st.builds(
    lambda dtype, data: np.frombuffer(data[: len(data) // 8 * 8], dtype).copy(),
    st.sampled_from(["<f2", "<f4", "<f8", ">f2", ">f4", ">f8"]),
    st.binary(max_size=64),
)
scalars = number_arrays.filter(lambda array: array.size and array.dtype.isnative).map(lambda array: array.ravel()[0])
leaves = st.one_of(plain, number_arrays, raw_floats, scalars)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.text(max_size=5), inner, max_size=4),
        st.dictionaries(st.one_of(st.integers(), st.text(max_size=3), st.none()), inner, max_size=4),
        st.builds(graph, inner, inner, inner),
    ),
    max_leaves=8,
)


@QUICK
@given(values)
def test_any_value_comes_back(value):
    assert_comes_back(value)


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.text(max_size=4), inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["dict", "tuple", "items", "graph", "int", "float", "bytes", "text"]), inner, max_size=1
        ),
        st.fixed_dictionaries(
            {"dtype": st.one_of(inner, st.sampled_from(["<f4", "|u1", "<i8", "|b1", "<U2", "|S2", "<M8[us]", "<c8"]))},
            optional={
                "shape": st.one_of(inner, st.lists(st.integers(-2, 5), max_size=3)),
                "values": st.one_of(inner, st.lists(st.integers(-300, 300), max_size=5)),
                "value": inner,
                "hex": st.one_of(inner, st.binary(max_size=9).map(bytes.hex)),
                "file": st.just("arrays.bin"),
                "offset": inner,
                "sha256": inner,
            },
        ),
    ),
    max_leaves=10,
)


@pytest.mark.filterwarnings("ignore:overflow encountered")
@settings(QUICK, max_examples=600)
@given(json_values)
def test_no_json_at_all_makes_decoding_raise_anything_but_damage(spelled):
    for arrays in (None, SideArrays()):
        with contextlib.suppress(DamagedError):
            decode_value(spelled, arrays)


@QUICK
@given(values)
def test_every_spelling_is_valid_for_another_validator_too(value):
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    spelled = json.loads(encode_line(encode_value(value, SideArrays())))
    schema = json.loads((schema_folder() / "value.schema.json").read_bytes())
    jsonschema.Draft202012Validator(schema).validate(spelled)


def test_every_schema_is_valid_json_schema_for_another_validator_too():
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    names = [entry.name for entry in schema_folder().iterdir() if entry.name.endswith(".schema.json")]
    assert len(names) == 11
    for name in names:
        jsonschema.Draft202012Validator.check_schema(json.loads((schema_folder() / name).read_bytes()))
