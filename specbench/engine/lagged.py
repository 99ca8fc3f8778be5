"""Survivals of earlier cycles on the host, and the capacity that follows from them.

A cycle's one copy to the host brings its scores along. What is decided by them later is then known before anything is
drafted: the size of a captured forward can be chosen by it, which no look at the device could do in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]


@dataclass(slots=True)
class _Cycle:
    row: dict[int, int]  # of each request, by its number
    scores: Tensor | Floats  # [B, G]; on the device until they are told


class LaggedScores:
    """Scores of the last L cycles by request, read L cycles later."""

    def __init__(self, lag: int, *, positions: int) -> None:
        assert lag >= 1, "a cycle's scores are told when it ends"
        self._lag, self._positions = lag, positions
        self._cycles: dict[int, _Cycle] = {}

    def read(self, numbers: Sequence[int], step: int) -> Floats:
        """[B, G] of ``lag`` cycles ago; all ones for a request that was not decoding then."""
        known = np.ones((len(numbers), self._positions))
        cycle = self._cycles.get(step - self._lag)
        if cycle is None:
            return known
        if isinstance(cycle.scores, Tensor):  # nobody told: a loop that does not ask for the reasons of its plans
            cycle.scores = np.array(cycle.scores.tolist(), dtype=np.float64)
        pairs = [(row, cycle.row[number]) for row, number in enumerate(numbers) if number in cycle.row]
        if pairs:
            here, there = zip(*pairs, strict=True)
            known[list(here)] = cycle.scores[list(there)]
        return known

    def write(self, numbers: Sequence[int], step: int, scores: Tensor) -> None:
        """Keep ``scores`` [B, G] of this cycle; what no later cycle reads is forgotten."""
        self._cycles = {at: kept for at, kept in self._cycles.items() if at > step - self._lag}
        self._cycles[step] = _Cycle({number: row for row, number in enumerate(numbers)}, scores)

    def tell(self, step: int, scores: Sequence[float]) -> None:
        """The scores written in ``step``, row after row, now that they are on the host."""
        cycle = self._cycles.get(step)
        if cycle is not None:
            cycle.scores = np.array(scores, dtype=np.float64).reshape(len(cycle.row), self._positions)


def best_capacity(scores: Floats, rates: Floats) -> tuple[int, float]:
    """`specbench.kernels.plan.best_capacity` on the host: how many candidates to admit, and the throughput expected."""
    ordered = np.sort(scores, axis=None)[::-1]
    theta = (np.concatenate([[0.0], ordered.cumsum()]) + scores.shape[0]) * rates
    admitted = int(theta.argmax())
    return admitted, float(theta[admitted])
