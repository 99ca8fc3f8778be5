"""Intervals that a table of sums cannot give: percentiles over resampled prompts, and spread from run to run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from specbench.metrics._bootstrap import RESAMPLES, SEED, _weights
from specbench.metrics._measured import Floats, Ints

RUN_TO_RUN = "run to run"
_COVERAGE = 0.95


def resampled_percentile(
    values: ArrayLike, cluster: Ints, *, percent: float, clusters: int, seed: int = SEED
) -> Floats:
    """[RESAMPLES], the percentile of values [N] when their clusters (0..clusters-1, [N]) are drawn with replacement.

    Linear between order statistics, a cluster drawn twice counting twice; NaN where a resample holds no value. Calls
    with the same ``clusters`` and seed draw the same ones, so that two arms over one set of prompts stay paired.
    """
    given = np.asarray(values, dtype=np.float64)
    if given.size == 0:
        return np.full(RESAMPLES, np.nan)
    order = np.argsort(given, kind="stable")
    ordered = given[order]
    ends = np.cumsum(_weights(clusters, seed)[:, cluster[order]], axis=1, dtype=np.int64)  # [RESAMPLES, N]
    place = (ends[:, -1] - 1) * (percent / 100)
    below = np.floor(np.maximum(place, 0))
    low = ordered[_first_beyond(ends, below)]
    high = ordered[_first_beyond(ends, np.minimum(below + 1, ends[:, -1] - 1))]
    found: Floats = np.where(ends[:, -1] > 0, low + (place - below) * (high - low), np.nan)
    return found


def _first_beyond(ends: Ints, rank: Floats) -> Ints:
    """[R], the first column of ends [R, N] that is greater than rank [R]; the last where none is."""
    index: Ints = np.minimum((ends <= rank[:, None]).sum(axis=1), ends.shape[1] - 1)
    return index


def percentile_bounds(values: Floats) -> tuple[float, float] | None:
    """The 95 % interval of resampled values; None where most are undefined."""
    defined = values[np.isfinite(values)]
    if len(defined) < RESAMPLES // 2:
        return None
    low, high = np.percentile(defined, (2.5, 97.5))
    return float(low), float(high)


def run_to_run(values: Sequence[float]) -> tuple[float, float] | None:
    """Student's 95 % interval of the mean over independent runs; None with fewer than two."""
    from scipy.special import stdtrit

    if len(values) < 2:
        return None
    mean, spread = float(np.mean(values)), float(np.std(values, ddof=1)) / np.sqrt(len(values))
    half = float(stdtrit(len(values) - 1, (1 + _COVERAGE) / 2)) * float(spread)
    return mean - half, mean + half


def run_to_run_ratio(values: Sequence[float]) -> tuple[float, tuple[float, float] | None] | None:
    """Geometric mean of positive ratios, one a run, with its interval; None without any or if one is not positive."""
    if not values or any(not np.isfinite(value) or value <= 0 for value in values):
        return None
    logs = [float(np.log(value)) for value in values]
    bounds = run_to_run(logs)
    mean = float(np.exp(np.mean(logs)))
    return mean, None if bounds is None else (float(np.exp(bounds[0])), float(np.exp(bounds[1])))


def contrast(ours: Floats, theirs: Floats, function: Callable[[Floats, Floats], Floats]) -> tuple[float, float] | None:
    """The interval of a function of two arms' resampled values [R], paired by resample."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return percentile_bounds(function(ours, theirs))
