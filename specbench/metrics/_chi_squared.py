"""Chi-squared tests on token counts, their power, and Holm's correction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from specbench.metrics._measured import Floats, Ints

MIN_EXPECTED = 5.0  # smallest expected count of a bin (Cochran 1954)
MAX_BINS = 32


@dataclass(frozen=True, slots=True)
class ChiSquared:
    """Outcome of one test. ``effective_n`` is n for one sample and n1 n2 / (n1 + n2) for two."""

    statistic: float
    degrees: int
    p_value: float
    effective_n: float


def _survival(statistic: float, degrees: int) -> float:
    from scipy.stats import chi2

    return float(chi2.sf(statistic, degrees)) if degrees > 0 else 1.0


def merge_small(sizes: Floats, *, minimum: float, max_bins: int = MAX_BINS) -> Ints:
    """[V], the bin of each category: the largest keep their own, the tail is merged until each bin has ``minimum``.

    ``sizes`` [V] are expected (one sample) or pooled (two samples) counts. Categories of size zero join the last bin.
    """
    order = np.argsort(-sizes, kind="stable")
    bins = np.zeros(len(sizes), dtype=np.int64)
    current, filled = 0, 0.0
    for category in order:
        bins[category] = current
        filled += float(sizes[category])
        if filled >= minimum and current < max_bins - 1:
            current, filled = current + 1, 0.0
    if 0 < filled < minimum or filled == 0:
        bins[bins == current] = max(current - 1, 0)
    return bins


def one_sample(counts: ArrayLike, probabilities: ArrayLike) -> ChiSquared:
    """Pearson's test of counts [V] against known probabilities [V], categories with few expected counts merged.

    A count where the probability is zero is impossible: p = 0 and an infinite statistic.
    """
    observed = np.asarray(counts, dtype=np.float64)
    expected = np.asarray(probabilities, dtype=np.float64)
    expected = expected / expected.sum() * observed.sum()
    if (observed[expected == 0] > 0).any():
        return ChiSquared(float("inf"), int((expected > 0).sum()) - 1, 0.0, float(observed.sum()))
    bins = merge_small(expected, minimum=MIN_EXPECTED, max_bins=len(expected))
    seen, wanted = np.bincount(bins, weights=observed), np.bincount(bins, weights=expected)
    statistic = float(((seen - wanted) ** 2 / wanted)[wanted > 0].sum())
    degrees = int((wanted > 0).sum()) - 1
    return ChiSquared(statistic, degrees, _survival(statistic, degrees), float(observed.sum()))


def two_sample(first: Sequence[int], second: Sequence[int]) -> ChiSquared | None:
    """Test that two lists of token ids come from one distribution; rare tokens are merged. None without data.

    Bins are chosen on the pooled counts, so that no expected count falls below the minimum in the smaller sample.
    """
    n1, n2 = len(first), len(second)
    if n1 == 0 or n2 == 0:
        return None
    tokens, index = np.unique(np.array([*first, *second], dtype=np.int64), return_inverse=True)
    one = np.bincount(index[:n1], minlength=len(tokens)).astype(np.float64)
    two = np.bincount(index[n1:], minlength=len(tokens)).astype(np.float64)
    bins = merge_small(one + two, minimum=MIN_EXPECTED * (n1 + n2) / min(n1, n2))
    a, b = np.bincount(bins, weights=one), np.bincount(bins, weights=two)
    pooled = (a + b) / (n1 + n2)
    statistic = float(((a - n1 * pooled) ** 2 / (n1 * pooled)).sum() + ((b - n2 * pooled) ** 2 / (n2 * pooled)).sum())
    degrees = len(pooled) - 1
    return ChiSquared(statistic, degrees, _survival(statistic, degrees), n1 * n2 / (n1 + n2))


def power(*, effective_n: float, degrees: int, level: float, total_variation: float) -> float:
    """Chance that the test rejects when the binned distributions differ by ``total_variation``.

    Noncentral chi-squared; the noncentrality is the smallest that such an error can have: with sum |d| = 2 TV the
    Cauchy-Schwarz inequality gives n sum d^2 / p >= 4 n TV^2.
    """
    from scipy.stats import chi2, ncx2

    if degrees < 1:
        return 0.0
    noncentrality = 4.0 * effective_n * total_variation**2
    return float(ncx2.sf(chi2.isf(level, degrees), degrees, noncentrality)) if noncentrality else level


def needed_n(*, degrees: int, level: float, total_variation: float, wanted_power: float) -> int:
    """The smallest effective n with at least the wanted power."""
    low, high = 1, 2

    def enough(n: int) -> bool:
        return power(effective_n=n, degrees=degrees, level=level, total_variation=total_variation) >= wanted_power

    while not enough(high):
        low, high = high, high * 2
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return low


def holm(p_values: Sequence[float], *, level: float) -> list[bool]:
    """Which hypotheses Holm's step-down procedure (1979) rejects, in the order given."""
    rejected = [False] * len(p_values)
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        if p_values[index] > level / (len(p_values) - rank):
            break
        rejected[index] = True
    return rejected
