"""The exact spelling of observations, actions, rewards and info values as JSON, and back.

`schemas/README.md` ("Values") is the law; this module is its only implementation. Type, dtype, shape and
bits survive the way there and back: the same NaN stays the same NaN, -0.0 keeps its sign, float32 stays
float32, a tuple stays a tuple.
"""

from __future__ import annotations

import functools
import math
import struct
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from gymnasium.spaces import GraphInstance

from recorder.errors import DamagedError, EncodingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from recorder.records import JsonValue, Row

# Arrays with more elements go to the side file: a line stays readable, and 256 covers every vector observation.
INLINE_ELEMENTS = 256

# Beyond this, readers that hold numbers as float64 (jq, JavaScript) would round an integer.
EXACT_INTEGER = 2**53

# Deeper nesting than any space has; also what a value that contains itself runs into.
DEPTH_LIMIT = 64

# Python's and numpy's own NaN, the one that is spelled "NaN"; any other NaN is spelled in hex.
QUIET_NAN_BITS = 0x7FF8000000000000

_NUMPY_SCALARS = frozenset(np.sctypeDict.values())
_NUMERIC_KINDS = "biuf"
_BYTE_KINDS = "biufcSUmM"
_INT_DTYPE_BYTES = 8

# Extended precision as x86 stores it.
LONG_DOUBLE_BYTES, LONG_DOUBLE_VALUE_BYTES = 16, 10
_IS_PADDED = np.finfo(np.longdouble).nmant == 63  # noqa: PLR2004 - the mantissa of that format
_PADDED_DTYPES = {np.dtype(np.longdouble), np.dtype(np.clongdouble)} if _IS_PADDED else set()

# The numpy scalars whose values decimal numbers hold, with their spelling and kind.
_SCALAR_DTYPES = {
    kind: (np.dtype(kind).str, np.dtype(kind).kind)
    for kind in _NUMPY_SCALARS
    if np.dtype(kind).kind in _NUMERIC_KINDS and np.dtype(kind).itemsize <= _INT_DTYPE_BYTES
}


class ArrayStore(Protocol):
    """Where arrays go that are too big for a line."""

    def put(self, data: bytes) -> Row:
        """Keep the bytes; return the fields `file`, `offset` and `sha256`."""
        ...


class ArraySource(Protocol):
    """Where arrays come from that are too big for a line."""

    def get(self, entry: Row, length_bytes: int) -> bytes:
        """The bytes that `entry` (`file`, `offset`, `sha256`) stands for, verified."""
        ...


def encode_value(  # noqa: PLR0911 - one return a kind of value
    value: Any,
    arrays: ArrayStore | None = None,
    depth: int = 0,
    *,
    is_sent: bool = False,
) -> JsonValue:
    """Spell a value as JSON.

    Args:
        value: None, bool, int, float, str, bytes, numpy scalar or array, list, tuple, mapping,
            `GraphInstance`, or these within each other.
        arrays: Takes arrays of more than `INLINE_ELEMENTS` elements; without it they are spelled inline in hex.
        depth: How deep within another value this one sits.
        is_sent: Whether the value goes into an environment, which may go by the order of a mapping's keys: the
            order is kept then, and sorted away otherwise.

    Returns:
        What `records.encode_line` can write; it shares nothing with `value`.

    Raises:
        EncodingError: The value has no exact spelling; the message says where it sits.
    """
    # One flat chain of type tests, the frequent ones first: this runs three times a recorded decision.
    kind = type(value)
    if kind is np.ndarray:
        return _encode_array(value, arrays)
    if kind is float:
        return value if math.isfinite(value) else {"float": _spell_non_finite(value)}
    if kind in _NUMPY_SCALARS:
        return _encode_scalar(value)
    if kind is bool or value is None:
        return value
    if kind is int:
        return value if -EXACT_INTEGER <= value <= EXACT_INTEGER else {"int": _spell_integer(value)}
    if kind is str:
        return _encode_text(value)
    return _encode_container(value, arrays, depth, is_sent)


def decode_value(spelled: JsonValue, arrays: ArraySource | None = None) -> Any:
    """The value that `encode_value` spelled: same types, dtypes, shapes and bits, in fresh memory.

    Raises:
        DamagedError: The spelling is not one that `encode_value` makes.
    """
    try:
        return _decode(spelled, arrays)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, struct.error) as error:
        message = f"a recorded value cannot be read back: {error}"
        raise DamagedError(message) from error


