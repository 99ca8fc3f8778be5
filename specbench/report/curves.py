"""Throughput against tok/s/user of one contestant over loads: the frontier, and figures at equal speed or throughput.

Nothing is extrapolated: outside the measured range there is no figure. Where an arm serves a few requests only, there
is no ratio either: a nearly empty baseline makes any gain look large. Intervals are from run to run: run i of every
load makes its own curve, and a figure is read off each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from specbench.metrics._resampled import RUN_TO_RUN, run_to_run, run_to_run_ratio
from specbench.records.schema import EstimateRow

Place = tuple[float, float, float]
"""(tok/s/user, tokens/s, requests in flight)."""

FEW = 3.0  # ratios need more requests in flight than this in both arms


@dataclass(frozen=True, slots=True)
class LoadRun:
    """One run at one load. ``round_s`` is the mean time of a pure decode round, where the run had one."""

    run_id: str
    speed: float  # tok/s/user, mean over requests
    throughput: float  # tokens/s of the steady window
    in_flight: float  # mean number of requests that are served together
    round_s: float | None = None
    tau: float | None = None


@dataclass(frozen=True, slots=True)
class Point:
    """One load with its runs. ``speed`` and ``throughput`` carry their intervals and counts."""

    load: str
    size: float  # users, or requests/s: the order along the curve
    runs: tuple[LoadRun, ...]
    speed: EstimateRow
    throughput: EstimateRow
    dominated: bool = False


@dataclass(frozen=True, slots=True)
class Curve:
    """A contestant's points by rising load."""

    label: str
    points: tuple[Point, ...]

    @property
    def frontier(self) -> tuple[Point, ...]:
        """Points that no other point beats in both, by rising tok/s/user."""
        return tuple(sorted((p for p in self.points if not p.dominated), key=lambda p: p.speed.value))

    @property
    def speeds(self) -> tuple[float, float]:
        """The range of tok/s/user on the frontier."""
        return self.frontier[0].speed.value, self.frontier[-1].speed.value

    @property
    def throughputs(self) -> tuple[float, float]:
        """The range of tokens/s on the frontier."""
        return self.frontier[-1].throughput.value, self.frontier[0].throughput.value


def dominated(places: Sequence[Place]) -> list[bool]:
    """Which places another one beats: at least as good in speed and throughput, and better in one of them."""
    return [
        any(other[0] >= own[0] and other[1] >= own[1] and other[:2] != own[:2] for other in places) for own in places
    ]


def interpolate(places: Sequence[Place], at: float, *, axis: int) -> Place | None:
    """The place where the frontier of ``places`` has ``at`` on this axis (0 or 1); None outside its range.

    Linear between neighbours on the frontier; dominated places do not count.
    """
    kept = sorted({place for place, beaten in zip(places, dominated(places)) if not beaten}, key=lambda p: p[axis])
    for place in kept:
        if place[axis] == at:
            return place
    for low, high in pairwise(kept):
        if low[axis] < at < high[axis]:
            share = (at - low[axis]) / (high[axis] - low[axis])
            speed, throughput, in_flight = (a + share * (b - a) for a, b in zip(low, high))
            return speed, throughput, in_flight
    return None


def _means(curve: Curve) -> list[Place]:
    return [
        (p.speed.value, p.throughput.value, float(np.mean([run.in_flight for run in p.runs]))) for p in curve.points
    ]


def _by_run(curve: Curve) -> list[list[Place]]:
    """The curve of each run; empty where loads were run differently often."""
    counts = {len(point.runs) for point in curve.points}
    if len(counts) != 1:
        return []
    return [
        [(p.runs[i].speed, p.runs[i].throughput, p.runs[i].in_flight) for p in curve.points]
        for i in range(counts.pop())
    ]


def _read(curve: Curve, at: float, *, axis: int) -> tuple[Place, list[float]] | None:
    """The place on the curve of means, and the other coordinate on the curve of each run where every one reaches it."""
    place = interpolate(_means(curve), at, axis=axis)
    if place is None:
        return None
    each = [interpolate(places, at, axis=axis) for places in _by_run(curve)]
    return place, [found[1 - axis] for found in each if found is not None] if None not in each else []


