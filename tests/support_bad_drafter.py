"""Drafters that break in the middle of a run, as another distribution might bring them."""

from __future__ import annotations

from specbench_drafters.vanilla import VanillaDrafter


class BreakingDrafter(VanillaDrafter):
    """Raises in its third round."""

    trained_length = 2

    def __init__(self) -> None:
        self.rounds = 0

    def propose(self, rows, *, limits, rng):
        self.rounds += 1
        if self.rounds == 3:
            raise ZeroDivisionError("the drafter\nbroke")
        return super().propose(rows, limits=limits, rng=rng)


class BreakingBaseline(VanillaDrafter):
    """Plain decoding that raises at its first commit."""

    def commit(self, rows, *, verdict, features):
        raise RuntimeError("no commit")


PLUGIN = BreakingDrafter
