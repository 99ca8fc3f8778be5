"""Drafter checkpoints that come with the package: ``specbench_drafters/weights/TARGET/METHOD/``."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from specbench.registry import KINDS


@dataclass(frozen=True, slots=True)
class PackagedCheckpoint:
    """A packaged checkpoint. ``note`` is the one line that its ``NOTE.txt`` says of it, where there is one."""

    target: str
    method: str
    path: Path
    note: str


def _root() -> Path | None:
    # found, not imported: the referee reads the contestants' data but none of their code
    spec = importlib.util.find_spec(KINDS["drafters"].package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / "weights"


def packaged_checkpoints() -> list[PackagedCheckpoint]:
    """All packaged checkpoints, by target and method."""
    root = _root()
    if root is None or not root.is_dir():
        return []
    found = []
    for config in sorted(root.glob("*/*/config.json")):
        note = config.parent / "NOTE.txt"
        text = note.read_text(encoding="utf-8").strip().partition("\n")[0] if note.is_file() else ""
        method = config.parent.name.replace("_", "-")
        found.append(PackagedCheckpoint(config.parent.parent.name, method, config.parent, text))
    return found


def packaged_for(*, target: str, method: str) -> PackagedCheckpoint | None:
    """The packaged checkpoint of ``method`` for the target with that short name; None where there is none."""
    return next((c for c in packaged_checkpoints() if (c.target, c.method) == (target, method)), None)
