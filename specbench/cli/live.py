"""What a run shows while it works: one bar with speed and time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class LiveProgress:
    """Follows a run on stderr, so that stdout holds the result alone."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(file=sys.stderr)
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def step(self, text: str) -> AbstractContextManager[object]:
        """A long step before or between the cells."""
        from specbench.resolve import rich_step

        return rich_step(text)

    def update(self, event: Any) -> None:
        """How far the run is (a `specbench.runner.RunProgress`)."""
        if not self._console.is_terminal:
            return
        if self._bar is None:
            columns = (
                TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
                TextColumn("{task.fields[speed]}"), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
            )  # fmt: skip
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._task = self._bar.add_task("", total=event.total_turns, speed="")
            self._bar.start()
        assert self._task is not None, "the task is made with the bar"
        speed = f"{event.tokens / event.elapsed_s:.0f} tok/s" if event.elapsed_s > 0 else ""
        text = f"{event.label} (cell {event.cell + 1} of {event.cells})"
        self._bar.update(self._task, completed=event.done_turns, description=text, speed=speed)

    def warn(self, text: str) -> None:
        """Something that the user should know before the numbers come."""
        self._console.print(f"warning: {text}", markup=False, highlight=False, soft_wrap=True)

    def finished(self, result: Any) -> None:
        """A cell has ended (a `specbench.runner.CellResult`): one line of it, above the bar."""
        from specbench.report import numbers

        tau, speed = result.record.find("tau"), numbers.decode_speed(result.record)
        parts = [f"{result.label}: {result.record.status}"]
        if tau is not None:
            parts.append(f"tau {tau.value:.2f}")
        if speed != numbers.ABSENT:
            parts.append(f"{speed} tok/s")
        self._console.print(", ".join(parts), markup=False, highlight=False, soft_wrap=True)

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
