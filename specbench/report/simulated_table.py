"""Predictions on the screen: throughput of the whole and of each replica, speed for a user, waiting times."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specbench.records.schema import EstimateRow, Record
from specbench.report import numbers
from specbench.report.tables import method_label

_COLUMNS = ("tok/s", "per replica", "tok/s/user", "TTFT p50 ms", "TTFT p99 ms", "tau", "budget", "speed-up")


def simulated_table(records: Sequence[Record]) -> RenderableType:
    """A row for each prediction, and what must be known of them."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0, header_style="bold", title="predicted, not measured")
    table.add_column("method", no_wrap=True)
    table.add_column("policy", no_wrap=True)
    table.add_column("load", no_wrap=True)
    for name in _COLUMNS:
        table.add_column(name, justify="right")
    for record in records:
        table.add_row(*_cells(record))
    notes = dict.fromkeys(note for record in records for note in record.notes)
    return Group(table, *(Text(f"note: {note}", style="dim") for note in notes))


def _cells(record: Record) -> list[str]:
    rate = record.find("steady_tokens_per_s")
    replicas = int(record.spec.get("replicas", 1))
    each = None if rate is None else EstimateRow(**{**rate.model_dump(), "value": rate.value / replicas})
    return [
        method_label(record),
        str(record.spec.get("policy")),
        str(record.comparability["load"]),
        numbers.number(rate),
        numbers.number(each),
        numbers.number(record.find("tokens_per_s_user", stat="mean")),
        numbers.milliseconds(record.find("ttft", stat="p50")),
        numbers.milliseconds(record.find("ttft", stat="p99")),
        numbers.number(record.find("tau")),
        numbers.number(record.find("verification_budget")),
        numbers.bounded(record.find("speed_up")),
    ]
