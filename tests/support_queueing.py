"""A single server with constant service under Poisson arrivals: the scripted backend against Khinchin's formula."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from specbench.api import Arrivals
from specbench.backends.scripted import Script, ScriptedBackend
from specbench.engine.clock import VirtualClock
from specbench.types import Prompt, Request, Sampling
from specbench.workloads.driver import drive
from specbench.workloads.patterns import open_load

SERVICE_S = 0.25
LEVEL = 0.99
_SAMPLING = Sampling()
_NONE: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Check:
    """The mean wait at one load, from independent runs, against rho S / (2 (1 - rho)). Half-widths are of 99 %."""

    load: float
    runs: int
    customers: int  # of each run, start-up included
    start_up: int  # how many of them are cut
    theory_s: float
    mean_s: float
    half_width_s: float
    plain_mean_s: float
    plain_half_width_s: float

    @property
    def relative_half_width(self) -> float:
        """Half-width over the expected wait."""
        return self.half_width_s / self.theory_s

    @property
    def agrees(self) -> bool:
        """Whether both intervals hold the expected wait."""
        plain = abs(self.plain_mean_s - self.theory_s) <= self.plain_half_width_s
        return plain and abs(self.mean_s - self.theory_s) <= self.half_width_s


def expected_wait_s(load: float, *, service_s: float = SERVICE_S) -> float:
    """Mean wait of M/D/1 before service: rho S / (2 (1 - rho)) (Khinchin 1932)."""
    return load * service_s / (2 * (1 - load))


def _build(prompt: Prompt, answers: Sequence[tuple[int, ...]]) -> Request:
    return Request(prompt.id, 0, (1,), 1, _SAMPLING, 0, _NONE, True, "queue", "queue")


def run_queue(
    load: float,
    *,
    customers: int,
    seed: int,
    slower: float = 1.0,
    through: Callable[[Arrivals], Arrivals] = lambda arrivals: arrivals,
) -> tuple[np.ndarray, np.ndarray]:
    """Recorded arrivals and waits [customers] in seconds, from the driver, Poisson arrivals and the scripted backend.

    ``slower`` stretches the service and ``through`` wraps the arrivals: faults that a check must see.
    """
    clock = VirtualClock()
    arrivals = open_load("poisson", concurrency=1, options={"rate": load / SERVICE_S}, seed=seed)
    outcome = drive(
        ScriptedBackend(Script(prefill_s=SERVICE_S * slower, max_rows=1), clock=clock),
        conversations=[Prompt(str(i), "queue", "queue", ("",)) for i in range(customers)],
        build=_build,
        arrivals=through(arrivals),
        clock=clock,
    )
    requests = outcome.trace.requests
    arrived = np.array([request.arrival_s for request in requests])
    admitted = np.array([request.admitted_s for request in requests], dtype=float)
    assert len(requests) == customers
    assert np.isfinite(admitted).all()
    return arrived, admitted - arrived


def check(load: float, *, runs: int, customers: int, start_up: int, **fault) -> Check:
    """Independent runs with seeds 0, 1, ...; the first ``start_up`` customers of each are cut.

    The mean wait of a run goes with how fast its customers happened to come, whose mean is known exactly: the interval
    is that of the wait at the exact rate, by regression over the runs (a control variate: Lavenberg and Welch,
    Management Science 27, 1981). Beside it stands the plain one, about 1.4 times as wide.
    """
    means, excess = np.empty(runs), np.empty(runs)
    collecting = gc.isenabled()
    gc.disable()  # millions of small objects and no cycles
    try:
        for seed in range(runs):
            arrived, waits = run_queue(load, customers=customers, seed=seed, **fault)
            means[seed] = waits[start_up:].mean()
            gap = (arrived[-1] - arrived[start_up - 1]) / (customers - start_up)
            excess[seed] = gap * load / SERVICE_S - 1.0
    finally:
        if collecting:
            gc.enable()
    mean, half = _at_exact_rate(means, excess)
    plain = _student(runs - 1) * float(means.std(ddof=1)) / math.sqrt(runs)
    return Check(load, runs, customers, start_up, expected_wait_s(load), mean, half, float(means.mean()), plain)


def _student(freedom: int) -> float:
    return float(student.ppf((1 + LEVEL) / 2, freedom))


def _at_exact_rate(means: np.ndarray, excess: np.ndarray) -> tuple[float, float]:
    """Value and half-width of the regression line of ``means`` [R] at an ``excess`` [R] of zero."""
    runs, centred = len(means), excess - excess.mean()
    spread = float(centred @ centred)
    slope = float(centred @ means) / spread
    rest = means - means.mean() - slope * centred
    variance = float(rest @ rest) / (runs - 2) * (1 / runs + float(excess.mean()) ** 2 / spread)
    return float(means.mean()) - slope * float(excess.mean()), _student(runs - 2) * math.sqrt(variance)
