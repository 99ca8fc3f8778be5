"""From the runs of probed loads to what a search says: verdicts under a level, findings, and gains over a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from specbench.metrics._service import OVER_RUNS, Service, pooled, unsteady
from specbench.metrics.latency import tokens_per_s_user
from specbench.records.schema import EstimateRow, Record
from specbench.records.sla_result import (
    CeilingRow,
    FlagRow,
    GainRow,
    JudgedRow,
    LevelRow,
    ProbeRow,
    RunRow,
    SearchOutcome,
    SearchRow,
)
from specbench.report import curves
from specbench.report.curves import Curve, LoadRun, Point
from specbench.sla import Bound, Finding, Outcome, Probe, Sla, Space, conclude, next_load

SPEED = "tok/s/user"
_OUTCOMES: dict[Outcome, SearchOutcome] = {
    Outcome.ATTAINED: "attained",
    Outcome.ALL_PASS: "all pass (bound)",
    Outcome.NOT_ATTAINABLE: "not attainable",
}


@dataclass(frozen=True, slots=True)
class ProbeRun:
    """One run of a load: its record's facts and the service it gave."""

    row: RunRow
    service: Service


def probe_run(record: Record, service: Service, *, repeat: int) -> ProbeRun:
    """A run as a result keeps it."""
    round_s, tau = record.find("T_round", steps="decode", stat="mean"), record.find("tau")
    speeds = [speed for speed in map(tokens_per_s_user, service.requests) if speed is not None]
    row = RunRow(
        run_id=record.run_id,
        repeat=repeat,
        seed=int(record.spec["seed"]),
        requests=len(service.requests),
        throughput=service.throughput,
        speed=float(np.mean(speeds)) if speeds else None,
        in_flight=service.in_flight,
        served=service.served,
        round_s=None if round_s is None else round_s.value,
        tau=None if tau is None else tau.value,
        verdict=None if record.verdict is None else record.verdict.outcome,
        trouble=service.trouble,
    )
    return ProbeRun(row, service)


@dataclass(frozen=True, slots=True)
class LoadData:
    """A load with all its runs and their pooled estimates."""

    load: float
    runs: tuple[ProbeRun, ...]
    estimates: tuple[EstimateRow, ...]

    @classmethod
    def of(cls, load: float, runs: Sequence[ProbeRun]) -> LoadData:
        """Pools the runs."""
        rows = tuple(EstimateRow.of(estimate) for estimate in pooled([run.service for run in runs]))
        return cls(load, tuple(runs), rows)

    def find(self, metric: str, stat: str | None = None) -> EstimateRow | None:
        """A pooled estimate, or None."""
        scope = {} if stat is None else {"stat": stat}
        return next((row for row in self.estimates if row.metric == metric and row.scope == scope), None)

    def find_over_runs(self, metric: str, stat: str) -> EstimateRow | None:
        """The same figure as a mean over the runs, with its interval from run to run; None for a single run."""
        scope = dict((("stat", stat), OVER_RUNS))
        return next((row for row in self.estimates if row.metric == metric and row.scope == scope), None)


@dataclass(slots=True)
class Contest:
    """What was measured of one contestant. ``trouble``: why its search ended before its time."""

    label: str
    loads: dict[float, LoadData] = field(default_factory=dict)
    trouble: str | None = None

    def wanted(self, space: Space, levels: Sequence[Sla]) -> float | None:
        """The next load that one of its searches needs, None when all have ended."""
        if self.trouble is not None:
            return None
        for level in levels:
            probes = self.probes(space, level)
            load = next_load(space, {p.load: p.passed for p in probes})
            if load is not None and not any(p.unmeasured for p in probes):
                return load
        return None

    def probes(self, space: Space, level: Sla) -> list[Probe]:
        """Every measured load under a level."""
        return [judged(level, data, open_loop=not space.whole) for data in self.loads.values()]


# ---------------------------------------------------------------------------------------------------- one search


