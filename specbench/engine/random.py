"""The step's random numbers: one counter-based stream per (seed, request, anchor, offset, purpose)."""

from __future__ import annotations

from torch import Tensor

from specbench.kernels.rng import Purpose, uniform
from specbench.types import Rows


class StepRandom:
    """Draws for the rows of a step; ``rows.lengths`` is the anchor's position, which moves every round."""

    def draft(self, rows: Rows, offsets: int) -> Tensor:
        """[B, offsets] float64 in [0, 1), for sampling drafts."""
        return uniform(rows.seed, rows.number, rows.lengths, offsets=offsets, purpose=Purpose.DRAFT)

    def accept(self, rows: Rows, offsets: int) -> Tensor:
        """[B, offsets] float64 in [0, 1), for judging drafts."""
        return uniform(rows.seed, rows.number, rows.lengths, offsets=offsets, purpose=Purpose.ACCEPT)

    def next(self, rows: Rows) -> Tensor:
        """[B] float64 in [0, 1), for the correction or bonus token."""
        return uniform(rows.seed, rows.number, rows.lengths, offsets=1, purpose=Purpose.NEXT)[:, 0]
