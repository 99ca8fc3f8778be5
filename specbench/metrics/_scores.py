"""Scores of a probability forecast against what happened: ECE, AUROC, Brier, reliability bins."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specbench.metrics._measured import Floats, Ints

BINS = 20
FINE_BINS = 1000


@dataclass(frozen=True, slots=True)
class Bin:
    """One non-empty bin [low, high) of a reliability curve; the last one includes 1."""

    low: float
    high: float
    forecast: float  # mean
    outcome: float  # mean
    count: int


def _index(forecast: Floats, bins: int) -> Ints:
    return np.minimum((forecast * bins).astype(np.int64), bins - 1)


def reliability(forecast: Floats, outcome: NDArray[np.bool_], *, bins: int = BINS) -> list[Bin]:
    """Equal-width bins of forecasts in [0, 1] with their mean outcome; empty bins are left out."""
    index = _index(forecast, bins)
    counts = np.bincount(index, minlength=bins)
    sums = np.bincount(index, weights=forecast, minlength=bins)
    hits = np.bincount(index, weights=outcome, minlength=bins)
    return [
        Bin(b / bins, (b + 1) / bins, float(sums[b] / counts[b]), float(hits[b] / counts[b]), int(counts[b]))
        for b in np.flatnonzero(counts)
    ]


def ece(forecast: Floats, outcome: NDArray[np.bool_], *, bins: int = BINS) -> float | None:
    """Expected calibration error: mean |forecast - outcome| over bins weighted by count; None without data.

    Source: Naeini et al. 2015, with equal-width bins.
    """
    if len(forecast) == 0:
        return None
    curve = reliability(forecast, outcome, bins=bins)
    return sum(b.count * abs(b.forecast - b.outcome) for b in curve) / len(forecast)


def brier(forecast: Floats, outcome: NDArray[np.bool_]) -> float | None:
    """Mean squared error of the forecast (Brier 1950); None without data."""
    return float(np.mean((forecast - outcome) ** 2)) if len(forecast) else None


def auroc(forecast: Floats, outcome: NDArray[np.bool_]) -> float | None:
    """Probability that a hit has the higher forecast, ties counted half (Mann-Whitney); None with one class."""
    from scipy.stats import rankdata

    hits = int(outcome.sum())
    misses = len(outcome) - hits
    if hits == 0 or misses == 0:
        return None
    ranks = rankdata(forecast)
    return float((ranks[outcome].sum() - hits * (hits + 1) / 2) / (hits * misses))


def auroc_histogram(forecast: Floats, outcome: NDArray[np.bool_], *, bins: int = FINE_BINS) -> float | None:
    """AUROC from equal-width bins, pairs inside one bin counted half (as DeepSpec does); None with one class."""
    index = _index(forecast, bins)
    hits = np.bincount(index[outcome], minlength=bins).astype(np.float64)
    misses = np.bincount(index[~outcome], minlength=bins).astype(np.float64)
    if hits.sum() == 0 or misses.sum() == 0:
        return None
    below = np.cumsum(misses) - misses
    return float((hits * (below + misses / 2)).sum() / (hits.sum() * misses.sum()))
