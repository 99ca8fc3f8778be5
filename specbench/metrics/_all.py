"""Every number of a cell, in a fixed order."""

from __future__ import annotations

from collections.abc import Sequence

from specbench import registry
from specbench.api import Metric
from specbench.metrics.served import compare_served
from specbench.metrics.throughput import compare
from specbench.types import Estimate, RunTrace


def compute_all(
    trace: RunTrace, *, baseline: RunTrace | None = None, names: Sequence[str] | None = None
) -> list[Estimate]:
    """All estimates of a trace, by metric name in alphabetical order; with a baseline also the comparison with it.

    ``names`` picks metric groups (default: every registered one). Errors: UnknownNameError for a name that is not
    registered.
    """
    found: list[Estimate] = []
    for name in sorted(names if names is not None else registry.names("metrics")):
        metric: Metric = registry.load("metrics", name)
        found.extend(metric.compute(trace))
    if baseline is not None:
        found.extend(compare(trace, baseline) if trace.server is None else compare_served(trace, baseline))
    return found
