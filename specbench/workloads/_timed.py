"""What open loops have in common: conversations arrive at given times, whatever became of those before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar


class TimedArrivals:
    """Arrivals at the times of an ascending stream, in seconds since the load began; it may be endless."""

    open_loop: ClassVar[bool] = True
    think_time_s: ClassVar[float] = 0.0

    def __init__(self, times_s: Iterator[float]) -> None:
        self._times_s = times_s
        self._next_s = next(times_s, None)

    def due(self, now_s: float, *, in_flight: int) -> int:
        """How many have arrived by ``now_s`` and were not counted before; what is in flight does not matter."""
        count = 0
        while self._next_s is not None and self._next_s <= now_s:
            count += 1
            self._next_s = next(self._times_s, None)
        return count

    def next_s(self) -> float | None:
        """The next arrival; None after the last."""
        return self._next_s
