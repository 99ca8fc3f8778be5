"""Load patterns by name: their options checked, their arrivals opened, their description for a record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specbench import registry
from specbench.api import Arrivals
from specbench.config import validated
from specbench.workloads._options import LoadOptions


def load_options(workload: str, options: Mapping[str, Any]) -> LoadOptions:
    """The pattern's options, validated. Errors: UnknownNameError with the nearest name; ConfigError for a value."""
    kind: type[LoadOptions] = getattr(registry.load("workloads", workload), "Options", LoadOptions)
    return validated(kind, options, section="load", word=f"option of load pattern {workload}")


def open_load(workload: str, *, concurrency: int, options: Mapping[str, Any], seed: int) -> Arrivals:
    """The arrivals of one cell; equal arguments give equal arrivals. Errors: as `load_options`."""
    checked = load_options(workload, options)
    arrivals: Arrivals = registry.load("workloads", workload)(concurrency=concurrency, options=checked, seed=seed)
    return arrivals


def load_label(workload: str, *, concurrency: int, load: Mapping[str, Any]) -> str:
    """The load in one word, as rows are compared by it: ``closed:8``, ``gamma:8,cv=2,rate=1.5``."""
    return ",".join([f"{workload}:{concurrency}", *(f"{name}={_shown(load[name])}" for name in sorted(load))])


def _shown(value: object) -> str:
    return f"{value:.15g}" if isinstance(value, float) else str(value)
