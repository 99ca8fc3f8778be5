"""The verdict of every cell of a sweep with its alarms, sampled cells judged together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specbench.metrics._family import Member, judge_family
from specbench.records.schema import AlarmRow, Record, VerdictRow
from specbench.report import numbers
from specbench.report.tables import method_label

_STYLE = {"pass": "green", "fail": "bold red", "inconclusive": "yellow"}


@dataclass(frozen=True, slots=True)
class CellVerdict:
    """One record's verdict: ``outcome`` among all cells of the sweep, ``alone`` as its record says.

    Both are None for plain decoding, which is the control, and for cells that were not judged.
    """

    record: Record
    outcome: str | None
    alone: str | None
    reason: str
    alarms: tuple[AlarmRow, ...]


def sweep_verdicts(records: Sequence[Record]) -> list[CellVerdict]:
    """The verdict of every record among all of these, in the order given.

    Sampled verdicts are corrected by Holm over the cells; greedy and synthetic ones stand as they are.
    """
    members = {r.run_id: member for r in records if (member := _member(r.verdict)) is not None}
    together = dict(zip(members, judge_family(list(members.values()))))
    found = []
    for record in records:
        alone = None if record.verdict is None else record.verdict.outcome
        joint = together.get(record.run_id)
        outcome: str | None = alone if joint is None else joint.outcome.value
        reason = joint.reason if joint is not None else "" if record.verdict is None else record.verdict.reason
        found.append(CellVerdict(record, outcome, alone, reason or _unjudged(record), tuple(record.alarms)))
    return found


def _member(row: VerdictRow | None) -> Member | None:
    """The test behind a sampled verdict; None where there is none."""
    if row is None or row.rule != "sampled" or row.p_value is None:
        return None
    sizes = [ours * theirs / (ours + theirs) for _, ours, theirs in row.samples]
    known = len(row.degrees) == len(sizes)
    return Member(
        p_value=row.p_value,
        tests=tuple(zip(row.degrees, sizes)) if known else (),
        requests_compared=row.requests_compared,
        rounds_with_drafts=row.rounds_with_drafts,
    )


def _unjudged(record: Record) -> str:
    if record.status != "ok":
        return f"the run is {record.status}"
    return "the control" if record.method == "vanilla" else "there was no control"


def verdicts_table(found: Sequence[CellVerdict]) -> RenderableType:
    """A row per cell, then in words why a verdict is no pass, and every alarm."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0, header_style="bold")
    for name in ("run", "method", "load", "T"):
        table.add_column(name, no_wrap=True)
    for name in ("lossless", "alone", "alarms"):
        table.add_column(name)
    remarks: list[RenderableType] = []
    for cell in found:
        record = cell.record
        label, load = method_label(record), str(record.comparability.get("load", numbers.ABSENT))
        outcome = Text(cell.outcome or cell.reason, _STYLE.get(cell.outcome or "", "dim"))
        alone = numbers.ABSENT if cell.alone in (None, cell.outcome) else cell.alone
        alarms = ", ".join(alarm.name for alarm in cell.alarms) or numbers.ABSENT
        heat = f"{record.spec.get('temperature', 0):g}"
        table.add_row(record.run_id[:8], label, load, heat, outcome, alone, alarms)
        where = f"{record.run_id[:8]} {label}"
        if cell.outcome in ("fail", "inconclusive"):
            remarks.append(Text(f"{where}: {cell.outcome}: {cell.reason}", _STYLE[cell.outcome]))
        remarks += [Text(f"{where}: {alarm.name}: {alarm.message}", "yellow") for alarm in cell.alarms]
    return Group(table, Text("sampled cells: level .001 with Holm over all of these", "dim"), *remarks)
