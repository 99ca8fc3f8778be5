"""Two arms on the same prompts and seeds: differences and ratios, with paired intervals over prompts and over runs.

Each arm is a list of runs; run i of one arm is paired with run i of the other, request by request.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from specbench.metrics._bootstrap import INTERVAL, cluster_sums, interval
from specbench.metrics._emissions import decode_costs
from specbench.metrics._measured import Floats, Ints, clusters, measured
from specbench.metrics._resampled import RUN_TO_RUN, contrast, resampled_percentile, run_to_run, run_to_run_ratio
from specbench.metrics.latency import tpot_s, ttft_s
from specbench.types import Estimate, RequestTrace, RunTrace

Pair = tuple[RequestTrace, RequestTrace]
PAIRED = f"paired {INTERVAL}"


@dataclass(frozen=True, slots=True)
class Contrast:
    """One figure in both arms. ``difference`` is second minus first, ``ratio`` second over first.

    The intervals of both are over prompts; ``difference_runs`` and ``ratio_runs`` are the same from run to run, None
    with fewer than two runs an arm. ``ratio`` is None where the first arm's figure is zero.
    """

    metric: str
    scope: tuple[tuple[str, str], ...]
    unit: str
    first: float
    second: float
    difference: Estimate
    ratio: Estimate | None
    difference_runs: Estimate | None
    ratio_runs: Estimate | None


@dataclass(frozen=True, slots=True)
class Matched:
    """The requests that both arms finished with the same prompt and seed, by run, and how many had no partner."""

    runs: tuple[tuple[Pair, ...], ...]
    columns: tuple[Mapping[tuple[str, int], Columns], ...]  # by run: (request, arm) -> its sums
    alone: tuple[int, int]

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """All of them, run after run."""
        return tuple(pair for run in self.runs for pair in run)


@dataclass(slots=True)
class Columns:
    """What the rounds of one request add up to."""

    rounds: int = 0
    committed: int = 0
    accepted: int = 0
    verified: int = 0
    decode_s: float = 0.0
    decode_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Figure:
    """A quotient of sums over requests, or a percentile of a value per request (``percent``)."""

    metric: str
    unit: str
    better: str  # "higher", "lower" or "neither"
    timing: bool
    top: Callable[[RequestTrace, Columns], float | None]
    bottom: Callable[[RequestTrace, Columns], float] = field(default=lambda request, columns: 1.0)
    percent: int | None = None
    stat: str | None = None

    @property
    def scope(self) -> tuple[tuple[str, str], ...]:
        """The scope of its estimates."""
        return () if self.stat is None else (("stat", self.stat),)


def _percentiles(metric: str, value_of: Callable[[RequestTrace], float | None]) -> tuple[Figure, ...]:
    def top(request: RequestTrace, columns: Columns) -> float | None:
        return value_of(request)

    mean = Figure(metric, "s", "lower", True, top, stat="mean")
    return mean, *(Figure(metric, "s", "lower", True, top, percent=p, stat=f"p{p}") for p in (50, 99))


FIGURES: tuple[Figure, ...] = (
    Figure("tau", "tokens per round", "higher", False, lambda r, c: c.committed, lambda r, c: c.rounds),
    Figure("acceptance_rate", "fraction", "higher", False, lambda r, c: c.accepted, lambda r, c: c.verified),
    Figure("mean_output_tokens", "tokens", "neither", False, lambda r, c: len(r.output_ids)),
    Figure("seconds_per_decode_token", "s/token", "lower", True, lambda r, c: c.decode_s, lambda r, c: c.decode_tokens),
    *_percentiles("ttft", ttft_s),
    *_percentiles("tpot", tpot_s),
)


def match(first: Sequence[RunTrace], second: Sequence[RunTrace]) -> Matched:
    """Pair the measured requests of equally many runs on id, prompt and seed."""
    assert len(first) == len(second), "run i of one arm belongs to run i of the other"
    runs: list[tuple[Pair, ...]] = []
    columns: list[Mapping[tuple[str, int], Columns]] = []
    alone = [0, 0]
    for one, other in zip(first, second):
        theirs = {request.id: request for request in measured(other).requests}
        ours = measured(one).requests
        pairs = tuple((r, theirs[r.id]) for r in ours if _same(r, theirs.get(r.id)))
        alone = [alone[0] + len(ours) - len(pairs), alone[1] + len(theirs) - len(pairs)]
        runs.append(pairs)
        columns.append({(name, arm): found for arm, trace in enumerate((one, other))
                        for name, found in _columns(trace).items()})  # fmt: skip
    return Matched(tuple(runs), tuple(columns), (alone[0], alone[1]))


def _same(ours: RequestTrace, theirs: RequestTrace | None) -> bool:
    return theirs is not None and (ours.prompt_hash, ours.seed) == (theirs.prompt_hash, theirs.seed)


def _columns(trace: RunTrace) -> dict[str, Columns]:
    rounds = measured(trace)
    found: dict[str, Columns] = defaultdict(Columns)
    for request in rounds.requests:
        found[request.id] = Columns()
    for entry in rounds.rounds:
        sums = found[entry.request]
        sums.rounds += 1
        sums.committed += entry.committed
        sums.accepted += entry.accepted
        sums.verified += entry.verified
    for name, (seconds, tokens) in decode_costs(trace, rounds).items():
        found[name].decode_s, found[name].decode_tokens = seconds, tokens
    return dict(found)


def contrasts(matched: Matched, *, timings: bool) -> list[Contrast]:
    """Every figure that both arms have data for; ``timings`` False leaves out what depends on the machine."""
    found = [_contrast(figure, matched) for figure in FIGURES if timings or not figure.timing]
    return [each for each in found if each is not None]


def macro_tau(matched: Sequence[Matched]) -> Contrast | None:
    """The mean over tasks of tau in both arms, the pairs of one task in each of ``matched``; None without pairs in one.

    Intervals are over prompts of all tasks, resampled together, the same ones in both arms.
    """
    figure = FIGURES[0]
    tables = [_table(figure, one) for one in matched]
    if not all(len(table) for table, _, _ in tables):
        return None
    rows = sum(len(table) for table, _, _ in tables)
    wide, cluster = np.zeros((rows, 4 * len(tables))), np.zeros(rows, dtype=np.int64)
    start = shift = 0
    for number, (table, own, _) in enumerate(tables):
        here = slice(start, start + len(table))
        wide[here, 4 * number : 4 * number + 4] = table
        cluster[here] = own + shift
        start, shift = here.stop, shift + int(own.max()) + 1
    sums = cluster_sums(cluster, *wide.T)

    def means(totals: Floats) -> tuple[Floats, Floats]:
        one, other = (totals[:, k::4] / totals[:, k + 1 :: 4] for k in (0, 2))
        return one.mean(axis=1), other.mean(axis=1)

    def estimate(unit: str, function: Callable[[Floats, Floats], Floats]) -> Estimate:
        value = float(function(*means(sums.sum(axis=0, keepdims=True)))[0])
        bounds = interval(sums, lambda totals: function(*means(totals)))
        low, high = bounds if bounds is not None else (None, None)
        named = PAIRED if bounds is not None else None
        return Estimate(figure.metric, value, unit, rows, "requests in both arms", scope, low, high, named)

    scope = (("mean", f"over {len(tables)} tasks"),)
    first, second = (float(each[0]) for each in means(sums.sum(axis=0, keepdims=True)))
    return Contrast(
        metric=figure.metric,
        scope=scope,
        unit=figure.unit,
        first=first,
        second=second,
        difference=estimate(figure.unit, lambda a, b: b - a),
        ratio=estimate("ratio", lambda a, b: b / a),
        difference_runs=None,
        ratio_runs=None,
    )


def _table(figure: Figure, matched: Matched) -> tuple[Floats, Ints, Ints]:
    """[M, 4] tops and bottoms of both arms for the pairs that define the figure in both, their clusters and runs."""
    rows: list[tuple[float, float, float, float]] = []
    members: list[RequestTrace] = []
    numbers: list[int] = []
    for number, run in enumerate(matched.runs):
        for pair in run:
            sums = [matched.columns[number][request.id, arm] for arm, request in enumerate(pair)]
            tops = [figure.top(request, c) for request, c in zip(pair, sums)]
            bottoms = [figure.bottom(request, c) for request, c in zip(pair, sums)]
            if tops[0] is not None and tops[1] is not None and min(bottoms) > 0:
                rows.append((tops[0], bottoms[0], tops[1], bottoms[1]))
                members.append(pair[0])
                numbers.append(number)
    return np.array(rows, dtype=np.float64).reshape(-1, 4), clusters(members), np.array(numbers, dtype=np.int64)


def _contrast(figure: Figure, matched: Matched) -> Contrast | None:
    table, cluster, run = _table(figure, matched)
    if not len(table):
        return None
    first, second = _values(figure, table)
    by_run = [_values(figure, table[run == number]) for number in sorted(set(run.tolist()))]
    spread = _spread(figure, table, cluster)
    count = len(table)

    def estimate(value: float, unit: str, bounds: tuple[float, float] | None, *, runs: bool = False) -> Estimate:
        low, high = bounds if bounds is not None else (None, None)
        named = None if bounds is None else RUN_TO_RUN if runs else PAIRED
        n, n_of = (len(by_run), "runs an arm") if runs else (count, "requests in both arms")
        return Estimate(figure.metric, value, unit, n, n_of, figure.scope, low, high, named)

    repeated = len(by_run) > 1
    steps = [b - a for a, b in by_run]
    quotients = run_to_run_ratio([b / a if a > 0 else 0.0 for a, b in by_run]) if repeated else None
    ratio_bounds = spread(lambda a, b: b / a)
    return Contrast(
        metric=figure.metric,
        scope=figure.scope,
        unit=figure.unit,
        first=first,
        second=second,
        difference=estimate(second - first, figure.unit, spread(lambda a, b: b - a)),
        ratio=estimate(second / first, "ratio", ratio_bounds) if first else None,
        difference_runs=estimate(float(np.mean(steps)), figure.unit, run_to_run(steps), runs=True)
        if repeated
        else None,
        ratio_runs=estimate(quotients[0], "ratio", quotients[1], runs=True) if quotients is not None else None,
    )


def _values(figure: Figure, table: Floats) -> tuple[float, float]:
    """The figure in each arm."""
    if figure.percent is not None:
        one, other = np.percentile(table[:, [0, 2]], figure.percent, axis=0)
        return float(one), float(other)
    sums = table.sum(axis=0)
    return float(sums[0] / sums[1]), float(sums[2] / sums[3])


def _spread(
    figure: Figure, table: Floats, cluster: Ints
) -> Callable[[Callable[[Floats, Floats], Floats]], tuple[float, float] | None]:
    """From a function of the two arms' figures to its interval over resampled prompts, the same ones in both arms."""
    count = int(cluster.max()) + 1
    if figure.percent is None:
        sums = cluster_sums(cluster, *table.T)
        return lambda function: interval(sums, lambda t: function(t[:, 0] / t[:, 1], t[:, 2] / t[:, 3]))
    one, other = (resampled_percentile(table[:, c], cluster, percent=figure.percent, clusters=count) for c in (0, 2))
    return lambda function: contrast(one, other, function) if count > 1 else None
