"""Cluster bootstrap over prompts: percentile intervals of any statistic of per-prompt sums."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specbench.metrics._measured import Floats, Ints, Scope
from specbench.types import Estimate

RESAMPLES = 2000
SEED = 20260101  # fixed: re-reading a record must give the same interval
INTERVAL = "bootstrap over prompts"
_COVERAGE = (2.5, 97.5)


@lru_cache(maxsize=8)
def _weights(clusters: int, seed: int) -> NDArray[np.uint16]:
    """[RESAMPLES, C], how often each of C clusters is drawn in a resample of C."""
    generator = np.random.Generator(np.random.PCG64(seed))
    drawn = generator.multinomial(clusters, np.full(clusters, 1.0 / clusters), size=RESAMPLES)
    return drawn.astype(np.uint16)


def cluster_sums(cluster: Ints, *columns: ArrayLike) -> Floats:
    """[C, K], the sum of each of K columns [N] over the members of each cluster that occurs in ``cluster`` [N]."""
    _, compact = np.unique(cluster, return_inverse=True)
    count = int(compact.max()) + 1 if compact.size else 0
    totals = [np.bincount(compact, weights=np.asarray(c, dtype=np.float64), minlength=count) for c in columns]
    return np.stack(totals, axis=1)


def interval(sums: Floats, statistic: Callable[[Floats], Floats], *, seed: int = SEED) -> tuple[float, float] | None:
    """The 95 % percentile interval of ``statistic`` over resampled clusters (Efron and Tibshirani 1993, ch. 13).

    ``sums`` is [C, K], one row per cluster; ``statistic`` maps resampled totals [R, K] to values [R]. Rows of two arms
    side by side make the comparison paired. None with fewer than two clusters, or where most resamples are undefined.
    """
    if len(sums) < 2:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        values = statistic(_weights(len(sums), seed).astype(np.float64) @ sums)
    values = values[np.isfinite(values)]
    if len(values) < RESAMPLES // 2:
        return None
    low, high = np.percentile(values, _COVERAGE)
    return float(low), float(high)


def _ratio(totals: Floats) -> Floats:
    quotient: Floats = totals[:, 0] / totals[:, 1]
    return quotient


def ratio_estimate(
    metric: str,
    *,
    unit: str,
    numerators: ArrayLike,
    denominators: ArrayLike,
    cluster: Ints,
    n: int,
    n_of: str,
    scope: Scope = (),
) -> list[Estimate]:
    """Pooled sum(numerators [N]) / sum(denominators [N]) with its interval; empty where the denominator is zero."""
    sums = cluster_sums(cluster, numerators, denominators) if len(cluster) else np.zeros((0, 2))
    top, bottom = sums.sum(axis=0)
    if bottom == 0:
        return []
    bounds = interval(sums, _ratio)
    low, high = bounds if bounds is not None else (None, None)
    named = INTERVAL if bounds is not None else None
    return [Estimate(metric, float(top / bottom), unit, n, n_of, scope, low, high, named)]


def mean_estimate(
    metric: str, *, unit: str, values: ArrayLike, cluster: Ints, n_of: str, scope: Scope = ()
) -> list[Estimate]:
    """The plain mean of values [N] with its interval; empty where there are none."""
    ones = np.ones(len(cluster))
    return ratio_estimate(
        metric,
        unit=unit,
        numerators=values,
        denominators=ones,
        cluster=cluster,
        n=len(cluster),
        n_of=n_of,
        scope=scope,
    )
