"""The shape of a metric plugin: a named group of estimates computed by one pure function."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from specbench.metrics import METRICS_VERSION
from specbench.types import Estimate, RunTrace


@dataclass(frozen=True, slots=True)
class MetricGroup:
    """One entry of the registry kind "metrics"; ``unit`` and ``better`` describe the group's headline."""

    name: str
    unit: str
    better: str  # "higher", "lower" or "neither"
    function: Callable[[RunTrace], Iterable[Estimate]]
    version: str = METRICS_VERSION

    def compute(self, trace: RunTrace) -> list[Estimate]:
        """Every estimate that the trace has data for; what has none is absent."""
        return list(self.function(trace))
