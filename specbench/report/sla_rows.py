"""Searches for SLA-bound throughput as plain tables: a row per method and service level, in the reports' spelling."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from specbench.records.schema import EstimateRow
from specbench.records.sla_result import GainRow, SearchRow, SlaResult
from specbench.report import numbers
from specbench.report.frontier import percent_gain


@dataclass(frozen=True, slots=True)
class Line:
    """A method under a service level. ``runs`` are the records at the load that it ended at."""

    method: str
    outcome: str
    reason: str
    throughput: str
    speed: str
    load: str
    first_fail: str
    throughput_gain: str
    speed_gain: str
    requests: int
    runs: tuple[str, ...]
    remarks: tuple[str, ...]


def lines(result: SlaResult, level: int) -> Iterator[Line]:
    """The searches under one level, in the order of the result."""
    gains = {row.method: row for row in result.gains if row.level == level}
    for search in result.searches:
        if search.level == level:
            yield _line(result, search, gains.get(search.method))


def _line(result: SlaResult, search: SearchRow, gain: GainRow | None) -> Line:
    at_best = (probe for probe in result.probes if (probe.method, probe.load) == (search.method, search.best))
    runs = tuple(run.run_id for probe in at_best for run in probe.runs)
    whys = [] if gain is None else [why for why in (gain.throughput_why, gain.speed_why) if why]
    return Line(
        method=search.method,
        outcome=search.outcome,
        reason=search.reason,
        throughput=numbers.bounded(search.throughput),
        speed=numbers.bounded(search.speed),
        load=numbers.ABSENT if search.best is None else f"{search.best:g}",
        first_fail=numbers.ABSENT if search.first_fail is None else f"{search.first_fail:g}",
        throughput_gain=_gain(gain.throughput if gain is not None else None),
        speed_gain=_gain(gain.speed if gain is not None else None),
        requests=search.requests,
        runs=runs,
        remarks=tuple(dict.fromkeys([*(f"{flag.name}: {flag.message}" for flag in search.flags), *whys])),
    )


def _gain(row: EstimateRow | None) -> str:
    if row is None:
        return numbers.ABSENT
    return ("at least " if row.scope.get("bound") == "at least" else "") + percent_gain(row)
