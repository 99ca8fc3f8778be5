"""The ranking: records by comparability group, ranked only inside one, with a reason for every row that is not.

A group is one comparability key, the machine's part included. A row is ranked by a column when nothing stands in the
record's way (`keys.obstacles`), it is the newest run of its contestant in the group, and it has the value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specbench.records import keys
from specbench.records.schema import EstimateRow, Record, digest
from specbench.records.sla_result import SlaResult
from specbench.report import numbers
from specbench.report.tables import method_label

SLA = "sla"
Scope = tuple[tuple[str, str], ...]
EVERYTHING: Scope = ()
NO_CONTROL = "plain decoding is what the others are compared with"


@dataclass(frozen=True, slots=True)
class Column:
    """One number of a ranking table: which estimate, and how it is headed.

    ``over`` names a scope of which the worst (largest) value is shown, ``scoped`` says whether domains have their own.
    """

    key: str
    title: str
    metric: str
    help: str
    scope: Scope = ()
    unit: str = ""
    better: str = "higher"
    ranks: bool = False
    over: str | None = None
    scoped: bool = True
    timed: bool = False  # a time, or made of times: no place for a run on a busy machine


_MEAN = (("stat", "mean"),)
_DECODE = (("steps", "decode"), *_MEAN)
COLUMNS = (
    Column(
        "speed_up",
        "Speed-up",
        "speed_up",
        "Seconds per token of plain decoding over the method's",
        ranks=True,
        timed=True,
    ),
    Column("tau", "τ", "tau", "Tokens committed per round, bonus included", ranks=True),
    Column("user", "tok/s/user", "tokens_per_s_user", "Mean over requests of 1 / TPOT", _MEAN, ranks=True, timed=True),
    Column(
        "throughput",
        "tok/s",
        "steady_tokens_per_s",
        "Output tokens per second in the steady window",
        ranks=True,
        scoped=False,
        timed=True,
    ),
    Column("t_draft", "T_draft", "T_draft", "Mean drafting time of a decode round", _DECODE, "ms", "lower"),
    Column("t_verify", "T_verify", "T_verify", "Mean verification time of a decode round", _DECODE, "ms", "lower"),
    Column(
        SLA,
        "SLA tok/s",
        "",
        "Largest steady throughput that a search found to hold a service level, at the load of this row",
        scoped=False,
    ),
    Column("ece", "ECE", "ece", "Calibration error of the confidence, worst position", better="lower", over="k"),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """A value as recorded, as written, and its place in the group; ``where`` tells which of several was taken."""

    value: float
    text: str
    low: float | None = None
    high: float | None = None
    interval: str = ""
    n: str = ""
    where: str = ""
    rank: int | None = None


@dataclass(slots=True)
class Row:
    """One record in its group."""

    record: Record
    label: str
    policy: str
    reasons: list[str]
    cells: dict[Scope, dict[str, Cell]]
    memory: int | None
    untimed: list[str] = field(default_factory=list)  # why it has no place by its times
    contestant: str = ""  # the same for repeats
    repeats: int = 0  # other runs of the same contestant in the group

    @property
    def rankable(self) -> bool:
        """Nothing stands in the way of the row as a whole."""
        return not self.reasons


@dataclass(slots=True)
class Group:
    """Rows that may be compared with each other."""

    id: str
    facts: dict[str, str]
    key: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    nearest: str | None = None  # the group that differs in the fewest things
    differences: list[str] = field(default_factory=list)

    @property
    def ranked(self) -> list[Row]:
        """Rows that nothing stands in the way of, in the table's order."""
        return [row for row in self.rows if row.rankable]

    @property
    def unranked(self) -> list[Row]:
        """The others."""
        return [row for row in self.rows if not row.rankable]


class Estimates:
    """A record's estimates, found by metric and exact scope."""

    def __init__(self, record: Record) -> None:
        self._rows = {(row.metric, frozenset(row.scope.items())): row for row in record.estimates}
        self._by_metric: dict[str, list[EstimateRow]] = {}
        for row in record.estimates:
            self._by_metric.setdefault(row.metric, []).append(row)

    def get(self, metric: str, scope: Iterable[tuple[str, str]] = ()) -> EstimateRow | None:
        """The estimate with exactly this scope, or None."""
        return self._rows.get((metric, frozenset(scope)))

    def along(self, metric: str, name: str, scope: Iterable[tuple[str, str]] = ()) -> list[EstimateRow]:
        """Estimates of a metric whose scope is ``scope`` and one more name."""
        wanted = {item[0] for item in scope} | {name}
        fixed = dict(scope)
        return [
            row
            for row in self._by_metric.get(metric, ())
            if set(row.scope) == wanted and all(row.scope[k] == v for k, v in fixed.items())
        ]

    def domains(self) -> list[str]:
        """Domains that there is a tau for."""
        return sorted(row.scope["domain"] for row in self.along("tau", "domain"))


