"""Waits in a queue: by hand and by Lindley's recursion exactly, by the formula for the mean within an interval."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest
from support_queueing import SERVICE_S, check, run_queue

from specbench.api import Arrivals


@dataclass
class WhenFree:
    """Coordinated omission: real arrivals, whose times a driver does not see and replaces by when the engine was free.

    A driver takes the arrival from `next_s` where that is known, and else from its own clock.
    """

    hidden: Arrivals
    open_loop: bool = True
    think_time_s: float = 0.0
    waiting: int = 0

    def due(self, now_s: float, *, in_flight: int) -> int:
        """Everyone who came while the engine was busy waits unseen; one is let in when it is free."""
        self.waiting += self.hidden.due(now_s, in_flight=in_flight)
        if in_flight or not self.waiting:
            return 0
        self.waiting -= 1
        return 1

    def next_s(self) -> float | None:
        """Known only while nobody waits: then the driver may sleep until the next one."""
        return None if self.waiting else self.hidden.next_s()


@pytest.mark.parametrize(("load", "customers"), [(0.5, 300), (0.8, 500)])
def test_mean_wait_follows_the_formula(load, customers):
    found = check(load, runs=30, customers=customers, start_up=100)
    assert found.agrees
    assert found.relative_half_width < 0.1


def test_the_check_sees_arrival_times_that_were_shifted_to_when_the_engine_was_free():
    found = check(0.8, runs=30, customers=500, start_up=100, through=WhenFree)
    assert found.plain_mean_s < 0.1 * found.theory_s
    assert not found.agrees


def test_the_check_sees_a_slower_server():
    assert not check(0.8, runs=30, customers=500, start_up=100, slower=1.1).agrees


def test_every_wait_is_the_one_of_the_recursion():
    """W(n+1) = max(0, W(n) + S - A(n)) for one server in order of arrival (Lindley, 1952)."""
    arrived, waits = run_queue(0.9, customers=2000, seed=3)
    expected = [0.0]
    for before, after in pairwise(arrived):
        expected.append(max(0.0, expected[-1] + SERVICE_S - (after - before)))
    assert waits.tolist() == pytest.approx(expected, abs=1e-9)
