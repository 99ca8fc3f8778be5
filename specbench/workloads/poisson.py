"""Poisson arrivals: independent users, so many that each one's past does not matter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

from pydantic import Field

from specbench.workloads._draws import Draws
from specbench.workloads._options import LoadOptions
from specbench.workloads._timed import TimedArrivals


class PoissonOptions(LoadOptions):
    """``rate``: requests a second on average."""

    rate: Annotated[float, Field(gt=0)]


class Poisson(TimedArrivals):
    """Gaps are independent and exponential with mean 1 / rate; the first gap begins with the load."""

    Options: ClassVar[type[PoissonOptions]] = PoissonOptions

    def __init__(self, *, concurrency: int, options: PoissonOptions, seed: int) -> None:
        super().__init__(_times_s(options.rate, Draws(seed, purpose="poisson arrivals")))


def _times_s(rate: float, draws: Draws) -> Iterator[float]:
    at_s = 0.0
    while True:
        at_s += draws.exponential() / rate
        yield at_s


PLUGIN = Poisson
