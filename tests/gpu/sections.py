"""The sections of the check, in the order they run: what each is for and how many seconds it may take.

No torch here: this module is read before the wheels are installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Section:
    """``budget_s`` on a GPU, ``dry_s`` in a dry run: repeats and points are cut to stay within it."""

    name: str
    about: str
    budget_s: float
    dry_s: float


SECTIONS = (
    Section("device", "copy bandwidth, matrix rates, driver and clocks", 5, 2),
    Section("numeric", "kernels against their definitions, and the engine's recipes, on the device", 42, 15),
    Section("sps", "steps a second against tokens in the batch, and the forward against the roofline", 40, 4),
    Section("cycle", "T_draft and T_verify by method, batch and context, against the roofline", 45, 6),
    Section("head", "what the sequential head adds to a round", 10, 3),
    Section("graphs", "CUDA graphs against single launches, and the cycle's time outside kernels", 8, 3),
    Section("load", "throughput against tok/s/user, fixed against load-aware, with synthetic acceptance", 66, 8),
)
NAMES = tuple(section.name for section in SECTIONS)
TOTAL_S, DRY_TOTAL_S = 225.0, 55.0
"""The whole run, start of the processes included. A dry run does the least of every section all the same."""

DRY_END_S = 300.0
"""On a busy machine a dry run may take this long before it is ended."""

GRACE_S = 15.0
"""A section that is still running this long after half as much again as its budget is ended."""

_STRETCH = 4.0  # a section that runs almost alone gets this many times its budget, not more


def budgets(names: Sequence[str], *, dry: bool, left_s: float) -> dict[str, float]:
    """Seconds for each of the sections that are to run in ``left_s``: shares of it by their usual budgets."""
    usual = {section.name: section.dry_s if dry else section.budget_s for section in SECTIONS if section.name in names}
    factor = min(max(left_s, 0.0) / sum(usual.values()), 1.0 if dry else _STRETCH)
    return {name: seconds * factor for name, seconds in usual.items()}