def judged(level: Sla, data: LoadData, *, open_loop: bool) -> Probe:
    """A load under a service level, by the pooled figures of its runs.

    It fails whatever they say where a run is invalid, a bounded figure is undefined, or an open loop's queue grows.
    """
    asked = [(SPEED, "tokens_per_s_user", "mean", level.floor, True)] if level.floor is not None else []
    asked += [(f"{c.metric} p{c.percent}", c.metric, f"p{c.percent}", c.seconds, False) for c in level.ceilings]
    bounds: dict[str, Bound] = {}
    trouble = next((run.row.trouble for run in data.runs if run.row.trouble is not None), None)
    for name, metric, stat, limit, at_least in asked:
        row = data.find(metric, stat)
        if row is None:
            trouble = trouble or f"no request defines {name}"
            continue
        low, high = _either_way(row, data.find_over_runs(metric, stat))
        bounds[name] = Bound(row.value, limit or 0.0, at_least, low, high)
    if open_loop and trouble is None:
        trouble = unsteady([run.service for run in data.runs])
    rate = data.find("steady_tokens_per_s")
    return Probe(data.load, bounds, None if rate is None else rate.value, trouble)


def _either_way(*rows: EstimateRow | None) -> tuple[float | None, float | None]:
    """The interval that holds those over prompts and from run to run: other prompts or another run might decide."""
    lows = [row.low for row in rows if row is not None and row.low is not None]
    highs = [row.high for row in rows if row is not None and row.high is not None]
    return min(lows, default=None), max(highs, default=None)


def search_row(contest: Contest, space: Space, level: Sla, *, index: int) -> SearchRow:
    """The end of one search, with a throughput only where a load holds the level."""
    probes = contest.probes(space, level)
    finding = conclude(space, probes)
    rows = [
        JudgedRow(load=p.load, passed=p.passed, reasons=list(p.reasons)) for p in sorted(probes, key=lambda p: p.load)
    ]
    common: dict[str, Any] = {"method": contest.label, "level": index, "judged": rows}
    if contest.trouble is not None:
        return SearchRow(**common, outcome="not measured", reason=contest.trouble)
    short = next((p.load for p in probes if p.unmeasured), None)
    if short is not None:
        reason = f"the run at {short:g} was too short for a steady window; give more prompts"
        return SearchRow(**common, outcome="not measured", reason=reason)
    if next_load(space, {p.load: p.passed for p in probes}) is not None:
        return SearchRow(**common, outcome="not measured", reason="interrupted before the search had ended")
    best = None if finding.best is None else contest.loads[finding.best]
    return SearchRow(
        **common,
        outcome=_OUTCOMES[finding.outcome],
        reason=finding.reason,
        max_pass=finding.max_pass,
        first_fail=finding.first_fail,
        best=finding.best,
        throughput=None if best is None else best.find("steady_tokens_per_s"),
        speed=None if best is None else best.find("tokens_per_s_user", "mean"),
        in_flight=None if best is None else best.find("requests_in_flight"),
        requests=0 if best is None else sum(run.row.requests for run in best.runs),
        flags=_flags(finding),
    )


def _flags(finding: Finding) -> list[FlagRow]:
    return [FlagRow(name=flag.name, message=flag.message) for flag in finding.flags]


def probe_rows(contest: Contest) -> list[ProbeRow]:
    """Every load of a contestant, by load."""
    return [
        ProbeRow(method=contest.label, load=data.load, runs=[run.row for run in data.runs], estimates=[*data.estimates])
        for data in sorted(contest.loads.values(), key=lambda data: data.load)
    ]


def level_row(level: Sla) -> LevelRow:
    """A level as a result keeps it."""
    ceilings = [CeilingRow(metric=c.metric, percent=c.percent, seconds=c.seconds) for c in level.ceilings]
    return LevelRow(label=level.label, floor=level.floor, ceilings=ceilings)


# ----------------------------------------------------------------------------------------------- against the baseline


def curve(probes: Sequence[ProbeRow], method: str) -> Curve | None:
    """Throughput against tok/s/user over a contestant's loads; None where no load has both."""
    points = [point for probe in probes if probe.method == method and (point := _point(probe)) is not None]
    return curves.curve_of(method, points) if points else None


