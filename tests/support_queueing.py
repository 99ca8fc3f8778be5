"""A single server with constant service under Poisson arrivals: the scripted backend against Khinchin's formula."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import gammainc
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
        """Whether the interval holds the expected wait."""
        return abs(self.mean_s - self.theory_s) <= self.half_width_s


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
    """Independent runs, each load with seeds of its own; the first ``start_up`` customers of each are cut.

    A run's mean wait goes with how crowded its arrivals happened to be, and how crowded they are on average is known:
    the interval is that of the wait at average arrivals, by regression over the runs on `crowding` at two lengths
    (control variates: Lavenberg and Welch, Management Science 27, 1981). Beside it stands the plain interval, which
    needs about ten times as many customers to be as narrow.
    """
    means, controls = np.empty(runs), np.empty((runs, 2))
    relaxation = 1 / (1 - load) ** 2  # customers over which a queue forgets, up to a factor
    lengths = [max(1, round(factor * relaxation)) for factor in (0.25, 2.5)]
    assert start_up >= lengths[-1]
    collecting = gc.isenabled()
    gc.disable()  # millions of small objects and no cycles
    try:
        for run in range(runs):
            arrived, waits = run_queue(load, customers=customers, seed=round(1e6 * load) + run, **fault)
            means[run] = waits[start_up:].mean()
            controls[run] = [crowding(arrived, length, load=load, start_up=start_up) for length in lengths]
    finally:
        if collecting:
            gc.enable()
    mean, half = _at_zero(means, controls)
    plain = _student(runs - 1) * float(means.std(ddof=1)) / math.sqrt(runs)
    return Check(load, runs, customers, start_up, expected_wait_s(load), mean, half, float(means.mean()), plain)


def crowding(arrived: np.ndarray, length: int, *, load: float, start_up: int) -> float:
    """By how much work exceeded time over ``length`` customers, on average over the run, relative to its expectation.

    The last m customers bring m S of work in the time G that they took to arrive, a sum of m exponential gaps. The
    expectations of (m S - G)+ are the terms of Spitzer's identity for the mean wait (1956); here from the incomplete
    gamma function. 0 is an average run.
    """
    gaps = arrived[start_up:] - arrived[start_up - length : -length]
    work, rate = length * SERVICE_S, load / SERVICE_S
    below, next_below = gammainc([length, length + 1], work * rate)
    expected = work * below - length / rate * next_below
    return float(np.maximum(work - gaps, 0.0).mean() / expected) - 1.0


def _student(freedom: int) -> float:
    return float(student.ppf((1 + LEVEL) / 2, freedom))


def _at_zero(means: np.ndarray, controls: np.ndarray) -> tuple[float, float]:
    """Value and half-width of the least-squares fit of ``means`` [R] where all ``controls`` [R, C] are zero."""
    design = np.column_stack([np.ones(len(means)), controls])  # [R, 1 + C]
    inverse = np.linalg.inv(design.T @ design)
    fit = inverse @ design.T @ means
    rest = means - design @ fit
    freedom = len(means) - design.shape[1]
    return float(fit[0]), _student(freedom) * math.sqrt(float(rest @ rest) / freedom * inverse[0, 0])
