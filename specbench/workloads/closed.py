"""Closed loop: a fixed number of users, each with one outstanding request."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from specbench.workloads._options import LoadOptions


class ClosedOptions(LoadOptions):
    """``think_time_s``: seconds from the end of an answer to the same user's next request, turns included."""

    think_time_s: Annotated[float, Field(ge=0)] = 0.0


class ClosedLoop:
    """``concurrency`` users; a conversation that ends makes room for the next, after the think time if there is one."""

    Options: ClassVar[type[ClosedOptions]] = ClosedOptions
    open_loop: ClassVar[bool] = False

    def __init__(self, *, concurrency: int, options: ClosedOptions | None = None, seed: int = 0) -> None:
        self.users = concurrency
        self.think_time_s = (options or ClosedOptions()).think_time_s

    def due(self, now_s: float, *, in_flight: int) -> int:
        """How many further conversations start now; a user who thinks counts as in flight."""
        return max(self.users - in_flight, 0)

    def next_s(self) -> float | None:
        """Always None: an arrival waits for a completion, not for a time."""
        return None


PLUGIN = ClosedLoop
