"""Load patterns by name: their options checked, their arrivals opened, their description for a record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specbench import registry
from specbench.api import Arrivals
from specbench.config import validated
from specbench.errors import ConfigError
from specbench.workloads._options import LoadOptions

_HASH_DIGITS = 64


def load_options(workload: str, options: Mapping[str, Any]) -> LoadOptions:
    """The pattern's options, validated. Errors: UnknownNameError with the nearest name; ConfigError for a value."""
    kind: type[LoadOptions] = getattr(registry.load("workloads", workload), "Options", LoadOptions)
    return validated(kind, options, section="load", word=f"option of load pattern {workload}")


def open_load(
    workload: str, *, concurrency: int, options: Mapping[str, Any], seed: int, planned: Mapping[str, Any] | None = None
) -> Arrivals:
    """The arrivals of one cell; equal arguments give equal arrivals.

    ``planned`` is what the options were described as when the cell was planned. Errors: as `load_options`; ConfigError
    when a file has changed since.
    """
    checked = load_options(workload, options)
    if planned is not None and checked.described() != planned:
        raise ConfigError(f"the file of the load pattern {workload} changed while the run was under way; run it again")
    arrivals: Arrivals = registry.load("workloads", workload)(concurrency=concurrency, options=checked, seed=seed)
    return arrivals


def load_label(workload: str, *, concurrency: int, load: Mapping[str, Any]) -> str:
    """The load in one word, as rows are compared by it: ``closed:8``, ``gamma:8,cv=2,rate=1.5``."""
    return ",".join([f"{workload}:{concurrency}", *(f"{name}={_shown(load[name])}" for name in sorted(load))])


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.15g}"
    text = str(value)
    return text[:12] if len(text) == _HASH_DIGITS else text
