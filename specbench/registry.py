"""Plugins by name. The file name is the registry name: no central list, nothing runs at import.

A kind ("drafters", "tasks", ...) has a home package whose public modules and packages are its entries, and the
entry-point group ``specbench.KIND`` through which other distributions add theirs. An entry sets ``PLUGIN``.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from specbench.errors import SpecbenchError, unknown_name


@dataclass(frozen=True, slots=True)
class Kind:
    """Where the plugins of one kind live, and the word for one of them."""

    word: str
    package: str
    skip: frozenset[str] = frozenset()


KINDS = {
    "drafters": Kind("method", "specbench_drafters", frozenset({"formats", "weights", "training"})),
    "tasks": Kind("task", "specbench_tasks", frozenset({"data"})),
    "metrics": Kind("metric", "specbench.metrics"),
    "workloads": Kind("load pattern", "specbench.workloads", frozenset({"driver", "patterns"})),
    "backends": Kind("backend", "specbench.backends"),
    "servers": Kind("engine to launch", "specbench.serving.engines"),
    "executors": Kind("executor", "specbench.executors", frozenset({"jobs"})),
    "policies": Kind("policy", "specbench.engine.policies"),
    "formats": Kind("checkpoint tool", "specbench_drafters.formats"),
    "trainables": Kind("trainable method", "specbench_drafters.training"),
    "leaderboard": Kind("leaderboard tool", "specbench_leaderboard"),
}


@cache
def _home_modules(kind: str) -> tuple[str, ...]:
    spec = importlib.util.find_spec(KINDS[kind].package)
    if spec is None or spec.submodule_search_locations is None:
        return ()
    found = pkgutil.iter_modules(list(spec.submodule_search_locations))
    return tuple(m.name for m in found if not m.name.startswith("_") and m.name not in KINDS[kind].skip)


@cache
def _foreign(kind: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=f"specbench.{kind}")}


def _key(name: str) -> str:
    return name.replace("-", "_")


def names(kind: str) -> list[str]:
    """Registered names of a kind, as users write them (hyphens for underscores), without importing any."""
    return sorted({m.replace("_", "-") for m in _home_modules(kind)} | set(_foreign(kind)))


def load(kind: str, name: str) -> Any:
    """The plugin called ``name``: what its module's ``PLUGIN`` holds.

    Errors: UnknownNameError with the nearest name; SpecbenchError when the plugin's module sets no ``PLUGIN``.
    """
    if name in _foreign(kind):
        found = _foreign(kind)[name].load()
        return getattr(found, "PLUGIN", found)
    if _key(name) not in _home_modules(kind):
        raise unknown_name(KINDS[kind].word, name, names(kind))
    module = importlib.import_module(f"{KINDS[kind].package}.{_key(name)}")
    if not hasattr(module, "PLUGIN"):
        raise SpecbenchError(f"{KINDS[kind].word} '{name}': module {module.__name__} sets no PLUGIN; add it")
    return module.PLUGIN