def cell_of(row: EstimateRow, *, unit: str = "", where: str = "") -> Cell:
    """An estimate as a table shows it; ``unit`` "ms" writes seconds in milliseconds."""
    if unit == "ms":
        text = numbers.milliseconds(row)
    else:
        text = numbers.bounded(row)
    return Cell(row.value, text, row.low, row.high, row.interval or "", f"{row.n} {row.n_of}", where)


def place_sla(found: Sequence[Group], results: Sequence[SlaResult]) -> None:
    """Give the rows that a search for SLA-bound throughput ended at their cell; of several levels, the first."""
    rows = {row.record.run_id: row for group in found for row in group.rows}
    for result in results:
        probes = {(probe.method, probe.load): probe for probe in result.probes}
        for search in sorted(result.searches, key=lambda search: search.level):
            probe = None if search.best is None else probes.get((search.method, search.best))
            if probe is None or search.throughput is None:
                continue
            cell = cell_of(search.throughput, where=result.levels[search.level].label)
            for run in probe.runs:
                if run.run_id in rows:
                    rows[run.run_id].cells.setdefault(EVERYTHING, {}).setdefault(SLA, cell)


def _cell(found: Estimates, column: Column, scope: Scope) -> Cell | None:
    if column.over is not None:
        rows = found.along(column.metric, column.over, (*scope, *column.scope))
        worst = max(rows, key=lambda row: row.value, default=None)
        if worst is None:
            return None
        return cell_of(worst, unit=column.unit, where=f"{column.over} = {worst.scope[column.over]}")
    row = found.get(column.metric, (*scope, *column.scope))
    return None if row is None else cell_of(row, unit=column.unit)


def _cells(record: Record) -> dict[Scope, dict[str, Cell]]:
    found = Estimates(record)
    scopes: list[Scope] = [EVERYTHING, *((("domain", name),) for name in found.domains())]
    cells: dict[Scope, dict[str, Cell]] = {}
    for scope in scopes:
        columns = [column for column in COLUMNS if column.scoped or scope == EVERYTHING]
        values = {column.key: _cell(found, column, scope) for column in columns}
        cells[scope] = {key: cell for key, cell in values.items() if cell is not None}
    return cells


def _memory(record: Record) -> int | None:
    facts = record.provenance.get("memory") or {}
    value = facts.get("peak_device_bytes", facts.get("peak_rss_bytes"))
    return int(value) if value is not None else None


def row_of(record: Record) -> Row:
    """A record as a row, not yet ranked."""
    return Row(
        record=record,
        label=method_label(record),
        policy=str(record.spec.get("policy") or numbers.ABSENT),
        reasons=keys.obstacles(record),
        cells=_cells(record),
        memory=_memory(record),
        untimed=keys.timing_obstacles(record),
        contestant=contestant_in_group(record),
    )


# ------------------------------------------------------------------------------------------------------ groups


def sampling_text(sampling: Mapping[str, Any]) -> str:
    """``greedy``, or ``T = 0.8, top-p 0.95``."""
    temperature = sampling.get("temperature", 0)
    if not temperature:
        return "greedy"
    parts = [f"T = {temperature:g}"]
    if sampling.get("top_p", 1) != 1:
        parts.append(f"top-p {sampling['top_p']:g}")
    if sampling.get("top_k"):
        parts.append(f"top-k {sampling['top_k']}")
    return ", ".join(parts)


def facts_of(record: Record) -> dict[str, str]:
    """What a reader wants to know of a record's group, by heading."""
    key = record.comparability
    tasks = record.spec.get("tasks") or []
    prompts = (key.get("prompt_set") or {}).get("count", "?")
    return {
        "target": record.target.name,
        "device": str((key.get("timing") or {}).get("hardware", numbers.ABSENT)),
        "sampling": sampling_text(key.get("sampling") or {}),
        "load": str(key.get("load", numbers.ABSENT)),
        "prompts": f"{prompts} of {', '.join(str(task) for task in tasks)}" if tasks else str(prompts),
        "output limit": f"{key.get('max_new_tokens', '?')} tokens" + (", past stops" if key.get("ignore_eos") else ""),
        "dtype": str(key.get("dtype", numbers.ABSENT)),
        "metrics version": str(key.get("metrics_version", numbers.ABSENT)),
    }


