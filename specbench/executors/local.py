"""In this process, one group after the other: on one machine anything else would disturb the timings."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from specbench.sweep_plan import Group

Work = Callable[[Group], None]


class LocalExecutor:
    """Needs no pool: nothing is sent, and records are written as they come."""

    name = "local"

    def run(self, groups: Iterable[Group], *, work: Work, stop: Callable[[], bool]) -> None:
        """Do ``work`` for every group in this order, until ``stop`` says so."""
        for group in groups:
            if stop():
                return
            work(group)


PLUGIN = LocalExecutor
