"""Verdicts and decisions as text for a person at a terminal."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from recorder.command import printable
from recorder.encoding import decode_value
from recorder.pong import SCHEMA_VERSION as OBJECTS_VERSION
from replay.divergence import VALUE_LIMIT

if TYPE_CHECKING:
    from pathlib import Path

    from recorder.records import JsonValue, Row
    from replay.inspection import Inspection
    from replay.verdict import Verdict

# Values of a flat array shown one by one; longer arrays are summed up.
SHOWN_ELEMENTS = 16
SHOWN_DIGEST = 12

# Fields of a divergence that a person is shown; the report has all.
SHOWN_MISMATCHES = 10


def describe_verdict(verdict: Verdict, *, environment: str, seed: int) -> str:
    """The verdict of one episode, most important line first."""
    name = verdict.name.upper() if verdict.exit_code else verdict.name
    under = " under different versions" if verdict.is_under_other_versions else ""
    lines = [f"{name}{under}: {verdict.episode} ({environment}, seed {seed})"]
    lines += [f"  fault: {fault}" for fault in verdict.faults]
    lines += _describe_divergence(verdict)
    clocks = f"{_count(verdict.decisions, 'decisions')}, {_count(verdict.raw_frames, 'raw_frames')}"
    is_early = verdict.exit_code != 0
    lines.append(f"  replayed {clocks}, return {'so far ' if is_early else ''}{verdict.total_reward:g}")
    compared = ", ".join(_count(count, channel) for channel, count in verdict.compared.items())
    lines.append(f"  compared bit for bit: {compared or 'nothing'}")
    lines += [f"  not checked: {text}" for text in verdict.not_checked]
    lines += [f"  note: {text}" for text in verdict.notes]
    lines += [f"  {difference.kind} differs: {difference}" for difference in verdict.differences]
    return "".join(f"{printable(line)}\n" for line in lines)


def show_inspection(inspection: Inspection, console: Console) -> None:
    """One decision as tables: what was seen, what was asked, what came of it, raw frame by raw frame."""
    row = inspection.transition
    about = f"({inspection.environment}, seed {inspection.seed})"
    console.print(Text(f"decision {row['decision']} of {inspection.episode} {about}"), style="bold", soft_wrap=True)
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold")
    facts.add_column(overflow="fold")
    for field in ("observation", "action", "reward", "rewards", "next_observation"):
        if field == "rewards" and "reward" in row:
            continue
        if field in row:
            objects = _find_objects(row[field])
            shown = show_value(row[field]) if objects is None else "\n".join(map(_show_object, objects))
            facts.add_row(_label(field), Text(shown))
    facts.add_row("ended", Text(_show_end(row)))
    if row["prediction"] is not None:
        facts.add_row("prediction", Text(orjson.dumps(row["prediction"]).decode()))
    for key, value in row.get("info", {}).items():
        facts.add_row(f"info {key}", Text(show_value(value)))
    if "ram_sha256" in row:
        facts.add_row("RAM digest", Text(row["ram_sha256"] or _reason(inspection.manifest, "ram")))
    if inspection.origin is not None:
        facts.add_row("model", Text(inspection.origin.label))
        for name in ("request", "response"):
            asked = getattr(inspection.origin, name)
            if asked is not None:
                facts.add_row(name, Text(show_value(asked)))
    console.print(facts)
    console.print(_frame_table(inspection))


def show_value(spelled: JsonValue) -> str:
    """A recorded value at a glance: numbers first, then dtype and shape."""
    if isinstance(spelled, dict) and "dtype" in spelled:
        if "file" in spelled:
            return f"array {spelled['dtype']} {spelled['shape']}, SHA-256 {spelled['sha256'][:SHOWN_DIGEST]}..."
        value: Any = decode_value(spelled)
        kind = value.dtype.name
        if value.ndim == 0:
            return f"{value}  ({kind})"
        shown = " ".join(
            f"{item:.9g}" if value.dtype.kind == "f" else str(item) for item in value.ravel()[:SHOWN_ELEMENTS]
        )
        more = f" ... {value.size} elements" if value.size > SHOWN_ELEMENTS else ""
        return f"{shown}{more}  ({kind} {value.shape})"
    if isinstance(spelled, dict) and len(spelled) == 1:
        (tag, content), *_ = spelled.items()
        if tag == "dict":
            return "{" + ", ".join(f"{key}: {show_value(item)}" for key, item in content.items()) + "}"
        if tag == "tuple":
            return "(" + ", ".join(map(show_value, content)) + ")"
    text = orjson.dumps(spelled).decode()
    return text if len(text) <= VALUE_LIMIT else f"{text[:VALUE_LIMIT]}... ({len(text)} characters)"


def _find_objects(spelled: JsonValue) -> list[Row] | None:
    """The objects of an object observation, however it is spelled; None if it is another value."""
    if not isinstance(spelled, dict):
        return None
    inner = spelled.get("dict", spelled)
    if not isinstance(inner, dict) or inner.get("schema_version") != OBJECTS_VERSION:
        return None
    return [item.get("dict", item) for item in inner["objects"]]


def _show_object(thing: Row) -> str:
    if not thing["present"]:
        return f"{thing['id']:<8}  not seen"
    x, y, width, height = thing["bbox"]
    velocity = thing["velocity"]
    moving = "" if velocity is None else f", by {velocity[0]:+g}, {velocity[1]:+g} a frame"
    return f"{thing['id']:<8}  x {x}, y {y}, {width} x {height} px{moving}"


def _count(number: int, channel: str) -> str:
    """A number and what it counts, in the singular where there is one; the names are plural."""
    words = {"ram": "RAM states", "rgb": "RGB pictures", "info": "info values"}.get(channel, channel.replace("_", " "))
    return f"{number} {words.removesuffix('s') if number == 1 else words}"


def _describe_divergence(verdict: Verdict) -> list[str]:
    if not verdict.mismatches:
        return []
    lines: list[str] = []
    for mismatch in verdict.mismatches[:SHOWN_MISMATCHES]:
        place = mismatch.place
        where = f"decision {place.decision}" if place.decision is not None else f"the {place.record}"
        if place.raw_frame is not None:
            where += f", raw frame {place.raw_frame}"
        lines.append(f"  first divergence at {where}: {mismatch}" if not lines else f"    also at {where}: {mismatch}")
    more = len(verdict.mismatches) - SHOWN_MISMATCHES
    return [*lines, f"    and {more} more, all in the report"] if more > 0 else lines


def _frame_table(inspection: Inspection) -> Table:
    count = len(inspection.frames)
    title = f"{count} raw {'frame' if count == 1 else 'frames'}, for each of which the action was requested"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("raw frame", justify="right")
    for heading in ("reward", "ended", "RAM bytes", "RAM SHA-256", "RGB SHA-256"):
        table.add_column(heading)
    for frame in inspection.frames:
        length_bytes, digest = _describe_ram(bytes(frame["ram_bytes"]).hex() if "ram_bytes" in frame else frame["ram"])
        table.add_row(
            str(frame["raw_frame"]),
            Text(show_value(frame["reward"]) if frame["reward"] is not None else "-"),
            Text(_show_end(frame)),
            length_bytes,
            digest,
            f"{frame['rgb_sha256'][:SHOWN_DIGEST]}..." if frame["rgb_sha256"] else "-",
        )
    return table


def _describe_ram(ram: str | Row | None) -> tuple[str, str]:
    """Length and abbreviated digest of a frame's state bytes."""
    if ram is None:
        return "-", "-"
    if isinstance(ram, dict):
        return str(ram["bytes"]), f"{ram['sha256'][:SHOWN_DIGEST]}..."
    data = bytes.fromhex(ram)
    return str(len(data)), f"{hashlib.sha256(data).hexdigest()[:SHOWN_DIGEST]}..."


def _show_end(row: Row) -> str:
    flags = [name for name in ("terminated", "truncated") if row[name]]
    return " and ".join(flags) or "no"


def _reason(manifest: Row, channel: str) -> str:
    return f"none: {manifest['channels'][channel]['absent']}"


def _label(field: str) -> str:
    return field.replace("_", " ")


def write_report(verdict: Verdict, path: Path, extra: Row) -> None:
    """Write `verification.json`."""
    path.write_bytes(
        orjson.dumps({**verdict.to_json(), **extra}, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    )