def throughput_at(curve: Curve, speed: float) -> EstimateRow | None:
    """Tokens/s where users get ``speed`` tok/s each; None outside the measured range."""
    return _row(curve, speed, axis=0, metric="throughput_at_speed", unit="tokens/s")


def speed_at(curve: Curve, throughput: float) -> EstimateRow | None:
    """Tok/s/user where the machine makes ``throughput`` tokens/s; None outside the measured range."""
    return _row(curve, throughput, axis=1, metric="speed_at_throughput", unit="tokens/s")


def _row(curve: Curve, at: float, *, axis: int, metric: str, unit: str) -> EstimateRow | None:
    found = _read(curve, at, axis=axis)
    if found is None:
        return None
    value, each = found[0][1 - axis], found[1]
    return estimate_row(metric, value, unit, n=max(len(each), 1), bounds=run_to_run(each), at=at)


def gain_at_speed(curve: Curve, baseline: Curve, speed: float, *, few: float = FEW) -> EstimateRow | None:
    """Ratio of throughputs at equal tok/s/user; None where an arm does not reach it with more than a few requests."""
    return _gain(curve, baseline, speed, axis=0, metric="throughput_gain", few=few)


def gain_at_throughput(curve: Curve, baseline: Curve, throughput: float, *, few: float = FEW) -> EstimateRow | None:
    """Ratio of tok/s/user at equal throughput; None where an arm does not reach it with more than a few requests."""
    return _gain(curve, baseline, throughput, axis=1, metric="speed_gain", few=few)


def _gain(curve: Curve, baseline: Curve, at: float, *, axis: int, metric: str, few: float) -> EstimateRow | None:
    ours, theirs = _read(curve, at, axis=axis), _read(baseline, at, axis=axis)
    if ours is None or theirs is None or min(ours[0][2], theirs[0][2]) <= few or theirs[0][1 - axis] <= 0:
        return None
    return ratio_row(metric, ours[0][1 - axis] / theirs[0][1 - axis], ours[1], theirs[1], at=at)


def ratio_row(
    metric: str, value: float, ours: Sequence[float], theirs: Sequence[float], *, at: float | None = None
) -> EstimateRow:
    """A ratio with its interval from run to run, where both arms have equally many runs."""
    paired = [a / b for a, b in zip(ours, theirs)] if len(ours) == len(theirs) and all(theirs) else []
    found = run_to_run_ratio(paired)
    bounds = found[1] if found is not None else None
    return estimate_row(metric, value, "ratio", n=max(len(paired), 1), bounds=bounds, at=at)


def estimate_row(
    metric: str, value: float, unit: str, *, n: int, bounds: tuple[float, float] | None, at: float | None = None
) -> EstimateRow:
    """An estimate over runs; ``at`` is the value of the other axis that it was read at."""
    low, high = bounds if bounds is not None else (None, None)
    return EstimateRow(
        metric=metric,
        value=value,
        unit=unit,
        n=n,
        n_of="runs",
        scope={} if at is None else {"at": f"{at:.6g}"},
        low=low,
        high=high,
        interval=RUN_TO_RUN if bounds is not None else None,
    )


def mean_row(metric: str, values: Sequence[float], unit: str) -> EstimateRow:
    """The mean over runs with its interval from run to run."""
    return estimate_row(metric, float(np.mean(values)), unit, n=len(values), bounds=run_to_run(values))


def break_even(point: Point, baseline: Point) -> EstimateRow | None:
    """Round time over the plain step time at the same load: the accepted length below which drafting loses."""
    ours = [run.round_s for run in point.runs if run.round_s]
    theirs = [run.round_s for run in baseline.runs if run.round_s]
    if not ours or not theirs:
        return None
    return ratio_row("break_even_tau", float(np.mean(ours) / np.mean(theirs)), ours, theirs)


def curve_of(label: str, points: Sequence[Point]) -> Curve:
    """Points in the order of their load, each marked where another beats it."""
    ordered = sorted(points, key=lambda point: point.size)
    beaten = dominated([(p.speed.value, p.throughput.value, 0.0) for p in ordered])
    return Curve(label, tuple(replace(point, dominated=flag) for point, flag in zip(ordered, beaten)))
