"""What a sweep shows while it works: a live table of the newest cells on a terminal, one line a cell elsewhere."""

from __future__ import annotations

import sys
import time
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from specbench.sweep_time import in_words

ROWS = 12  # of the live table
STYLES = {"ok": "", "failed": "red"}


class SweepScreen:
    """Follows a sweep on stderr, so that stdout holds the result alone. ``plan`` is a `specbench.sweep.SweepPlan`."""

    def __init__(self, plan: Any, console: Console | None = None) -> None:
        self._plan = plan
        self._console = console or Console(file=sys.stderr)
        self._total = len(plan.left)
        self._left_s: float = plan.estimates.total(plan.left)
        self._done: list[Any] = []
        self._current = ""
        self._start_s = time.monotonic()
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal and self._total:
            self._live = Live(self._view(), console=self._console, transient=True, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def step(self, text: str) -> AbstractContextManager[object]:
        """A long step between the cells."""
        self._now(text)
        return nullcontext()

    def started(self, cell: Any) -> None:
        """A cell is about to be measured."""
        self._now(self._plan.label(cell))

    def progress(self, cell: Any, drive: Any) -> None:
        """How far it is."""
        self._now(f"{self._plan.label(cell)}: turn {drive.done} of {drive.total}, {drive.tokens} tokens")

    def finished(self, outcome: Any) -> None:
        """A cell has its record."""
        self._done.append(outcome)
        self._left_s = max(self._left_s - self._plan.estimates.seconds(outcome.cell), 0.0)
        if self._live is not None:
            self._live.update(self._view())
            return
        parts = [f"[{len(self._done)}/{self._total}] {self._plan.label(outcome.cell)}: {outcome.record.status}"]
        named = zip(("tau", "tok/s", "speed-up"), _numbers(outcome.record))
        parts += [f"{name} {value}" for name, value in named if value]
        if outcome.error is not None:
            parts.append(outcome.error)
        self.say(", ".join(parts))

    def say(self, text: str) -> None:
        """A remark that stays."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _now(self, text: str) -> None:
        self._current = text
        if self._live is not None:
            self._live.update(self._view())

    def _view(self) -> Group:
        table = Table(box=None, pad_edge=False)
        for name in ("cell", "status", "tau", "tok/s", "speed-up", "lossless"):
            table.add_column(name, justify="left" if name in ("cell", "status", "lossless") else "right")
        for outcome in self._done[-ROWS:]:
            record = outcome.record
            verdict = record.verdict.outcome if record.verdict is not None else "-"
            numbers = [value or "-" for value in _numbers(record)]
            cells = [self._plan.label(outcome.cell), record.status, *numbers, verdict]
            table.add_row(*(Text(cell) for cell in cells), style=STYLES.get(record.status, ""))
        spent = in_words(time.monotonic() - self._start_s)
        head = f"{len(self._done)} of {self._total} cells, {spent}, about {in_words(self._expected_s())} left"
        return Group(table, Text(head, style="bold"), Text(self._current, style="dim"))

    def _expected_s(self) -> float:
        """What is left by the plan's estimate, scaled by how the cells so far have kept to it."""
        planned: float = sum(self._plan.estimates.seconds(outcome.cell) for outcome in self._done)
        if not planned:
            return self._left_s
        return self._left_s * (time.monotonic() - self._start_s) / planned


def _numbers(record: Any) -> tuple[str, str, str]:
    """Accepted length, speed and speed-up over the whole cell; empty where there is none."""
    from specbench.report import numbers

    gain = numbers.gain(record).partition(" ")[0]  # without its interval
    found = (numbers.number(record.find("tau")), numbers.decode_speed(record), gain)
    tau, speed, gain = ("" if text == numbers.ABSENT else text for text in found)
    return tau, speed, gain