def _encode_container(value: Any, arrays: ArrayStore | None, depth: int, is_sent: bool) -> JsonValue:
    if depth >= DEPTH_LIMIT:
        problem = f"it is nested more than {DEPTH_LIMIT} deep (or contains itself)"
        raise EncodingError(problem)
    kind = type(value)
    if kind is bytes:
        return {"bytes": value.hex()}
    if kind is tuple:
        return {"tuple": _encode_items(enumerate(value), arrays, depth, is_sent)}
    if kind is list:
        return _encode_items(enumerate(value), arrays, depth, is_sent)
    if isinstance(value, dict):
        return _encode_dict(value, arrays, depth, is_sent)
    if isinstance(value, GraphInstance):
        names = ("nodes", "edges", "edge_links")
        parts = _encode_items(((name, getattr(value, name)) for name in names), arrays, depth, is_sent)
        return {"graph": dict(zip(names, parts, strict=True))}
    problem = (
        f"{kind.__module__}.{kind.__qualname__} has no exact spelling; "
        "convert it to a numpy array or a plain Python value"
    )
    raise EncodingError(problem)


def _encode_items(
    items: Iterable[tuple[Any, Any]], arrays: ArrayStore | None, depth: int, is_sent: bool
) -> list[JsonValue]:
    spelled = []
    for key, item in items:
        try:
            spelled.append(encode_value(item, arrays, depth + 1, is_sent=is_sent))
        except EncodingError as error:
            raise error.inside(key) from None
    return spelled


def _encode_dict(value: Mapping[Any, Any], arrays: ArrayStore | None, depth: int, is_sent: bool) -> JsonValue:
    if all(type(key) is str and not _has_surrogate(key) for key in value):
        keys = list(value) if is_sent else sorted(value)
        items = _encode_items(((key, value[key]) for key in keys), arrays, depth, is_sent)
        return {"dict": dict(zip(keys, items, strict=True))}
    pairs = [(encode_value(key, None, depth + 1), key) for key in value]
    if not is_sent:
        pairs.sort(key=lambda pair: repr(pair[0]))  # so that the order of insertion never reaches the record
    items = _encode_items(((repr(key), value[key]) for _, key in pairs), arrays, depth, is_sent)
    return {"items": [[spelled, item] for (spelled, _), item in zip(pairs, items, strict=True)]}


def _encode_array(array: np.ndarray[Any, Any], arrays: ArrayStore | None) -> Row:
    spelling, kind, is_spelled_in_numbers = _dtype_facts(array.dtype)
    if array.size > INLINE_ELEMENTS:
        if arrays is not None:
            return {"dtype": spelling, "shape": list(array.shape), **arrays.put(array_bytes(array))}
    elif is_spelled_in_numbers:
        numbers: list[Any] = array.tolist() if array.ndim == 1 else array.ravel().tolist()
        values: list[Any] | None = numbers
        # A sum is finite only if every element is; an overflowing sum merely takes the careful way.
        if kind == "f":
            if not math.isfinite(sum(numbers)):
                values = _spell_floats(array.ravel(), numbers)
        elif kind != "b" and array.dtype.itemsize == _INT_DTYPE_BYTES:
            values = [n if -EXACT_INTEGER <= n <= EXACT_INTEGER else str(n) for n in numbers]
        if values is not None:
            return {"dtype": spelling, "shape": list(array.shape), "values": values}
    return {"dtype": spelling, "shape": list(array.shape), "hex": array_bytes(array).hex()}


def _encode_scalar(value: np.generic) -> Row:
    spelling, kind = _SCALAR_DTYPES.get(type(value), ("", ""))
    if kind == "f":
        number = value.item()
        if math.isfinite(number):
            return {"dtype": spelling, "value": number}
    elif kind:
        number = value.item()
        is_exact = -EXACT_INTEGER <= number <= EXACT_INTEGER
        return {"dtype": spelling, "value": number if is_exact else str(number)}
    # An array of text drops trailing NULs, so the bytes of text scalars are taken from themselves.
    if isinstance(value, np.str_):
        return {"dtype": f"<U{len(value)}", "hex": value.encode("utf-32-le", "surrogatepass").hex()}
    if isinstance(value, np.bytes_):
        return {"dtype": f"|S{len(value)}", "hex": bytes(value).hex()}
    spelled = _encode_array(np.asarray(value), None)
    if "values" in spelled:
        return {"dtype": spelled["dtype"], "value": spelled["values"][0]}
    return {"dtype": spelled["dtype"], "hex": spelled["hex"]}


def array_bytes(array: np.ndarray[Any, Any]) -> bytes:
    """The bytes in C order; those that x86's long doubles only fill up with are zero, as they are no value."""
    data = array.tobytes()
    if array.dtype not in _PADDED_DTYPES:
        return data
    padded = np.frombuffer(data, np.uint8).reshape(-1, LONG_DOUBLE_BYTES).copy()
    padded[:, LONG_DOUBLE_VALUE_BYTES:] = 0
    return padded.tobytes()


