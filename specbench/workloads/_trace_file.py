"""A file of timestamped requests: JSON lines or CSV, read whole and checked line by line."""

from __future__ import annotations

import csv
import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.errors import ConfigError

TIME_NAMES = ("time_s", "time", "timestamp")
_KNOWN = (*TIME_NAMES, "task", "prompt")


@dataclass(frozen=True, slots=True)
class TraceLine:
    """One request: when, and what was asked where the file says so."""

    number: int  # 1-based line of the file
    time_s: float
    task: str | None = None
    prompt: str | None = None


@dataclass(frozen=True, slots=True)
class TraceFile:
    """All requests of a file in order. ``ignored`` names fields that a replay does not use."""

    path: Path
    lines: tuple[TraceLine, ...]
    sha256: str
    ignored: tuple[str, ...]


def read_trace_file(path: Path) -> TraceFile:
    """Requests in order of time: a ``.csv`` file with a header, or JSON lines (objects, or bare times).

    A line holds a time in seconds under ``time_s``, ``time`` or ``timestamp``, and may name a ``task`` and a
    ``prompt``. Errors: ConfigError naming file and line for what cannot be read, is no time, negative or out of order;
    for a file without requests.
    """
    data, text = _content(path)
    rows = _csv_rows(path, text) if path.suffix.lower() == ".csv" else _json_rows(path, text)
    lines: list[TraceLine] = []
    ignored: dict[str, None] = {}
    for number, row in rows:
        line = _line(path, number, row)
        if lines and line.time_s < lines[-1].time_s:
            before = f"{line.time_s:g} s comes after {lines[-1].time_s:g} s of line {lines[-1].number}"
            raise _fault(path, number, before, "sort the lines by time")
        lines.append(line)
        ignored |= dict.fromkeys(name for name in row if name.lower() not in _KNOWN)
    if not lines:
        raise ConfigError(f"the trace file {path} holds no request; give it at least one line with a time in seconds")
    return TraceFile(path, tuple(lines), hashlib.sha256(data).hexdigest(), tuple(ignored))


def _content(path: Path) -> tuple[bytes, str]:
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"cannot read the trace file {path}: {reason}; check load.file") from error
    try:
        return data, data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _fault(path, line, "is no UTF-8 text", "save the file as UTF-8") from error


def _fault(path: Path, number: int, seen: str, do: str) -> ConfigError:
    return ConfigError(f"trace file {path}, line {number}: {seen}; {do}")


def _json_rows(path: Path, text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _fault(path, number, f"{line.strip()[:40]!r} is no JSON", 'write {"time_s": 1.5}') from error
        yield number, value if isinstance(value, dict) else {"time_s": value}


def _csv_rows(path: Path, text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    reader = csv.reader(text.splitlines(keepends=True), strict=True)
    header: list[str] | None = None
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if header is None:
                header = [cell.strip() for cell in cells]
                continue
            if len(cells) != len(header):
                seen = f"{len(cells)} cells, and the header names {len(header)}"
                raise _fault(path, reader.line_num, seen, "correct that line")
            yield reader.line_num, {name: cell.strip() for name, cell in zip(header, cells)}
    except csv.Error as error:
        raise _fault(path, reader.line_num, f"is no CSV: {error}", "correct that line") from error


def _line(path: Path, number: int, row: Mapping[str, Any]) -> TraceLine:
    fields = {name.lower(): value for name, value in row.items()}
    named = [name for name in TIME_NAMES if name in fields]
    if len(named) != 1:
        seen = "names no time" if not named else f"names two times, {named[0]} and {named[1]}"
        raise _fault(path, number, f"{seen} (fields: {', '.join(row) or 'none'})", "give one as time_s, in seconds")
    return TraceLine(
        number=number,
        time_s=_seconds(path, number, fields[named[0]]),
        task=_name(path, number, fields, "task"),
        prompt=_name(path, number, fields, "prompt"),
    )


def _seconds(path: Path, number: int, value: Any) -> float:
    try:
        seconds = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not math.isfinite(seconds):
        raise _fault(path, number, f"{str(value)[:40]!r} is no time in seconds", "write a number, for example 1.5")
    if seconds < 0:
        raise _fault(path, number, f"the time {seconds:g} s is negative", "count from the first request")
    return seconds


def _name(path: Path, number: int, fields: Mapping[str, Any], field: str) -> str | None:
    value = fields.get(field)
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise _fault(path, number, f"the {field} {str(value)[:40]!r} is no text", f"write the {field}'s name")
    return value
