"""What the records of an episode are called, and the strict JSON and schema that each must obey."""

from __future__ import annotations

import functools
import hashlib
import importlib.resources
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import jsonschema_rs
import orjson

from recorder.errors import CannotRunError, DamagedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.resources.abc import Traversable

FORMAT_VERSION = 1

MANIFEST = "manifest.json"
RESET = "reset.json"
TRANSITIONS = "transitions.jsonl"
FRAMES = "frames.jsonl"
ARRAYS = "arrays.bin"
SUMMARY = "summary.json"

# The files whose bytes the summary answers for.
RECORD_FILES = (MANIFEST, RESET, TRANSITIONS, FRAMES, ARRAYS)

SCHEMA_NAMES = (
    *("value", "manifest", "reset", "transition", "frame", "summary", "exchange"),
    *(f"pong-play-v1.{name}" for name in ("manifest", "transition", "frame", "summary")),
)

# The longest text of a value that an error quotes.
QUOTE_LIMIT = 120
REASON_CHARACTERS = 60

_LINE = orjson.OPT_APPEND_NEWLINE

JsonValue: TypeAlias = Any
Row: TypeAlias = dict[str, Any]


def schema_folder() -> Traversable:
    """The folder of the JSON Schemas: inside the installed package, or the checkout's `schemas/`."""
    packaged = importlib.resources.files("recorder") / "schemas"
    if packaged.is_dir():
        return packaged
    checkout = Path(__file__).resolve().parents[2] / "schemas"
    if checkout.is_dir():
        return checkout
    message = f"the JSON Schemas are missing beside {Path(__file__).parent}: install the package again"
    raise CannotRunError(message)


@functools.cache
def _validators() -> dict[str, jsonschema_rs.Draft202012Validator]:
    folder = schema_folder()
    schemas = {name: json.loads((folder / f"{name}.schema.json").read_bytes()) for name in SCHEMA_NAMES}
    registry = jsonschema_rs.Registry([(schema["$id"], schema) for schema in schemas.values()])
    # Many rows in one call: validating ten costs half of ten validations.
    for name in ("transition", "frame"):
        schemas[f"{name}s"] = {"type": "array", "items": {"$ref": schemas[name]["$id"]}}
    return {name: jsonschema_rs.Draft202012Validator(schema, registry=registry) for name, schema in schemas.items()}


def row_validator(name: str) -> Callable[[Row | list[Row]], bool]:
    """The quick yes-or-no validator of a record kind, or of a list of `transitions` or `frames`.

    `validate_row` says what is wrong.
    """
    return _validators()[name].is_valid


def validate_row(name: str, row: JsonValue, *, where: str) -> None:
    """Raise unless a decoded record obeys its schema.

    Args:
        name: Record kind, one of `SCHEMA_NAMES`.
        row: The decoded record.
        where: What the error calls the place, for example `transitions.jsonl line 7`.

    Raises:
        DamagedError: The record breaks its schema; the message holds the first fault and its path.
    """
    try:
        fault = next(_validators()[name].iter_errors(row), None)
    except ValueError as error:  # nested deeper than the validator goes
        message = f"{where} cannot be held against {name}.schema.json: {error}"
        raise DamagedError(message) from error
    if fault is None:
        return
    path = "".join(f"[{part!r}]" for part in fault.instance_path)
    message = f"{where} breaks {name}.schema.json at {path or 'its top level'}: {_shorten(fault.message)}"
    raise DamagedError(message)


def encode_line(row: Row) -> bytes:
    """One record as one line of strict JSON, with its newline."""
    return orjson.dumps(row, option=_LINE)


def encode_document(document: Row) -> bytes:
    """A whole-file record as indented strict JSON."""
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def read_strict_json(data: bytes, *, where: str) -> JsonValue:
    """Decode strict JSON: no NaN literals, no duplicate keys, valid UTF-8.

    Raises:
        DamagedError: With the first fault.
    """
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique_pairs,
            parse_constant=_refuse_constant,
            parse_float=_finite_float,
        )
        orjson.dumps(value)  # lone surrogates, integers beyond 64 bits, nesting without end: no record holds them
    except (ValueError, TypeError, RecursionError) as error:
        message = f"{where} is not strict JSON: {_shorten(str(error))}"
        raise DamagedError(message) from error
    return value


def digest_of(document: Row) -> str:
    """SHA-256 of a document without its own `digest`: keys sorted, no spaces, UTF-8."""
    return sha256_of_json({key: value for key, value in document.items() if key != "digest"})


def sha256_of_json(document: JsonValue) -> str:
    """SHA-256 of a JSON value in one spelling: keys sorted, no spaces, UTF-8."""
    return hashlib.sha256(orjson.dumps(document, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _unique_pairs(pairs: list[tuple[str, JsonValue]]) -> Row:
    row = dict(pairs)
    if len(row) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                message = f"the key {key!r} stands twice in one object"
                raise ValueError(message)
            seen.add(key)
    return row


def _refuse_constant(name: str) -> NoReturn:
    message = f"{name} is not JSON"
    raise ValueError(message)


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        message = f"{_shorten(text)} is beyond every float"
        raise ValueError(message)
    return value


def _shorten(text: str) -> str:
    if len(text) <= QUOTE_LIMIT:
        return text
    # What is wrong stands behind the value that is quoted.
    return f"{text[: QUOTE_LIMIT - REASON_CHARACTERS]} ... {text[-REASON_CHARACTERS:]} ({len(text)} characters)"