@functools.cache
def _dtype_facts(dtype: np.dtype[Any]) -> tuple[str, str, bool]:
    """Spelling, kind and whether decimal numbers hold every value of a dtype."""
    if dtype.kind not in _BYTE_KINDS:
        problem = f"arrays of dtype {dtype} have no exact spelling; use a numeric dtype"
        raise EncodingError(problem)
    return dtype.str, dtype.kind, dtype.kind in _NUMERIC_KINDS and dtype.itemsize <= _INT_DTYPE_BYTES


def _spell_floats(flat: np.ndarray[Any, Any], values: list[float]) -> list[Any] | None:
    """Spell a float array that may hold NaN or infinities; None when some NaN has bits of its own."""
    nans = flat[np.isnan(flat)]
    if nans.size and nans.tobytes() != np.full_like(nans, np.nan).tobytes():
        return None
    return [v if math.isfinite(v) else _spell_non_finite(v) for v in values]


def _spell_non_finite(value: float) -> str:
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    (bits,) = struct.unpack("<Q", struct.pack("<d", value))
    return "NaN" if bits == QUIET_NAN_BITS else f"{bits:016x}"


def _spell_integer(value: int) -> str:
    try:
        return str(value)
    except ValueError:
        problem = f"an int of {value.bit_length()} bits has no decimal spelling that Python reads back"
        raise EncodingError(problem) from None


def _encode_text(value: str) -> JsonValue:
    return {"text": value.encode("utf-8", "surrogatepass").hex()} if _has_surrogate(value) else value


def _has_surrogate(text: str) -> bool:
    return not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text)


def _decode(spelled: JsonValue, arrays: ArraySource | None) -> Any:
    if type(spelled) is dict:
        if "dtype" in spelled:
            return _decode_numpy(spelled, arrays)
        ((tag, content),) = spelled.items()
        return _DECODERS[tag](content, arrays)
    if type(spelled) is list:
        return [_decode(item, arrays) for item in spelled]
    return spelled


def _decode_numpy(spelled: Row, arrays: ArraySource | None) -> Any:
    dtype = _read_dtype(spelled["dtype"])
    if "value" in spelled:
        value = spelled["value"]
        return dtype.type(int(value) if dtype.kind in "iu" and type(value) is str else value)
    if "shape" not in spelled:
        return _decode_scalar_bytes(dtype, bytes.fromhex(spelled["hex"]))
    shape = spelled["shape"]
    if "values" in spelled:
        values = spelled["values"]
        if any(type(value) is str for value in values):
            convert: type = int if dtype.kind in "iu" else float
            values = [convert(value) if type(value) is str else value for value in values]
        return np.array(values, dtype).reshape(shape)
    if "hex" in spelled:
        data = bytes.fromhex(spelled["hex"])
    elif arrays is not None:
        data = arrays.get(spelled, math.prod(shape) * dtype.itemsize)
    else:
        message = f"the array is kept in {spelled['file']}, which is not at hand"
        raise ValueError(message)
    return np.frombuffer(data, dtype).reshape(shape).copy()


def _decode_scalar_bytes(dtype: np.dtype[Any], data: bytes) -> np.generic:
    if len(data) != dtype.itemsize:
        message = f"a {dtype.str} has {dtype.itemsize} bytes, not {len(data)}"
        raise ValueError(message)
    if dtype.kind == "S":
        return np.bytes_(data)
    if dtype.kind == "U":
        return np.str_(data.decode("utf-32-le", "surrogatepass"))
    scalar: np.generic = np.frombuffer(data, dtype)[0]
    return scalar


@functools.cache
def _read_dtype(spelling: str) -> np.dtype[Any]:
    dtype = np.dtype(spelling) if type(spelling) is str else np.dtype(object)  # to numpy, None is float64
    if dtype.kind not in _BYTE_KINDS:
        message = f"dtype {spelling!r} does not belong in a record"
        raise ValueError(message)
    return dtype


def _decode_float(content: str, _: ArraySource | None) -> float:
    named = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
    if content in named:
        return named[content]
    (value,) = struct.unpack(">d", bytes.fromhex(content))
    return float(value)


_DECODERS: dict[str, Callable[[Any, ArraySource | None], Any]] = {
    "dict": lambda content, arrays: {key: _decode(item, arrays) for key, item in content.items()},
    "tuple": lambda content, arrays: tuple(_decode(item, arrays) for item in content),
    "items": lambda content, arrays: {_decode(key, arrays): _decode(item, arrays) for key, item in content},
    "graph": lambda content, arrays: GraphInstance(**{key: _decode(item, arrays) for key, item in content.items()}),
    "int": lambda content, _: int(content),
    "float": _decode_float,
    "bytes": lambda content, _: bytes.fromhex(content),
    "text": lambda content, _: bytes.fromhex(content).decode("utf-8", "surrogatepass"),
}
