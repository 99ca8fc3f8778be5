"""Clocks: the wall, and a virtual one for simulated time; and the phase timer of a cycle."""

from __future__ import annotations

import time
from typing import Any

import torch


class WallClock:
    """Monotonic seconds since the clock was made."""

    def __init__(self) -> None:
        self._origin = time.perf_counter()

    def now(self) -> float:
        """Seconds since the origin."""
        return time.perf_counter() - self._origin

    def sleep_until(self, time_s: float) -> None:
        """Return at ``time_s`` or at once when that has passed."""
        wait = time_s - self.now()
        if wait > 0:
            time.sleep(wait)


class PausedClock(WallClock):
    """The wall's seconds between `resume` and `pause`, added up: of one engine that runs in turn with others."""

    def __init__(self) -> None:
        super().__init__()
        self._paused_at: float | None = self._origin

    def now(self) -> float:
        """Seconds that it ran."""
        return (time.perf_counter() if self._paused_at is None else self._paused_at) - self._origin

    def resume(self) -> None:
        """Let time pass."""
        assert self._paused_at is not None, "it runs already"
        self._origin += time.perf_counter() - self._paused_at
        self._paused_at = None

    def pause(self) -> None:
        """Stand still."""
        assert self._paused_at is None, "it stands already"
        self._paused_at = time.perf_counter()


class VirtualClock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        """Virtual seconds since the origin."""
        return self._now

    def sleep_until(self, time_s: float) -> None:
        """Jump to ``time_s`` unless it has passed."""
        self._now = max(self._now, time_s)

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` >= 0 pass."""
        assert seconds >= 0, "time does not run backwards"
        self._now += seconds


class PhaseTimer:
    """Splits a cycle into named phases; a name may come up several times.

    On a CPU a mark is a monotonic time. On a CUDA device it is an event, resolved by `seconds` after the run, so that
    timing never waits for the device.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._last: Any = None

    def start(self) -> list[tuple[str, Any, Any]]:
        """Begin a cycle; the returned list collects its marks."""
        self._last = self._stamp()
        return []

    def mark(self, marks: list[tuple[str, Any, Any]], phase: str) -> None:
        """What ran since the last mark was ``phase``."""
        now = self._stamp()
        marks.append((phase, self._last, now))
        self._last = now

    def _stamp(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def seconds(self, marks: list[tuple[str, Any, Any]]) -> dict[str, float]:
        """Seconds by phase. On CUDA the device must have finished (synchronise once after the run)."""
        total: dict[str, float] = {}
        for phase, start, end in marks:
            spent = start.elapsed_time(end) / 1e3 if self._cuda else end - start
            total[phase] = total.get(phase, 0.0) + spent
        return total
