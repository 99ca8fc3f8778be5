"""A search's outcome on the screen: SLA-bound throughput by method, and what is gained over the baseline."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specbench.records.schema import EstimateRow
from specbench.records.sla_result import GainRow, SearchRow, SlaResult
from specbench.report import numbers
from specbench.report.frontier import percent_gain

NOT_ATTAINABLE = "not attainable"
_COLUMNS = (
    "tok/s [95%]", "tok/s/user [95%]", "load (fails at)", "throughput at equal tok/s/user",
    "tok/s/user at equal throughput", "n", "lossless",
)  # fmt: skip


def sla_table(result: SlaResult) -> RenderableType:
    """A table per service level, then flags, reasons and notes in words."""
    parts: list[RenderableType] = []
    for index, level in enumerate(result.levels):
        rows = [row for row in result.searches if row.level == index]
        gains = {row.method: row for row in result.gains if row.level == index}
        parts += [_table(f"SLA: {level.label}", rows, gains, result), *_remarks(rows, gains)]
    unit = "users" if result.space.over == "concurrency" else "requests/s"
    over = f" over {result.baseline}" if result.baseline is not None else ""
    legend = (
        f"largest steady throughput that holds the level, {result.repeats} runs a load, load in {unit}; gains{over}, "
        f"ratios only with more than {result.few:g} requests in flight in both arms; intervals of throughput: run to "
        "run, of tok/s/user: over prompts; n: measured requests at that load"
    )
    parts.append(Text(legend, "dim"))
    if not result.complete:
        parts.append(Text("interrupted: searches that had not ended have no result", "yellow"))
    return Group(*parts, *(Text(f"note: {note}", "dim") for note in result.notes))


def _table(title: str, rows: Sequence[SearchRow], gains: dict[str, GainRow], result: SlaResult) -> RenderableType:
    table = Table(
        box=box.SIMPLE_HEAD, show_edge=False, padding=0, title=title, title_justify="left", title_style="bold"
    )
    table.add_column("method", no_wrap=True)
    for name in _COLUMNS:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(row.method, *_cells(row, gains.get(row.method)), _verdicts(result, row))
    return table


def _cells(row: SearchRow, gain: GainRow | None) -> list[str]:
    if row.throughput is None:
        text = NOT_ATTAINABLE if row.outcome == NOT_ATTAINABLE else row.outcome
        held = [text, numbers.ABSENT, numbers.ABSENT]
    else:
        bound = ">= " if row.outcome == "all pass (bound)" else ""
        held = [bound + numbers.bounded(row.throughput), numbers.bounded(row.speed), _load(row)]
    gained = [numbers.ABSENT] * 2 if gain is None else [_gain(gain.throughput), _gain(gain.speed)]
    return [*held, *gained, str(row.requests) if row.requests else numbers.ABSENT]


def _load(row: SearchRow) -> str:
    best = numbers.ABSENT if row.best is None else f"{row.best:g}"
    return best if row.first_fail is None else f"{best} ({row.first_fail:g})"


def _gain(row: EstimateRow | None) -> str:
    if row is None:
        return NOT_ATTAINABLE
    return ("at least " if row.scope.get("bound") == "at least" else "") + percent_gain(row)


def _verdicts(result: SlaResult, row: SearchRow) -> str:
    """Of all its probes: the worst one, since any of them may have been decisive."""
    found = {run.verdict for probe in result.probes if probe.method == row.method for run in probe.runs}
    if row.method == result.baseline:
        return "control"
    return next((word for word in ("fail", "inconclusive", "pass") if word in found), numbers.ABSENT)


def _remarks(rows: Sequence[SearchRow], gains: dict[str, GainRow]) -> list[RenderableType]:
    found: list[RenderableType] = []
    for row in rows:
        if row.throughput is None:
            found.append(Text(f"{row.method}: {row.outcome}: {row.reason}", "yellow"))
        found += [Text(f"{row.method}: {flag.name}: {flag.message}", "yellow") for flag in row.flags]
        gain = gains.get(row.method)
        for name, why in (("throughput", gain.throughput_why), ("tok/s/user", gain.speed_why)) if gain else ():
            if why is not None:
                found.append(Text(f"{row.method}: no ratio of {name}: {why}", "dim"))
    return found
