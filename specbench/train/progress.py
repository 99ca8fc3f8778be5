"""How far a stage is: what is done of what, how fast, and how long it will take."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Progress:
    """One look at a stage. ``rate`` is in units a second, of this session alone; None before it can be told."""

    stage: str
    unit: str
    done: float
    total: float
    rate: float | None
    elapsed_s: float

    @property
    def left_s(self) -> float | None:
        """Seconds to the end at this rate."""
        return max(self.total - self.done, 0.0) / self.rate if self.rate else None

    def line(self) -> str:
        """For people: ``answers: 96,120 of 2,000,000 tokens, 231 tokens/s, 2 h 17 min left``."""
        text = f"{self.stage}: {self.done:,.0f} of {self.total:,.0f} {self.unit}"
        if self.rate is not None and self.left_s is not None:
            text += f", {self.rate:,.1f} {self.unit}/s, {readable_seconds(self.left_s)} left"
        return text


class Screen(Protocol):
    """Where a stage says what it is about to do and how far it is."""

    def say(self, text: str) -> None:
        """One line that stays."""
        ...

    def show(self, progress: Progress) -> None:
        """The latest progress, which replaces the one before."""
        ...


class Silence:
    """A screen that shows nothing."""

    def say(self, text: str) -> None:
        """Nothing."""

    def show(self, progress: Progress) -> None:
        """Nothing."""


@dataclass(slots=True)
class Meter:
    """Measures one stage. ``before`` units were done by earlier sessions and count as done, but not for the rate."""

    stage: str
    unit: str
    total: float
    screen: Screen
    before: float = 0.0
    now: Callable[[], float] = time.monotonic
    done: float = 0.0  # in this session
    _start: float = field(init=False)

    def __post_init__(self) -> None:
        self._start = self.now()

    def at(self, done: float) -> None:
        """``done`` units of this session are finished."""
        self.done = done
        elapsed = self.now() - self._start
        rate = done / elapsed if done > 0 and elapsed > 0 else None
        self.screen.show(Progress(self.stage, self.unit, self.before + done, self.total, rate, elapsed))


def readable_seconds(seconds: float) -> str:
    """A time as people say it: 40 s, 12 min, 2 h 17 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
