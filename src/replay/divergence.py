"""Compares recorded rows with replayed rows, value by value, and names what differs."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from recorder.encoding import decode_value
from recorder.errors import DamagedError
from recorder.records import sha256_of_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from recorder.encoding import ArraySource
    from recorder.records import JsonValue, Row

MISSING = "(missing)"

# Longest spelling of a value that a mismatch carries along.
VALUE_LIMIT = 200

# Beyond this many a plain difference says more.
READABLE_ULP = 1_000_000

_MAPPING_TAGS = ("dict", "graph")
_LIST_TAGS = ("tuple", "items")
_ULP_INTEGERS = {2: np.int16, 4: np.int32, 8: np.int64}


@dataclass(frozen=True)
class Place:
    """Where in an episode a row belongs.

    Attributes:
        record: `reset`, `transition`, `frame` or `summary`.
        decision: From 0; None where the row belongs to no decision.
        raw_frame: From 1; None where the row belongs to no raw frame.
    """

    record: str
    decision: int | None = None
    raw_frame: int | None = None


@dataclass(frozen=True)
class Mismatch:
    """One field that differs.

    Attributes:
        place: The row.
        field: Path of the field within the row.
        index: Index of the first differing element of an array, or None.
        recorded: What the record holds there.
        replayed: What the replay gave.
        ulp: Distance in units in the last place, for floats of one dtype that are numbers.
        elements: How many elements of the array differ; 1 for anything else.
    """

    place: Place
    field: str
    index: tuple[int, ...] | None
    recorded: JsonValue
    replayed: JsonValue
    ulp: int | None = None
    elements: int = 1

    def to_json(self) -> Row:
        """As `verification.json` holds it."""
        row = asdict(self)
        return {**row.pop("place"), **row, "index": list(self.index) if self.index is not None else None}

    def __str__(self) -> str:
        """One line for a reader."""
        index = "".join(f"[{i}]" for i in self.index) if self.index else ""
        distance = f" ({self._show_gap()}{self.ulp} ulp)" if self.ulp else ""  # 0.0 and -0.0 are none apart
        more = f", {self.elements} elements differ" if self.elements > 1 else ""
        return f"{self.field}{index}: recorded {_show(self.recorded)}, replayed {_show(self.replayed)}{distance}{more}"

    def _show_gap(self) -> str:
        """The plain difference, where so many ulp tell a person nothing."""
        if self.ulp is None or self.ulp <= READABLE_ULP or not isinstance(self.recorded, float):
            return ""
        return f"{self.recorded - self.replayed:+.6g}, "


@dataclass(frozen=True)
class ArraySources:
    """Where the side-file arrays of both sides are found."""

    recorded: ArraySource | None = None
    replayed: ArraySource | None = None


def compare_rows(place: Place, recorded: Row, replayed: Row, arrays: ArraySources) -> list[Mismatch]:
    """Every field of the replayed row that the recorded row does not share, bit for bit.

    Fields that only the recorded row has belong to a later format and are left alone.
    """
    mismatches: list[Mismatch] = []
    for field, value in replayed.items():
        stated = recorded.get(field, MISSING)
        # The one field that is a plain mapping of values: a key of it may look like the tag of a value.
        is_mapping = field == "info" and isinstance(stated, dict) and isinstance(value, dict)
        compare = _compare_mappings if is_mapping else compare_values
        found = compare(place, field, stated, value, arrays)
        if not found and not _are_same(_without_offsets(stated), _without_offsets(value)):
            # Whatever a comparison overlooks is still a difference.
            found = [Mismatch(place, field, None, stated, value)]
        mismatches += found
    return mismatches


def compare_values(  # noqa: PLR0911 - one return a kind of value
    place: Place, field: str, recorded: JsonValue, replayed: JsonValue, arrays: ArraySources
) -> list[Mismatch]:
    """What differs between two spelled values; nothing if they are the same bit for bit."""
    if _are_same(recorded, replayed):
        return []
    if isinstance(recorded, dict) and isinstance(replayed, dict):
        if "dtype" in recorded and "dtype" in replayed:
            return _compare_numpy(place, field, recorded, replayed, arrays)
        tag = next(iter(recorded)) if len(recorded) == 1 and recorded.keys() == replayed.keys() else None
        if tag in _MAPPING_TAGS and isinstance(recorded[tag], dict) and isinstance(replayed[tag], dict):
            return _compare_mappings(place, field, recorded[tag], replayed[tag], arrays)
        if tag in _LIST_TAGS:
            return compare_values(place, field, recorded[tag], replayed[tag], arrays)
        if not _is_tagged(recorded) and not _is_tagged(replayed):
            return _compare_mappings(place, field, recorded, replayed, arrays)
    if isinstance(recorded, list) and isinstance(replayed, list) and len(recorded) == len(replayed):
        return [
            mismatch
            for position, (left, right) in enumerate(zip(recorded, replayed, strict=True))
            for mismatch in compare_values(place, f"{field}[{position}]", left, right, arrays)
        ]
    return [Mismatch(place, field, None, recorded, replayed, ulp=_scalar_ulp(recorded, replayed))]


def json_differences(first: JsonValue, second: JsonValue, path: str = "") -> Iterator[tuple[str, JsonValue, JsonValue]]:
    """The innermost places in which two plain JSON values differ: path and both values, in the order of the first."""
    if isinstance(first, dict) and isinstance(second, dict):
        for key in [*first, *(key for key in second if key not in first)]:
            yield from json_differences(first.get(key, MISSING), second.get(key, MISSING), f"{path}[{key!r}]")
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for number, (left, right) in enumerate(zip(first, second, strict=True)):
            yield from json_differences(left, right, f"{path}[{number}]")
    elif sha256_of_json(first) != sha256_of_json(second):
        yield path, first, second


def _without_offsets(value: JsonValue) -> JsonValue:
    """A value without the places of its side-file arrays, whose digests say what they hold."""
    if isinstance(value, list):
        return [_without_offsets(item) for item in value]
    if isinstance(value, dict):
        is_kept_aside = "file" in value and "sha256" in value and "dtype" in value
        return {key: _without_offsets(item) for key, item in value.items() if not (is_kept_aside and key == "offset")}
    return value


def ulp_distance(recorded: np.ndarray[Any, Any], replayed: np.ndarray[Any, Any]) -> int | None:
    """Steps between two float scalars (0-d arrays of one dtype) on the line of floats; None if one is not finite."""
    if recorded.dtype.kind != "f" or recorded.dtype.itemsize not in _ULP_INTEGERS:
        return None
    if not (np.isfinite(recorded) and np.isfinite(replayed)):
        return None
    return abs(_place_on_line(recorded) - _place_on_line(replayed))


def _compare_mappings(
    place: Place, field: str, recorded: Mapping[str, Any], replayed: Mapping[str, Any], arrays: ArraySources
) -> list[Mismatch]:
    return [
        mismatch
        for key in sorted({*recorded, *replayed})
        for mismatch in compare_values(
            place, f"{field}[{key!r}]", recorded.get(key, MISSING), replayed.get(key, MISSING), arrays
        )
    ]


def _compare_numpy(place: Place, field: str, recorded: Row, replayed: Row, arrays: ArraySources) -> list[Mismatch]:
    if recorded["dtype"] != replayed["dtype"]:
        return [Mismatch(place, f"{field}.dtype", None, recorded["dtype"], replayed["dtype"])]
    if recorded.get("shape") != replayed.get("shape"):
        return [Mismatch(place, f"{field}.shape", None, recorded.get("shape"), replayed.get("shape"))]
    try:
        left = np.asarray(decode_value(recorded, arrays.recorded))
        if recorded.get("sha256", "recorded") == replayed.get("sha256", "replayed"):
            return []  # the same bytes, kept at another place of the side file
        right = np.asarray(decode_value(replayed, arrays.replayed))
    except DamagedError as error:
        return [Mismatch(place, field, None, f"{recorded} ({error})", replayed)]
    return _compare_arrays(place, field, left, right) or _compare_spellings(place, field, recorded, replayed)


def _compare_spellings(place: Place, field: str, recorded: Row, replayed: Row) -> list[Mismatch]:
    """Equal bytes have one spelling: other decimals that round to them were not written by a recorder."""
    if "file" in recorded and "file" in replayed:
        return []
    for form in ("values", "value", "hex"):
        if form in recorded and form in replayed:
            left, right = recorded[form], replayed[form]
            if form != "values":
                return [Mismatch(place, f"{field}.{form}", None, left, right)]
            differing = [i for i, pair in enumerate(zip(left, right, strict=True)) if not _are_same(*pair)]
            first = differing[0]
            return [Mismatch(place, f"{field}.{form}", (first,), left[first], right[first], elements=len(differing))]
    return [Mismatch(place, field, None, recorded, replayed)]


def _compare_arrays(
    place: Place, field: str, recorded: np.ndarray[Any, Any], replayed: np.ndarray[Any, Any]
) -> list[Mismatch]:
    size = recorded.dtype.itemsize
    differing = (_bytes_of(recorded) != _bytes_of(replayed)).reshape(-1, size).any(axis=1)
    if not differing.any():
        return []
    flat = int(np.argmax(differing))
    index = tuple(int(i) for i in np.unravel_index(flat, recorded.shape)) if recorded.ndim else None
    left, right = recorded.reshape(-1)[flat], replayed.reshape(-1)[flat]
    ulp = ulp_distance(np.asarray(left), np.asarray(right))
    return [Mismatch(place, field, index, _plain(left), _plain(right), ulp=ulp, elements=int(differing.sum()))]


def _bytes_of(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.frombuffer(array.tobytes(), np.uint8)


def _place_on_line(value: np.ndarray[Any, Any]) -> int:
    bits = int(value.view(_ULP_INTEGERS[value.dtype.itemsize]))
    return bits if bits >= 0 else -(bits & (2 ** (8 * value.dtype.itemsize - 1) - 1))


def _scalar_ulp(recorded: JsonValue, replayed: JsonValue) -> int | None:
    if type(recorded) is float and type(replayed) is float:
        return ulp_distance(np.asarray(recorded), np.asarray(replayed))
    return None


def _are_same(recorded: JsonValue, replayed: JsonValue) -> bool:
    """Equality that tells 1 from 1.0 and from true, and -0.0 from 0.0."""
    if recorded is replayed:
        return True
    try:
        options = orjson.OPT_SORT_KEYS
        return orjson.dumps(recorded, option=options) == orjson.dumps(replayed, option=options)
    except TypeError:  # an integer beyond 64 bits: only a foreign record spells one so
        return False


def _is_tagged(value: Row) -> bool:
    return (
        len(value) == 1 and next(iter(value)) in {*_MAPPING_TAGS, *_LIST_TAGS, "int", "float", "bytes", "text"}
    ) or "dtype" in value


def _plain(value: Any) -> JsonValue:
    item = value.item() if isinstance(value, np.generic) else value
    if isinstance(item, float) and not math.isfinite(item):
        return f"{item} (bits {np.asarray(value).tobytes().hex()})"
    return item if isinstance(item, bool | int | float | str) else str(item)


def _show(value: JsonValue) -> str:
    text = value if value is MISSING else orjson.dumps(value, default=str).decode()
    return text if len(text) <= VALUE_LIMIT else f"{text[:VALUE_LIMIT]}... ({len(text)} characters)"
