"""Accuracy beside speed on the screen: a row for each method and grade."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specbench.records.schema import EstimateRow, Record
from specbench.report import numbers
from specbench.report.tables import method_label

_COLUMNS = ("items", "score [95%]", "less plain [95%]", "tau", "tok/s", "speed-up", "lossless")


def quality_table(records: Sequence[Record]) -> RenderableType:
    """Scores with their intervals over items, paired differences from plain decoding, and the speed of the answers."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0, header_style="bold")
    for name in ("method", "task", "grade"):
        table.add_column(name, no_wrap=True)
    for name in _COLUMNS:
        table.add_column(name, justify="right")
    for record in records:
        for row in record.estimates:
            if row.metric == "item_score":
                table.add_row(*_cells(record, row))
    notes = dict.fromkeys(note for record in records for note in record.notes)
    legend = "intervals: bootstrap over items; differences are paired by item"
    if any(record.find("client_tokens_per_s") is not None for record in records):
        legend += f"\n{numbers.CLIENT_LEGEND}"
    return Group(table, Text(legend, "dim"), *(Text(f"note: {note}", style="dim") for note in notes))


def _cells(record: Record, score: EstimateRow) -> list[str]:
    scope = score.scope
    grade = scope["grade"] if scope["filter"] == "none" else f"{scope['grade']} ({scope['filter']})"
    return [
        method_label(record),
        scope["task"],
        grade,
        numbers.count(score.n),
        _bounded(score),
        _bounded(record.find("item_score_difference", **scope)),
        numbers.number(record.find("tau")),
        numbers.decode_speed(record),
        numbers.gain(record),
        record.verdict.outcome if record.verdict is not None else numbers.ABSENT,
    ]


def _bounded(row: EstimateRow | None) -> str:
    if row is None:
        return numbers.ABSENT
    shown = [numbers.fixed(value, 3) for value in (row.value, row.low, row.high) if value is not None]
    return shown[0] if len(shown) < 3 else f"{shown[0]} [{shown[1]},{shown[2]}]"
