"""Sequential temperature scaling: one temperature a draft position, fitted left to right (DSpark, arXiv 2607.05147).

With the temperatures of earlier positions fixed, position k takes the one from a grid that gives the running product
of the scaled confidences up to k the lowest expected calibration error against "the first k drafts were accepted".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specbench.metrics._measured import Flags, Floats
from specbench.metrics._scores import BINS, ece

CLAMP = 1e-8  # confidences are kept this far from 0 and 1 before their logit is taken
GRID = tuple(float(t) for t in np.geomspace(0.1, 10.0, 81))
"""Log-spaced temperatures; 1 is one of them, so that a fit never does worse than no fit on its own data."""


@dataclass(frozen=True, slots=True)
class TemperatureFit:
    """Chosen temperatures, and the error of every grid value at every position."""

    temperatures: tuple[float, ...]  # G
    curves: tuple[tuple[float, ...], ...]  # G x grid
    ece_before: tuple[float | None, ...]  # G; None where no sample counts
    ece_after: tuple[float | None, ...]  # G
    samples: tuple[int, ...]  # G


def logits(confidence: Floats) -> Floats:
    """Log-odds of confidences cut to [CLAMP, 1 - CLAMP]."""
    cut = np.clip(np.nan_to_num(np.asarray(confidence, dtype=np.float64)), CLAMP, 1 - CLAMP)
    return np.asarray(np.log(cut) - np.log1p(-cut), dtype=np.float64)


def scaled(log_odds: Floats, temperature: float | Floats) -> Floats:
    """Confidences after dividing the log-odds by a temperature."""
    return np.asarray(1.0 / (1.0 + np.exp(-log_odds / temperature)), dtype=np.float64)


def survival(log_odds: Floats, temperatures: Floats) -> Floats:
    """[N, G]: running product of the scaled confidences."""
    return np.asarray(np.cumprod(scaled(log_odds, temperatures), axis=1), dtype=np.float64)


def fit(
    log_odds: Floats,
    accepted: NDArray[np.bool_],
    *,
    valid: Flags | None = None,
    grid: tuple[float, ...] = GRID,
    bins: int = BINS,
) -> TemperatureFit:
    """Fit one temperature a position.

    Args:
        log_odds: [N, G] of the raw confidences.
        accepted: [N, G], the draft and all before it were accepted.
        valid: [N, G], the position counts; None where all do. A position that never counts keeps temperature 1.
        grid: temperatures to try; the first of several best ones is taken.
        bins: equal-width bins of the expected calibration error.
    """
    counts = np.ones(log_odds.shape, dtype=bool) if valid is None else valid
    before_product = np.ones(log_odds.shape[0])
    raw = survival(log_odds, np.ones(log_odds.shape[1]))
    chosen: list[float] = []
    curves: list[tuple[float, ...]] = []
    before: list[float | None] = []
    after: list[float | None] = []
    samples: list[int] = []
    for k in range(log_odds.shape[1]):
        use = counts[:, k]
        samples.append(int(use.sum()))
        if not use.any():
            chosen.append(1.0)
            curves.append(())
            before.append(None)
            after.append(None)
            continue
        outcome = accepted[use, k]
        curve = [
            _error(before_product[use] * scaled(log_odds[use, k], temperature), outcome, bins) for temperature in grid
        ]
        best = int(np.argmin(curve))
        chosen.append(grid[best])
        curves.append(tuple(curve))
        before.append(_error(raw[use, k], outcome, bins))
        after.append(curve[best])
        before_product = before_product * scaled(log_odds[:, k], grid[best])
    return TemperatureFit(tuple(chosen), tuple(curves), tuple(before), tuple(after), tuple(samples))


def _error(forecast: Floats, outcome: Flags, bins: int) -> float:
    found = ece(forecast, outcome, bins=bins)
    assert found is not None, "there are samples"
    return found
