"""A service level and the search for the largest load that still holds it; nothing is measured here.

What to probe next follows from the verdicts so far and nothing else, so a search can be resumed, and several can take
turns. Loads are users of a closed loop (whole numbers) or requests a second (metrics.md, "Time and load", SLA).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Literal

from specbench.errors import ConfigError

CLIFF = 1.5  # a bounded figure gets worse this much faster than the load grows
RISE = 1.1  # a bounded figure that is better at a larger load by more than this is no noise
DIGITS = 4  # significant digits of a rate that is probed


# ------------------------------------------------------------------------------------------------- what is asked


@dataclass(frozen=True, slots=True)
class Ceiling:
    """At most ``seconds`` for a percentile of "ttft" or "tpot" over requests."""

    metric: Literal["ttft", "tpot"]
    percent: int
    seconds: float

    @property
    def label(self) -> str:
        """``ttft p99 <= 2 s``."""
        return f"{self.metric} p{self.percent} <= {self.seconds:g} s"


@dataclass(frozen=True, slots=True)
class Sla:
    """``floor``: the mean tok/s/user over requests is at least this; every ceiling holds as well.

    Errors at birth: ConfigError when nothing is asked, or a bound is no positive number.
    """

    floor: float | None = None
    ceilings: tuple[Ceiling, ...] = ()

    def __post_init__(self) -> None:
        if self.floor is None and not self.ceilings:
            raise ConfigError("no service level is named; give --floor, or a ceiling such as --ttft-p99 2")
        bounds = [("floor", self.floor)] if self.floor is not None else []
        bounds += [(f"{c.metric} p{c.percent}", c.seconds) for c in self.ceilings]
        for name, value in bounds:
            if value is None or not math.isfinite(value) or value <= 0:
                raise ConfigError(f"the bound on {name} must be a positive number, not {value}; correct it")

    @property
    def label(self) -> str:
        """``>= 20 tok/s/user, ttft p99 <= 2 s``."""
        parts = [f">= {self.floor:g} tok/s/user"] if self.floor is not None else []
        return ", ".join([*parts, *(ceiling.label for ceiling in self.ceilings)])


@dataclass(frozen=True, slots=True)
class Space:
    """Where loads are looked for. ``tolerance`` is the relative width at which a bracket of rates is narrow enough.

    ``beyond`` further loads are probed above the first that fails: a larger one that passes shows a curve that is not
    monotone, and the search goes on from there. Errors at birth: ConfigError.
    """

    whole: bool  # users, not a rate
    start: float
    low: float
    high: float
    tolerance: float = 0.05
    beyond: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.start <= self.high or not math.isfinite(self.high):
            raise ConfigError(
                f"loads to search must satisfy 0 < least <= start <= most, seen {self.low:g}, {self.start:g}, "
                f"{self.high:g}; correct --min, --start or --max"
            )
        if self.whole and any(value != int(value) for value in (self.low, self.start, self.high)):
            raise ConfigError("numbers of users are whole; give whole numbers, or search with --over rate")
        if not 0 < self.tolerance < 1:
            raise ConfigError(f"the step must be a share between 0 and 1, not {self.tolerance:g}; correct --step")

    def rounded(self, load: float) -> float:
        """A load that can be probed, near this one."""
        return float(math.floor(load)) if self.whole else float(f"{load:.{DIGITS}g}")

    def upward(self) -> Iterator[float]:
        """The start, its doubles, and the largest load last."""
        load = self.start
        while load < self.high:
            yield load
            load = self.rounded(2 * load)
        yield self.high

    def downward(self) -> Iterator[float]:
        """Halves of the start, and the smallest load last."""
        load = self.start
        while load > self.low:
            load = max(self.rounded(load / 2), self.low)
            yield load


# ------------------------------------------------------------------------------------------------- what is found


@dataclass(frozen=True, slots=True)
class Bound:
    """A bounded figure as measured, with its interval where there is one."""

    value: float
    limit: float
    at_least: bool  # a floor; else a ceiling
    low: float | None = None
    high: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the value keeps to its limit."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    @property
    def close(self) -> bool:
        """Whether the limit lies inside the interval: another run might decide otherwise."""
        return self.low is not None and self.high is not None and self.low <= self.limit <= self.high

    def worse_than(self, other: Bound) -> float:
        """How many times worse this value is than the other one; below 1 it is better."""
        worse, better = (other.value, self.value) if self.at_least else (self.value, other.value)
        if better > 0:
            return worse / better
        return math.inf if worse > 0 else 1.0


@dataclass(frozen=True, slots=True)
class Probe:
    """One load as judged under one service level. ``trouble``: why it fails whatever its figures say, if it does."""

    load: float
    bounds: Mapping[str, Bound]
    throughput: float | None  # steady tokens/s
    trouble: str | None = None

    @property
    def passed(self) -> bool:
        """Whether the service level is held by steady throughput."""
        return self.trouble is None and self.throughput is not None and all(b.holds for b in self.bounds.values())

    @property
    def unmeasured(self) -> bool:
        """Whether nothing speaks against the load, and yet the run was too short for a steady throughput."""
        return self.trouble is None and self.throughput is None and all(b.holds for b in self.bounds.values())

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the probe does not pass, one phrase each."""
        found = [self.trouble] if self.trouble is not None else []
        for name, bound in self.bounds.items():
            if not bound.holds:
                found.append(f"{name} {bound.value:.4g} {'below' if bound.at_least else 'above'} {bound.limit:g}")
        if not found and self.throughput is None:
            found.append("the run has no steady window")
        return tuple(found)


