"""What charts are drawn from: records that differ only in contestant and load, as points with intervals.

A family is a comparability key without load and row limit, so that throughput at several loads lies on one chart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from specbench.records import keys
from specbench.records.schema import EstimateRow, Record, digest
from specbench.report.board import EVERYTHING, Cell, Estimates, Scope, cell_of, facts_of
from specbench.report.curves import dominated
from specbench.report.tables import method_label

PHASES = ("T_draft", "T_schedule", "T_verify", "T_accept", "T_other")
VALUES: dict[str, tuple[str, Scope]] = {
    "tau": ("tau", EVERYTHING),
    "user": ("tokens_per_s_user", (("stat", "mean"),)),
    "throughput": ("steady_tokens_per_s", EVERYTHING),
    "speed_up": ("speed_up", EVERYTHING),
    "budget": ("verification_budget", EVERYTHING),
}


@dataclass(frozen=True, slots=True)
class Bin:
    """One bin of a reliability diagram: mean forecast, share accepted, positions in it."""

    forecast: float
    outcome: float
    count: int


@dataclass(slots=True)
class Point:
    """One record on the charts. ``values`` by the names of `VALUES`, ``phases`` mean milliseconds of a decode round."""

    record: Record
    label: str
    policy: str
    load: str
    reasons: list[str]
    values: dict[str, Cell]
    phases: dict[str, Cell]
    conditional: dict[int, Cell]
    survival: dict[int, Cell]
    reliability: dict[int, list[Bin]]
    ece: dict[int, Cell]
    untimed: list[str] = field(default_factory=list)  # why its times are not ranked though it may be
    on_frontier: bool = False

    @property
    def threshold(self) -> float | None:
        """The confidence below which a ``threshold:p`` policy stops verifying; None for other policies."""
        name, _, argument = self.policy.partition(":")
        try:
            return float(argument) if name == "threshold" else None
        except ValueError:
            return None


@dataclass(slots=True)
class Family:
    """Points that may share a chart."""

    id: str
    facts: dict[str, str]
    points: list[Point] = field(default_factory=list)


def family_key(record: Record) -> dict[str, Any]:
    """The comparability key without what the load decides."""
    key = {name: value for name, value in record.comparability.items() if name != "load"}
    timing = {name: value for name, value in (key.get("timing") or {}).items() if name != "row_limit"}
    return {**key, "timing": timing}


def workload_key(record: Record, *, counted: bool = False) -> dict[str, Any]:
    """What runs at several loads share: tasks with their weights, not the sample of prompts, which grows with load.

    ``counted`` keeps the number of prompts.
    """
    key = family_key(record)
    rendering = {name: value for name, value in key["rendering"].items() if name not in ("dataset", "turns")}
    tasks = {"tasks": [str(name) for name in record.spec.get("tasks") or ()], "mix": record.spec.get("mix") or {}}
    count = {"count": key["prompt_set"].get("count")} if counted else {}
    return {**key, "prompt_set": {**tasks, **count}, "rendering": rendering}


def by_workload(records: Sequence[Record]) -> list[list[Record]]:
    """Sets of records whose loads make one curve. A heavier load may ask more prompts; at one load all ask as many.

    Where records of one load do not, each number of prompts is a set of its own.
    """
    found: list[list[Record]] = []
    for members in _bucket(records, counted=False):
        counts: dict[str, set[object]] = {}
        for record in members:
            count = (record.comparability.get("prompt_set") or {}).get("count")
            counts.setdefault(str(record.comparability.get("load")), set()).add(count)
        alike = all(len(seen) == 1 for seen in counts.values())
        found += [members] if alike else _bucket(members, counted=True)
    return found


def apart(ours: Record, theirs: Record) -> list[str]:
    """Why two records are in different sets of `by_workload`, one phrase each."""
    found = keys.differences(workload_key(ours), workload_key(theirs), timings=True)
    return found or keys.differences(workload_key(ours, counted=True), workload_key(theirs, counted=True), timings=True)


def _bucket(records: Sequence[Record], *, counted: bool) -> list[list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(digest(workload_key(record, counted=counted)), []).append(record)
    return list(found.values())


def _by_position(found: Estimates, metric: str) -> dict[int, Cell]:
    rows = {int(row.scope["k"]): row for row in found.along(metric, "k") if row.scope["k"].isdecimal()}
    return {k: cell_of(rows[k]) for k in sorted(rows)}


def _reliability(record: Record) -> dict[int, list[Bin]]:
    """Bins by position, in the order of their forecasts."""
    halves: dict[tuple[str, str], dict[str, EstimateRow]] = {}
    for row in record.estimates:
        if row.metric in ("reliability_forecast", "reliability_outcome") and set(row.scope) == {"k", "bin"}:
            halves.setdefault((row.scope["k"], row.scope["bin"]), {})[row.metric] = row
    curves: dict[int, list[Bin]] = {}
    for (k, _), both in halves.items():
        if len(both) == 2:
            forecast = both["reliability_forecast"]
            found = Bin(forecast.value, both["reliability_outcome"].value, forecast.n)
            curves.setdefault(int(k), []).append(found)
    return {k: sorted(curves[k], key=lambda one: one.forecast) for k in sorted(curves)}


def point_of(record: Record) -> Point:
    """A record as a point of the charts."""
    found = Estimates(record)
    values = {name: found.get(metric, scope) for name, (metric, scope) in VALUES.items()}
    phases = {name: found.get(name, (("steps", "decode"), ("stat", "mean"))) for name in PHASES}
    return Point(
        record=record,
        label=method_label(record),
        policy=str(record.spec.get("policy") or ""),
        load=str(record.comparability.get("load", "")),
        reasons=keys.obstacles(record),
        values={name: cell_of(row) for name, row in values.items() if row is not None},
        phases={name: cell_of(row, unit="ms") for name, row in phases.items() if row is not None},
        conditional=_by_position(found, "conditional"),
        survival=_by_position(found, "survival"),
        reliability=_reliability(record),
        ece=_by_position(found, "ece"),
        untimed=keys.timing_obstacles(record),
    )


def families(records: Sequence[Record]) -> list[Family]:
    """All families with at least one point, the largest first; records without estimates are no points."""
    found: list[Family] = []
    for members in by_workload([record for record in records if record.estimates]):
        facts = {name: text for name, text in facts_of(members[0]).items() if name != "load"}
        facts["prompts"] = "; ".join(dict.fromkeys(facts_of(record)["prompts"] for record in members))
        key = digest([workload_key(members[0]), facts["prompts"]])
        found.append(Family(key[:12], facts, [point_of(record) for record in members]))
    for family in found:
        _mark_frontier(family.points)
        family.points.sort(key=lambda point: (point.label, point.load, point.record.created, point.record.run_id))
    return sorted(found, key=lambda family: (-len(family.points), family.id))


def _mark_frontier(points: Sequence[Point]) -> None:
    """The points whose times may be ranked and that no other such one beats in throughput and tok/s/user."""
    able = [point for point in points if not point.reasons and not point.untimed]
    held = [point for point in able if {"user", "throughput"} <= set(point.values)]
    places = [(point.values["user"].value, point.values["throughput"].value, 0.0) for point in held]
    for point, beaten in zip(held, dominated(places)):
        point.on_frontier = not beaten