def contestant_in_group(record: Record) -> str:
    """What two runs share that are repeats: group, method, length, weights, and settings but for the seed."""
    spec = {name: value for name, value in record.spec.items() if name != "seed"}
    weights = record.drafter.sha256 if record.drafter is not None else None
    return digest([record.comparability_sha256, record.method, record.draft_length, weights, spec])


def _mark_repeats(rows: Sequence[Row]) -> None:
    """Of several runs of one contestant the newest is ranked, if there is one the newest on an idle machine."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.contestant, []).append(row)
    for same in found.values():
        newest: Row | None = None
        order = sorted(same, key=lambda row: (row.record.created, row.record.run_id), reverse=True)
        for row in sorted(order, key=lambda row: bool(row.untimed)):
            row.repeats = len(same) - 1
            if not row.rankable:
                continue
            if newest is None:
                newest = row
            elif row.untimed and not newest.untimed:
                row.reasons.append(f"{row.untimed[0]}; {newest.record.run_id} of the same contestant is")
            else:
                row.reasons.append(f"an earlier run of the same contestant; {newest.record.run_id} is the newest")


def _rank(group: Group, column: Column, scope: Scope) -> None:
    """Places 1, 2, 3 by value, best first; equal values share one."""
    rankable = [row for row in group.rows if row.rankable and not (column.timed and row.untimed)]
    held = [row for row in rankable if column.key in row.cells.get(scope, {})]
    sign = -1 if column.better == "higher" else 1
    held.sort(key=lambda row: sign * row.cells[scope][column.key].value)
    place = 0
    for index, row in enumerate(held, start=1):
        cell = row.cells[scope][column.key]
        if index == 1 or cell.value != held[index - 2].cells[scope][column.key].value:
            place = index
        row.cells[scope][column.key] = Cell(
            cell.value, cell.text, cell.low, cell.high, cell.interval, cell.n, cell.where, place
        )


def _order(row: Row) -> tuple[int, float, str, str]:
    """Ranked rows by speed-up, then by tau; the control after those; rows that cannot be ranked last."""
    cells = row.cells.get(EVERYTHING, {})
    speed = None if row.untimed else cells.get("speed_up")
    place = 2 if not row.rankable else 0 if speed is not None else 1
    value = speed.value if speed is not None else cells["tau"].value if "tau" in cells else 0.0
    return place, -value, row.label, row.record.run_id


def groups(records: Sequence[Record]) -> list[Group]:
    """All groups with their rows, those with the most ranked rows first."""
    found: dict[str, Group] = {}
    for record in records:
        sha = record.comparability_sha256
        if sha not in found:
            found[sha] = Group(sha[:12], facts_of(record), record.comparability)
        found[sha].rows.append(row_of(record))
    for group in found.values():
        _mark_repeats(group.rows)
        for scope in {scope for row in group.rows for scope in row.cells}:
            for column in COLUMNS:
                if column.ranks:
                    _rank(group, column, scope)
        group.rows.sort(key=_order)
    ordered = sorted(found.values(), key=lambda group: (-len(group.ranked), -len(group.rows), group.id))
    _name_differences(ordered)
    return ordered


def _name_differences(found: Sequence[Group]) -> None:
    """For each group, the nearest other one, and in words what keeps their rows apart."""
    flat = [set(_flat(group.key)) for group in found]
    for index, group in enumerate(found):
        near = min(
            (other for other in range(len(found)) if other != index),
            key=lambda other: len(flat[index] ^ flat[other]),
            default=None,
        )
        if near is not None:
            group.nearest = found[near].id
            group.differences = keys.differences(group.key, found[near].key, timings=True)


def _flat(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    items: list[tuple[str, str]] = []
    for name, part in value.items():
        items += _flat(part, f"{prefix}{name}.") if isinstance(part, Mapping) else [(prefix + name, str(part))]
    return items


def why_unplaced(row: Row, column: Column, scope: Scope) -> str:
    """Why a row has no place in a column's ranking."""
    if row.reasons:
        return "; ".join(row.reasons)
    if row.record.method == "vanilla" and column.key == "speed_up":
        return NO_CONTROL
    if column.timed and row.untimed:
        return "; ".join(row.untimed)
    where = f" for {scope[0][0]} {scope[0][1]}" if scope else ""
    return f"no {column.title}{where} in the record"