class Outcome(StrEnum):
    """How a search ended. Only the first two come with a throughput, the second as a lower bound."""

    ATTAINED = "attained"
    ALL_PASS = "all pass (bound)"
    NOT_ATTAINABLE = "not attainable"


@dataclass(frozen=True, slots=True)
class Flag:
    """What a reader must know before believing a knee."""

    name: str  # "cliff", "non-monotone", "within noise"
    message: str


@dataclass(frozen=True, slots=True)
class Finding:
    """The end of a search. ``best`` is the passing load with the largest throughput; None where none passes."""

    outcome: Outcome
    reason: str
    max_pass: float | None
    first_fail: float | None  # the smallest load that fails
    best: float | None
    flags: tuple[Flag, ...] = field(default=())


def next_load(space: Space, verdicts: Mapping[float, bool]) -> float | None:
    """The load to probe next, None when the search has ended. ``verdicts`` says of each probed load if it passed.

    From the start by doubling, until loads fail; where nothing passes, from the start by halving; then bisection
    between the largest load that passes and the smallest above it that fails.
    """
    failures = 0
    for load in space.upward():
        if load not in verdicts:
            return load
        failures = 0 if verdicts[load] else failures + 1
        if failures > space.beyond:
            break
    if not any(verdicts.values()):
        return next((load for load in space.downward() if load not in verdicts), None)
    bracket = _bracket(verdicts)
    return None if bracket is None else _middle(space, *bracket)


def _bracket(verdicts: Mapping[float, bool]) -> tuple[float, float] | None:
    """The largest load that passes and the smallest above it that fails; None where nothing above it fails."""
    top = max(load for load, passed in verdicts.items() if passed)
    above = [load for load in verdicts if load > top]
    return (top, min(above)) if above else None


def _middle(space: Space, low: float, high: float) -> float | None:
    if space.whole:
        return space.rounded((low + high) / 2) if high - low > 1 else None
    middle = space.rounded(math.sqrt(low * high))
    return middle if high / low - 1 > space.tolerance and low < middle < high else None


