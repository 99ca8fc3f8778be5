"""Bursts: several requests at the same moment, then silence until the next burst."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

from pydantic import Field

from specbench.workloads._draws import Draws
from specbench.workloads._options import LoadOptions
from specbench.workloads._timed import TimedArrivals


class BurstOptions(LoadOptions):
    """``rate``: requests a second on average. ``size``: requests of a burst. ``regular``: bursts at equal distances."""

    rate: Annotated[float, Field(gt=0)]
    size: Annotated[int, Field(ge=1)]
    regular: bool = False


class Burst(TimedArrivals):
    """``size`` requests together, rate / size times a second: at the times of a Poisson process, or evenly spaced.

    The first burst comes after the first gap.
    """

    Options: ClassVar[type[BurstOptions]] = BurstOptions

    def __init__(self, *, concurrency: int, options: BurstOptions, seed: int) -> None:
        super().__init__(_times_s(options, Draws(seed, purpose="burst arrivals")))


def _times_s(options: BurstOptions, draws: Draws) -> Iterator[float]:
    gap_s = options.size / options.rate
    at_s = 0.0
    while True:
        at_s += gap_s if options.regular else gap_s * draws.exponential()
        for _ in range(options.size):
            yield at_s


PLUGIN = Burst