def _point(probe: ProbeRow) -> Point | None:
    runs = [
        LoadRun(run.run_id, run.speed, run.throughput, run.in_flight, run.round_s, run.tau)
        for run in probe.runs
        if run.speed is not None and run.throughput is not None and run.in_flight is not None
    ]
    if not runs or len(runs) < len(probe.runs):
        return None
    return Point(
        f"{probe.load:g}",
        probe.load,
        tuple(runs),
        curves.mean_row("tokens_per_s_user", [run.speed for run in runs], "tokens/s"),
        curves.mean_row("steady_tokens_per_s", [run.throughput for run in runs], "tokens/s"),
    )


def gains(
    searches: Sequence[SearchRow], probes: Sequence[ProbeRow], *, baseline: str | None, few: float
) -> list[GainRow]:
    """What every contestant gains over the baseline under every level.

    Throughput: ratio of the SLA-bound throughputs. Speed: ratio of tok/s/user where the contestant makes as many
    tokens/s as the baseline does under its bound. Neither without more than a few requests in flight in both arms.
    """
    found = []
    base = {row.level: row for row in searches if row.method == baseline}
    for row in searches:
        if row.method == baseline or row.level not in base:
            continue
        other = base[row.level]
        why = _no_ratio(row, other, few=few)
        throughput = None if why is not None else _throughput_gain(row, other, probes)
        speed, speed_why = _speed_gain(row, other, probes, few=few)
        found.append(
            GainRow(
                method=row.method,
                level=row.level,
                throughput=throughput,
                throughput_why=why,
                speed=speed,
                speed_why=speed_why,
            )
        )
    return found


def _no_ratio(ours: SearchRow, base: SearchRow, *, few: float) -> str | None:
    """Why there is no ratio of bounds, or None."""
    for row in (base, ours):
        if row.throughput is None:
            return f"{row.method}: {row.outcome}"
        flying = 0.0 if row.in_flight is None else row.in_flight.value
        if flying <= few:
            return f"{row.method} holds it with {flying:.2g} requests in flight"
        if row.requests <= few:
            return f"{row.method}: {row.requests} requests were measured"
    if base.outcome == "all pass (bound)":
        return f"{base.method} passes at every load: its bound is not known"
    return None


def _throughput_gain(ours: SearchRow, base: SearchRow, probes: Sequence[ProbeRow]) -> EstimateRow:
    assert ours.throughput is not None
    assert base.throughput is not None
    value = ours.throughput.value / base.throughput.value
    row = curves.ratio_row("throughput_gain", value, _rates(ours, probes), _rates(base, probes))
    bound = ours.outcome == "all pass (bound)"
    return row.model_copy(update={"scope": {"bound": "at least"}}) if bound else row


def _rates(row: SearchRow, probes: Sequence[ProbeRow]) -> list[float]:
    """Throughput at the best load, by repeat."""
    best = next(p for p in probes if p.method == row.method and p.load == row.best)
    return [run.throughput for run in best.runs if run.throughput is not None]


def _speed_gain(
    ours: SearchRow, base: SearchRow, probes: Sequence[ProbeRow], *, few: float
) -> tuple[EstimateRow | None, str | None]:
    """The ratio of tok/s/user at the baseline's SLA-bound throughput, or why there is none."""
    if base.throughput is None:
        return None, f"{base.method}: {base.outcome}"
    mine, theirs = curve(probes, ours.method), curve(probes, base.method)
    if mine is None or theirs is None:
        return None, f"{ours.method if mine is None else base.method}: no load has a steady window"
    at = base.throughput.value
    found = curves.gain_at_throughput(mine, theirs, at, few=few)
    if found is not None:
        return found, None
    low, high = mine.throughputs
    if not low <= at <= high:
        return None, f"{ours.method} was measured at {low:.4g} to {high:.4g} tok/s, {base.method} makes {at:.4g}"
    return None, f"an arm makes {at:.4g} tok/s with no more than {few:g} requests in flight"