def conclude(space: Space, probes: Sequence[Probe]) -> Finding:
    """What the probes of an ended search say, in any order. A number is given only for a load that holds the level."""
    ordered = sorted(probes, key=lambda probe: probe.load)
    passing = [probe for probe in ordered if probe.passed]
    failing = [probe for probe in ordered if not probe.passed]
    if not passing:
        return Finding(
            Outcome.NOT_ATTAINABLE,
            _nearest(space, failing),
            max_pass=None,
            first_fail=failing[0].load if failing else None,
            best=None,
            flags=tuple(_inversions(ordered)),
        )
    top = passing[-1]
    above = [probe for probe in failing if probe.load > top.load]
    best = max(passing, key=lambda probe: probe.throughput or 0.0)
    flags = [*_inversions(ordered), *_noise(top, above)]
    if above:
        flags += _cliffs(top, above[0])
        outcome, reason = Outcome.ATTAINED, f"fails at {above[0].load:g}: {'; '.join(above[0].reasons)}"
    else:
        outcome, reason = Outcome.ALL_PASS, f"still held at {top.load:g}, the largest load asked for"
    if best is not top:
        reason += f"; throughput is largest at {best.load:g}"
    return Finding(
        outcome,
        reason,
        max_pass=top.load,
        first_fail=failing[0].load if failing else None,
        best=best.load,
        flags=tuple(flags),
    )


def _nearest(space: Space, failing: Sequence[Probe]) -> str:
    """Why nothing passes, in the words of the probe that came nearest."""
    if not failing:
        return "no load was probed"

    def miss(probe: Probe) -> tuple[bool, float]:
        over = [b.limit / b.value if b.at_least else b.value / b.limit for b in probe.bounds.values() if b.value > 0]
        return probe.trouble is not None, max(over, default=math.inf)

    nearest = min(failing, key=miss)
    seen = f"{min(p.load for p in failing):g} to {max(p.load for p in failing):g}"
    unit = "users" if space.whole else "requests/s"
    return f"no load from {seen} {unit} holds it, nearest {nearest.load:g}: {'; '.join(nearest.reasons)}"


def _inversions(ordered: Sequence[Probe]) -> Iterator[Flag]:
    """Loads that pass above ones that fail, and figures that get better with load by more than noise."""
    found: list[str] = []
    for lower, upper in pairwise(ordered):
        if upper.passed and not lower.passed:
            found.append(f"{upper.load:g} passes and {lower.load:g} does not")
        for name in lower.bounds.keys() & upper.bounds.keys():
            before, after = lower.bounds[name], upper.bounds[name]
            if before.worse_than(after) > RISE and not _overlap(before, after):
                found.append(f"{name} is {before.value:.4g} at {lower.load:g} and {after.value:.4g} at {upper.load:g}")
    if found:
        yield Flag("non-monotone", "; ".join(sorted(set(found))))


def _overlap(one: Bound, other: Bound) -> bool:
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return False
    return one.low <= other.high and other.low <= one.high


def _noise(top: Probe, above: Sequence[Probe]) -> Iterator[Flag]:
    """Whether the verdict at either side of the knee could have gone the other way."""
    found = [
        f"{name} at {probe.load:g}: {bound.value:.4g} in [{bound.low:.4g}, {bound.high:.4g}]"
        for probe in (top, *above[:1])
        for name, bound in probe.bounds.items()
        if bound.close
    ]
    if found:
        yield Flag("within noise", f"the limit lies inside the interval: {'; '.join(found)}")


def _cliffs(last: Probe, first: Probe) -> Iterator[Flag]:
    """Whether the level is lost by a jump: a figure gets worse, or throughput falls, faster than the load explains."""
    growth = first.load / last.load
    found = []
    for name in last.bounds.keys() & first.bounds.keys():
        worse = first.bounds[name].worse_than(last.bounds[name])
        if worse > CLIFF * growth:
            found.append(f"{name} gets {worse:.3g} times worse")
    if last.throughput and (first.throughput is None or first.throughput * CLIFF < last.throughput):
        after = "gone" if first.throughput is None else f"{first.throughput:.4g}"
        found.append(f"throughput {last.throughput:.4g} becomes {after}")
    if found:
        yield Flag("cliff", f"from {last.load:g} to {first.load:g}: {'; '.join(sorted(found))}")
