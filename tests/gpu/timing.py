"""Honest times: warm-up first, device events, medians with their spread, repeats within a budget."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch


class Budget:
    """Seconds that may be spent from now on."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._start = time.monotonic()

    def left(self) -> float:
        """Seconds that remain; negative when they are overdrawn."""
        return self.seconds - (time.monotonic() - self._start)

    def share(self, part: float) -> Budget:
        """A budget of ``part`` of what is left."""
        return Budget(max(self.left(), 0.0) * part)


@dataclass(frozen=True, slots=True)
class Timing:
    """``median_s`` of ``repeats``; ``spread`` is their interquartile range over the median."""

    median_s: float
    spread: float
    repeats: int

    @property
    def median_ms(self) -> float:
        """The median in milliseconds."""
        return self.median_s * 1e3


def summary(seconds: Sequence[float]) -> Timing:
    """Median and spread of repeats; a single one has no spread, which reads as 0."""
    median = statistics.median(seconds)
    if len(seconds) < 2:
        return Timing(median, 0.0, len(seconds))
    low, _, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return Timing(median, (high - low) / median if median else 0.0, len(seconds))


def timed(
    call: Callable[[], object],
    *,
    device: torch.device,
    budget: Budget,
    warmup: int = 3,
    repeats: int = 20,
    least: int = 3,
) -> Timing:
    """Time ``call``, repeat by repeat, between events on the device (on a CPU: by the clock).

    ``warmup`` calls are not counted. What the last of them takes decides how many repeats the budget holds, at least
    ``least`` in any case.
    """
    for _ in range(max(warmup - 1, 0)):
        call()
    wait(device)
    start = time.perf_counter()
    call()
    wait(device)
    once = max(time.perf_counter() - start, 1e-7)
    count = max(least, min(repeats, int(max(budget.left(), 0.0) / once)))
    if device.type != "cuda":
        return summary([_by_clock(call) for _ in range(count)])
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    marks[0].record()
    for mark in marks[1:]:
        call()
        mark.record()
    wait(device)
    return summary([a.elapsed_time(b) / 1e3 for a, b in pairwise(marks)])


def _by_clock(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def wait(device: torch.device) -> None:
    """Until the device has done all that was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
