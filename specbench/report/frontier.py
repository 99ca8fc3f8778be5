"""Throughput against tok/s/user from records: a curve per contestant, and what it gains over a baseline's curve."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specbench.config import BASELINE
from specbench.errors import RecordError
from specbench.records import keys
from specbench.records.schema import EstimateRow, Record
from specbench.report import curves, numbers
from specbench.report.arms import row_key
from specbench.report.curves import Curve, LoadRun, Point
from specbench.report.series import apart, by_workload
from specbench.report.tables import full_label, method_label


@dataclass(frozen=True, slots=True)
class Frontier:
    """Curves that may be compared, in the order of their labels; ``notes`` say which records made no point and why."""

    curves: tuple[Curve, ...]
    notes: tuple[str, ...]

    def find(self, label: str) -> Curve | None:
        """The curve with this label, or None."""
        return next((curve for curve in self.curves if curve.label == label), None)


def frontier(records: Sequence[Record]) -> Frontier:
    """Curves of records that differ in contestant, load and seed alone; repeats of a load make one point.

    Errors: RecordError when the records must not be compared, naming the difference.
    """
    usable, notes = _usable(records)
    sets = by_workload(usable)
    if len(sets) > 1:
        one, other = sets[0][0], sets[1][0]
        found = apart(one, other)
        raise RecordError(
            f"runs {one.run_id} and {other.run_id} cannot share a frontier: {'; '.join(found)}; leave one of them out"
        )
    rows: dict[str, dict[str, list[Record]]] = {}
    for record in usable:
        rows.setdefault(_contestant(record), {}).setdefault(row_key(record), []).append(record)
    labels = _labels([next(iter(loads.values()))[0] for loads in rows.values()])
    made = [
        curves.curve_of(label, [_point(group) for group in loads.values()])
        for label, loads in zip(labels, rows.values())
    ]
    return Frontier(tuple(sorted(made, key=lambda curve: curve.label)), tuple(notes))


def _usable(records: Sequence[Record]) -> tuple[list[Record], list[str]]:
    usable, notes = [], []
    for record in sorted(records, key=lambda record: (record.created, record.run_id)):
        lacking = [name for name, row in (("steady throughput", _throughput(record)), ("tok/s/user", _speed(record)))
                   if row is None]  # fmt: skip
        if record.status != "ok":
            notes.append(f"run {record.run_id} ({method_label(record)}) is {record.status}")
        elif lacking:
            where = record.comparability.get("load")
            notes.append(f"run {record.run_id} ({method_label(record)}, {where}) has no {' and no '.join(lacking)}")
        else:
            reasons = keys.obstacles(record) + keys.timing_obstacles(record)
            if reasons:  # shown, as compare does, and said
                notes.append(f"run {record.run_id} ({method_label(record)}) cannot be ranked: {'; '.join(reasons)}")
            usable.append(record)
    return usable, notes


def _throughput(record: Record) -> EstimateRow | None:
    return record.find("steady_tokens_per_s")


def _speed(record: Record) -> EstimateRow | None:
    return record.find("tokens_per_s_user", stat="mean")


_LOAD_FIELDS = ("concurrency", "workload", "load", "num_prompts", "max_context")


def _contestant(record: Record) -> str:
    return row_key(record, without=_LOAD_FIELDS)


def _labels(firsts: Sequence[Record]) -> list[str]:
    """Method and length; policy and weights where they are needed to tell contestants apart."""
    named = [full_label(record) for record in firsts]
    found = []
    for label, record in zip(named, firsts):
        if named.count(label) > 1:
            weights = record.drafter.sha256[:8] if record.drafter is not None else "no weights"
            label = f"{label} ({weights}, {_contestant(record)[:6]})"
        found.append(label)
    return found


def _point(group: Sequence[Record]) -> Point:
    runs = tuple(_run(record) for record in group)
    if len(group) == 1:
        speed, throughput = _speed(group[0]), _throughput(group[0])
        assert speed is not None
        assert throughput is not None
    else:
        speed = curves.mean_row("tokens_per_s_user", [run.speed for run in runs], "tokens/s")
        throughput = curves.mean_row("steady_tokens_per_s", [run.throughput for run in runs], "tokens/s")
    spec = group[0].spec
    rate = (spec.get("load") or {}).get("rate")
    size = float(rate) if rate is not None else float(spec.get("concurrency", 1))
    return Point(str(group[0].comparability["load"]), size, runs, speed, throughput)


def _run(record: Record) -> LoadRun:
    speed, throughput = _speed(record), _throughput(record)
    assert speed is not None
    assert throughput is not None
    rows, round_s = record.find("mean_batch_rows"), record.find("T_round", steps="decode", stat="mean")
    tau = record.find("tau")
    return LoadRun(
        record.run_id,
        speed.value,
        throughput.value,
        in_flight=0.0 if rows is None else rows.value,
        round_s=None if round_s is None else round_s.value,
        tau=None if tau is None else tau.value,
    )


# ----------------------------------------------------------------------------------------------------- on the screen


def frontier_table(found: Frontier, *, baseline: str = BASELINE) -> RenderableType:
    """A row per contestant and load: both axes with intervals, what it gains over the baseline's curve, break-even."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0, header_style="bold")
    table.add_column("method", no_wrap=True)
    table.add_column("load", no_wrap=True)
    for name in _COLUMNS:
        table.add_column(name, justify="right")
    base = found.find(baseline)
    for curve in found.curves:
        for point in curve.points:
            table.add_row(curve.label, point.load + (" *" if point.dominated else ""), *_cells(point, curve, base))
    legend = (
        f"gains over {baseline} at the point's own speed or throughput; {numbers.ABSENT}: outside its curve, or no "
        f"more than {curves.FEW:g} requests in flight",
        "* another load of the same method is better in both; intervals: run to run, or over prompts for one run",
    )
    notes = (f"note: {note}" for note in found.notes)
    return Group(table, *(Text(line, "dim") for line in (*legend, *notes)))


_COLUMNS = (
    "tok/s [95%]", "tok/s/user [95%]", "tok/s at equal speed", "speed at equal tok/s", "tau", "breaks even", "runs",
)  # fmt: skip


def _cells(point: Point, curve: Curve, base: Curve | None) -> Iterable[str]:
    at_speed = at_rate = even = None
    if base is not None and base is not curve:
        at_speed = curves.gain_at_speed(curve, base, point.speed.value) if not point.dominated else None
        at_rate = curves.gain_at_throughput(curve, base, point.throughput.value) if not point.dominated else None
        same = next((other for other in base.points if other.load == point.load), None)
        even = curves.break_even(point, same) if same is not None else None
    taus = [run.tau for run in point.runs if run.tau is not None]
    return (
        numbers.bounded(point.throughput),
        numbers.bounded(point.speed),
        percent_gain(at_speed),
        percent_gain(at_rate),
        numbers.bounded(curves.mean_row("tau", taus, "tokens per round")) if taus else numbers.ABSENT,
        numbers.bounded(even),
        str(len(point.runs)),
    )


def percent_gain(row: EstimateRow | None) -> str:
    """A ratio as a gain: ``+51 % [+48,+54]``."""
    if row is None:
        return numbers.ABSENT

    def shown(ratio: float) -> str:
        return f"{100 * (ratio - 1):+.0f}"

    text = f"{shown(row.value)} %"
    return text if row.low is None or row.high is None else f"{text} [{shown(row.low)},{shown(row.high)}]"
