"""Closed loop: a fixed number of users, each with one outstanding request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """``users`` conversations are in flight at any time; one that ends makes room for the next at once."""

    users: int

    def due(self, now_s: float, *, in_flight: int) -> int:
        """How many further conversations start now."""
        return max(self.users - in_flight, 0)

    def next_s(self) -> float | None:
        """Always None: an arrival waits for a completion, not for a time."""
        return None


def closed_loop(*, concurrency: int) -> ClosedLoop:
    """The load pattern of a run with ``concurrency`` users."""
    return ClosedLoop(concurrency)


PLUGIN = closed_loop
