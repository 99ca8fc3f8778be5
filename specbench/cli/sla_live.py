"""What a search shows while it works: a line a finished probe, and on a terminal how far the running one is."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.status import Status


class SlaScreen:
    """Follows a search on stderr, so that stdout holds the result alone."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(file=sys.stderr)
        self._status: Status | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rest()

    def step(self, text: str) -> AbstractContextManager[object]:
        """A long step between the probes."""
        from specbench.resolve import rich_step

        self._rest()
        return rich_step(text)

    def say(self, text: str) -> None:
        """A remark."""
        self._line(f"warning: {text}")

    def progress(self, text: str, drive: Any) -> None:
        """How far the running probe is."""
        if not self._console.is_terminal:
            return
        if self._status is None:
            self._status = self._console.status("")
            self._status.start()
        self._status.update(f"{text}: turn {drive.done} of {drive.total}, {drive.tokens} tokens")

    def finished(self, text: str, record: Any) -> None:
        """A probe's record is written: one line of it."""
        speed, rate = record.find("tokens_per_s_user", stat="mean"), record.find("steady_tokens_per_s")
        parts = [f"{speed.value:.1f} tok/s/user"] if speed is not None else []
        parts += [f"{rate.value:.1f} tok/s"] if rate is not None else []
        self._line(f"{text}: {', '.join([record.status, *parts])}")

    def _line(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _rest(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None
