"""Gamma arrivals: a rate with a chosen irregularity, from nearly even spacing to clumps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

from pydantic import Field

from specbench.workloads._draws import Draws
from specbench.workloads._options import LoadOptions
from specbench.workloads._timed import TimedArrivals


class GammaOptions(LoadOptions):
    """``rate``: requests a second on average. ``cv``: standard deviation of a gap over its mean; 1 is Poisson."""

    rate: Annotated[float, Field(gt=0)]
    cv: Annotated[float, Field(ge=0.01, le=100)]


class Gamma(TimedArrivals):
    """Gaps are independent and gamma-distributed: shape 1 / cv^2, mean 1 / rate; the first begins with the load."""

    Options: ClassVar[type[GammaOptions]] = GammaOptions

    def __init__(self, *, concurrency: int, options: GammaOptions, seed: int) -> None:
        super().__init__(_times_s(options, Draws(seed, purpose="gamma arrivals")))


def _times_s(options: GammaOptions, draws: Draws) -> Iterator[float]:
    shape = options.cv**-2
    at_s = 0.0
    while True:
        at_s += draws.gamma(shape) / (shape * options.rate)
        yield at_s


PLUGIN = Gamma
