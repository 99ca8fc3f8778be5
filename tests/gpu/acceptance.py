"""Acceptance rates by position, from the DSpark paper's numbers (arXiv 2607.05147), for runs with forced acceptance.

The paper prints each method's conditional acceptance at some positions (figure 2, Qwen3-4B) and its accepted length by
task (table 1). The rates here start at the printed first position and run straight to the one at position 7 that gives
the domain's mean accepted length; where the paper prints position 7 too, it is compared with what was found.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from specbench.report.paper_values import GAMMA, paper_values

DOMAIN = "math"  # the only domain whose first position is printed for all three methods
TARGET = "Qwen3-4B"
STAND_IN = "eagle3"
"""The paper prints no acceptance of MTP-1 on this target: it is given Eagle3's at position 1, also a single layer's."""


@dataclass(frozen=True, slots=True)
class Rates:
    """``conditional[k]``: draft k is accepted given that all before it were. ``source`` says where they are from."""

    conditional: tuple[float, ...]
    source: str

    @property
    def tau(self) -> float:
        """Tokens a round, the target's own included."""
        return expected_tau(self.conditional)


def expected_tau(conditional: tuple[float, ...]) -> float:
    """1 + sum of the running products."""
    total, alive = 1.0, 1.0
    for rate in conditional:
        alive *= rate
        total += alive
    return total


def paper_rates(method: str, *, draft_length: int, domain: str = DOMAIN) -> Rates:
    """The rates of a method: of ``draft_length`` positions, those beyond the paper's seven like the seventh."""
    if method == "mtp":
        first = _printed(STAND_IN, domain, at=1)
        return Rates((first,) * draft_length, f"figure 2, {domain}: {STAND_IN} at position 1, for want of MTP's own")
    first, tau = _printed(method, domain, at=1), _tau(method, domain)
    last = _solve(first, tau)
    line = tuple(_between(first, last, k) for k in range(GAMMA))
    rates = (*line, *(last,) * max(draft_length - GAMMA, 0))[:draft_length]
    return Rates(rates, f"figure 2, {domain}: {first} at position 1; table 1, {domain}: mean tau {tau:.2f}")


def _between(first: float, last: float, k: int) -> float:
    return first + (last - first) * k / (GAMMA - 1)


def _solve(first: float, tau: float) -> float:
    """The rate at the last position, by bisection: tau grows with it."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        found = expected_tau(tuple(_between(first, middle, k) for k in range(GAMMA)))
        low, high = (middle, high) if found < tau else (low, middle)
    return (low + high) / 2


def _printed(method: str, domain: str, *, at: int) -> float:
    found = [
        value.value
        for value in paper_values()
        if (value.place, value.quantity, value.method, value.domain, value.at)
        == ("Figure 2", "conditional", method, domain, at)
    ]
    assert len(found) == 1, (method, domain, at)
    return found[0]


def _tau(method: str, domain: str) -> float:
    """Mean over the domain's tasks."""
    return statistics.mean(
        value.value
        for value in paper_values()
        if (value.place, value.method, value.target, value.domain) == ("Table 1", method, TARGET, domain)
    )
