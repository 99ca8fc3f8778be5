"""Metrics in words: what the registered metric groups say of themselves, and which estimates they give."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass

from specbench import registry
from specbench.metrics import METRICS_VERSION
from specbench.metrics import _recorded as _recorded_module
from specbench.metrics._definitions import DEFINITIONS


@dataclass(frozen=True, slots=True)
class Entry:
    """One metric group. ``texts`` are the paragraphs of its own documentation, ``estimates`` name -> definition."""

    name: str
    unit: str
    better: str
    version: str
    texts: tuple[str, ...]
    estimates: dict[str, str]


def _paragraphs(text: str | None) -> list[str]:
    parts = inspect.cleandoc(text or "").split("\n\n")
    return [" ".join(part.split()) for part in parts if part.strip()]


def entries() -> list[Entry]:
    """Every registered metric group in alphabetical order, those of other distributions included."""
    found = []
    for name in registry.names("metrics"):
        metric = registry.load("metrics", name)
        function = getattr(metric, "function", type(metric))
        module = sys.modules.get(getattr(function, "__module__", ""))
        texts = [*_paragraphs(module.__doc__ if module is not None else None), *_paragraphs(function.__doc__)]
        known = dict(DEFINITIONS.get(name, {}))
        found.append(Entry(name, metric.unit, metric.better, metric.version, tuple(dict.fromkeys(texts)), known))
    return [*found, _recorded()]


def _recorded() -> Entry:
    """Estimates that no metric of a trace gives: their evidence is a block of the record."""
    texts = (*_paragraphs(_recorded_module.__doc__), *_paragraphs(_recorded_module.recorded_estimates.__doc__))
    return Entry("recorded", "J/token", "neither", METRICS_VERSION, texts, dict(DEFINITIONS["recorded"]))


def group_of(metric: str) -> str | None:
    """The group that gives an estimate of this name; None where none says so."""
    return next((group for group, names in DEFINITIONS.items() if metric in names), None)
