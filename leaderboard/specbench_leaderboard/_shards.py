"""The site's data: JSON in small script files, each loaded when a view needs it.

Pages opened from a disk may not fetch, but they may load scripts; so a file is one call, ``Specbench.put(name, data)``,
and everything in it is data: ``<`` is escaped, so that no text of a record can end a script or start a comment.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.records.schema import Record
from specbench.report import numbers
from specbench.report.board import COLUMNS, Cell, Column, Group, Row, Scope, why_unplaced
from specbench.report.series import VALUES, Family, Point

ROWS_A_SHARD = 100


@dataclass(frozen=True, slots=True)
class Shard:
    """One data file: its name (``rows-GROUP-0``) and content."""

    name: str
    data: Any

    def write(self, folder: Path) -> int:
        """Write ``NAME.js`` and return its size in bytes."""
        text = f"Specbench.put({script_json(self.name)},{script_json(self.data)});\n"
        return (folder / f"{self.name}.js").write_bytes(text.encode("ascii"))


def script_json(value: Any) -> str:
    """JSON that is safe inside a script, in ASCII."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace("&", "\\u0026")


def contestant_name(record: Record) -> str:
    """What the drafter filter offers: the method, and its checkpoint where that has a name of its own."""
    if record.drafter is None or record.drafter.name == record.method:
        return record.method
    return f"{record.method} · {record.drafter.name}"


def policy_family(text: str) -> str:
    """``fixed`` of ``fixed:7``: its number is the draft length, which has a filter of its own."""
    return text.partition(":")[0] or numbers.ABSENT


def requests_of(record: Record) -> int:
    """Requests that the record's numbers stand on."""
    return int(record.counts.get("ok", 0))


def bytes_text(value: int | None) -> str:
    """A size in GiB, or MiB below one of them."""
    if value is None:
        return numbers.ABSENT
    gib = value / 2**30
    return f"{numbers.fixed(gib, 2)} GiB" if gib >= 1 else f"{numbers.fixed(value / 2**20, 0)} MiB"


def scope_name(scope: Scope) -> str:
    """The domain, or empty for the whole run."""
    return scope[0][1] if scope else ""


def cell_data(cell: Cell) -> list[Any]:
    """``[value, low, high, text, n, where, rank]``; what is absent at the end is left out."""
    data = [cell.value, cell.low, cell.high, cell.text, cell.n, cell.where or None, cell.rank]
    while data[-1] is None:
        data.pop()
    return data


def column_data(column: Column) -> dict[str, Any]:
    """A column as the page needs it."""
    return {
        "key": column.key,
        "title": column.title,
        "help": column.help,
        "unit": column.unit,
        "better": column.better,
        "ranks": column.ranks,
        "timed": column.timed,
    }


def row_data(row: Row) -> dict[str, Any]:
    """A row of the ranking as the page needs it."""
    record = row.record
    verdict = record.verdict
    return {
        "id": record.run_id,
        "label": row.label,
        "method": record.method,
        "name": contestant_name(record),
        "k": record.draft_length,
        "policy": row.policy,
        "family": policy_family(row.policy),
        "status": record.status,
        "synthetic": bool(record.comparability.get("synthetic_acceptance")),
        "verdict": verdict.outcome if verdict is not None else "control" if record.method == "vanilla" else "",
        "evidence": verdict.reason if verdict is not None else "",
        "reasons": row.reasons,
        "untimed": row.untimed,
        "created": record.created,
        "seed": record.spec.get("seed"),
        "n": requests_of(record),
        "memory": [row.memory, bytes_text(row.memory)],
        "repeats": row.repeats,
        "cells": {
            scope_name(scope): {key: cell_data(cell) for key, cell in cells.items()}
            for scope, cells in row.cells.items()
        },
    }


