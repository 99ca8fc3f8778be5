"""Predictions beside what was measured at the same setting, with the error of each figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specbench.records.schema import Record, digest
from specbench.report import numbers
from specbench.report.series import workload_key
from specbench.report.tables import full_label, method_label
from specbench.simulation.record import BACKEND

FIGURES: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("tok/s", "steady_tokens_per_s", {}),
    ("tok/s/user", "tokens_per_s_user", {"stat": "mean"}),
)


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure: predicted, and measured in each repeat of the setting."""

    name: str
    predicted: float
    measured: tuple[float, ...]

    @property
    def error(self) -> float:
        """Relative to the mean of the repeats."""
        return self.predicted / fmean(self.measured) - 1


@dataclass(frozen=True, slots=True)
class Pair:
    """A prediction and the figures that measured records of its setting have; none where nothing was measured there."""

    record: Record
    figures: tuple[Compared, ...]


def compare(predictions: Sequence[Record], measured: Sequence[Record]) -> list[Pair]:
    """Each prediction with the measured records of its contestant and load, on its machine, target and tasks."""
    held: dict[str, list[Record]] = {}
    for record in measured:
        if record.status == "ok" and record.spec.get("backend", "engine") != BACKEND:
            held.setdefault(_setting(record), []).append(record)
    return [Pair(record, tuple(_figures(record, held.get(_setting(record), [])))) for record in predictions]


def _setting(record: Record) -> str:
    """Hash of what a prediction and a measurement must agree on: what makes runs comparable, but the engine's name."""
    shared = {name: value for name, value in workload_key(record).items() if name != "engine"}
    weights = record.drafter.sha256 if record.drafter else None
    return digest([shared, record.comparability["load"], full_label(record), weights])


def _figures(record: Record, real: Sequence[Record]) -> list[Compared]:
    found = []
    for name, metric, scope in FIGURES:
        ours = record.find(metric, **scope)
        theirs = [row.value for one in real if (row := one.find(metric, **scope)) is not None]
        if ours is not None and theirs:
            found.append(Compared(name, ours.value, tuple(theirs)))
    return found


def worst(pairs: Sequence[Pair]) -> float | None:
    """The largest error, without its sign; None where nothing could be compared."""
    errors = [abs(figure.error) for pair in pairs for figure in pair.figures]
    return max(errors, default=None)


def against_table(pairs: Sequence[Pair]) -> RenderableType:
    """A row for each setting that was measured too, and in words the largest error and what had no counterpart."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0, header_style="bold", title="predicted and measured")
    for name in ("method", "policy", "load"):
        table.add_column(name, no_wrap=True)
    for name, _, _ in FIGURES:
        for heading in (name, "measured", "error"):
            table.add_column(heading, justify="right")
    table.add_column("runs", justify="right")
    for pair in pairs:
        if pair.figures:
            table.add_row(*_cells(pair))
    alone = sum(not pair.figures for pair in pairs)
    largest = worst(pairs)
    said = "nothing was measured at these settings" if largest is None else f"largest error {largest:.1%}"
    left = f"; {alone} of {len(pairs)} settings were not measured" if alone and largest is not None else ""
    return Group(table, Text(said + left, style="dim"))


def _cells(pair: Pair) -> list[str]:
    record = pair.record
    cells = [method_label(record), str(record.spec.get("policy")), str(record.comparability["load"])]
    held = {figure.name: figure for figure in pair.figures}
    for name, _, _ in FIGURES:
        one = held.get(name)
        if one is None:
            cells += [numbers.ABSENT] * 3
        else:
            cells += [f"{one.predicted:.1f}", f"{fmean(one.measured):.1f}", f"{one.error:+.1%}"]
    return [*cells, str(max(len(figure.measured) for figure in pair.figures))]
