"""The sections of the check, in the order they run: what each is for and how many seconds it may take.

No torch here: this module is read before the wheels are installed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Section:
    """``budget_s`` on a GPU, ``dry_s`` in a dry run: repeats and points are cut to stay within it."""

    name: str
    about: str
    budget_s: float
    dry_s: float


SECTIONS = (
    Section("device", "copy bandwidth, matrix rates, driver and clocks", 8, 3),
    Section("numeric", "kernels against their definitions, and the engine's recipes, on the device", 50, 15),
    Section("sps", "steps a second against tokens in the batch, and the forward against the roofline", 42, 4),
    Section("cycle", "T_draft and T_verify by method, batch and context, against the roofline", 45, 6),
    Section("head", "what the sequential head adds to a round", 12, 3),
    Section("graphs", "CUDA graphs against single launches, and the cycle's time outside kernels", 13, 3),
    Section("load", "throughput against tok/s/user, fixed against load-aware, with synthetic acceptance", 50, 8),
)
NAMES = tuple(section.name for section in SECTIONS)
TOTAL_S, DRY_TOTAL_S = 232.0, 60.0
"""The whole run, start of the processes included. A dry run does the least of every section all the same."""

DRY_END_S = 300.0
"""On a busy machine a dry run may take this long before it is ended."""

GRACE_S = 15.0
"""A section that is still running this long after half as much again as its budget is ended."""


def budget(name: str, *, dry: bool) -> float:
    """Seconds that a section may take."""
    section = next(section for section in SECTIONS if section.name == name)
    return section.dry_s if dry else section.budget_s