def group_shards(group: Group) -> list[Shard]:
    """A group's rows in the order of its table, a hundred to a file."""
    return [
        Shard(
            f"rows-{group.id}-{number}",
            [row_data(row) for row in group.rows[start : start + ROWS_A_SHARD]],
        )
        for number, start in enumerate(range(0, len(group.rows), ROWS_A_SHARD))
    ]


def group_data(group: Group) -> dict[str, Any]:
    """What the page knows of a group before its rows are loaded: its facts, and which filters it can meet."""
    rows, records = group.rows, [row.record for row in group.rows]
    temperature = (group.key.get("sampling") or {}).get("temperature", 0)
    facets = {
        "target": [group.facts["target"]],
        "device": [group.facts["device"]],
        "load": [group.facts["load"]],
        "temperature": [f"{temperature:g}"],
        "drafter": sorted({contestant_name(record) for record in records}),
        "k": sorted({record.draft_length for record in records}),
        "policy": sorted({policy_family(row.policy) for row in rows}),
        "domain": sorted({scope_name(scope) for row in rows for scope in row.cells} - {""}),
    }
    return {
        "id": group.id,
        "facts": group.facts,
        "rows": len(rows),
        "ranked": len(group.ranked),
        "shards": -(-len(rows) // ROWS_A_SHARD),
        "facets": facets,
        "nearest": group.nearest,
        "differences": group.differences,
    }


# ------------------------------------------------------------------------------------------------------- charts


def _positions(cells: dict[int, Cell]) -> list[list[Any]]:
    return [[k, cell.value, cell.low, cell.high, cell.text] for k, cell in cells.items()]


def point_data(point: Point) -> dict[str, Any]:
    """A point of the charts."""
    record = point.record
    return {
        "id": record.run_id,
        "label": point.label,
        "method": record.method,
        "name": contestant_name(record),
        "k": record.draft_length,
        "policy": point.policy,
        "threshold": point.threshold,
        "load": point.load,
        "users": record.spec.get("concurrency"),
        "reasons": point.reasons,
        "untimed": point.untimed,
        "frontier": point.on_frontier,
        "values": {name: cell_data(point.values[name]) for name in VALUES if name in point.values},
        "phases": {name: cell_data(cell) for name, cell in point.phases.items()},
        "conditional": _positions(point.conditional),
        "survival": _positions(point.survival),
        "reliable": bool(point.reliability),
    }


def family_shards(family: Family) -> list[Shard]:
    """A family's points, and apart from them the reliability bins of its runs."""
    curves = {
        point.record.run_id: {
            str(k): {
                "bins": [[one.forecast, one.outcome, one.count] for one in bins],
                "ece": cell_data(point.ece[k]) if k in point.ece else None,
            }
            for k, bins in point.reliability.items()
        }
        for point in family.points
        if point.reliability
    }
    return [
        Shard(f"charts-{family.id}", [point_data(point) for point in family.points]),
        Shard(f"reliability-{family.id}", curves),
    ]


def index_shards(groups: Sequence[Group], families: Sequence[Family]) -> list[Shard]:
    """What the first page reads: columns and groups; and what the charts' page reads: its families."""
    methods = sorted({row.record.method for group in groups for row in group.rows})
    return [
        Shard(
            "index",
            {
                "columns": [column_data(column) for column in COLUMNS],
                "groups": [group_data(group) for group in groups],
                "methods": methods,
            },
        ),
        Shard(
            "families",
            {
                "methods": methods,
                "families": [
                    {"id": family.id, "facts": family.facts, "points": len(family.points)} for family in families
                ],
            },
        ),
    ]


def table_rows(group: Group) -> list[dict[str, Any]]:
    """A group's rows for the plain table: with the place by the first column that ranks, and the reason for none."""
    first = next(column for column in COLUMNS if column.ranks)
    found = []
    for row in group.rows:
        cells = row.cells.get((), {})
        place = cells[first.key].rank if first.key in cells else None
        why = "" if place is not None else why_unplaced(row, first, ())
        found.append({**row_data(row), "place": place, "why": why, "cells": cells, "drafter": row.record.drafter})
    return found
