"""Ctrl-C as a request to finish properly: what was measured so far is written before the process ends."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self


class StopSignal:
    """While entered, the first Ctrl-C (or SIGTERM) only raises the flag; the second acts as it always does.

    Outside the main thread signals cannot be caught, and the flag stays down.
    """

    def __init__(self) -> None:
        self.raised = False
        self._before: dict[signal.Signals, Any] = {}

    def __call__(self) -> bool:
        """Whether to stop."""
        return self.raised

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.raised = True
        self._restore()
