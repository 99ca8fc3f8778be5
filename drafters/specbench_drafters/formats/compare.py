"""Whether two checkpoints mean and hold the same, independent of the layout that they were stored in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields

import torch
from torch import Tensor

from specbench_drafters.formats.record import Backbone, DrafterSpec

# Where a checkpoint came from, not what it means.
_PROVENANCE = frozenset({"layout", "notes", "raw_config"})


def spec_differences(first: DrafterSpec, second: DrafterSpec, *, ignore: Iterable[str] = ()) -> list[str]:
    """One phrase "field: first, second" per field that differs; provenance is not compared."""
    skipped = _PROVENANCE | set(ignore)
    found = []
    names = [item.name for item in fields(DrafterSpec) if item.name not in skipped | {"backbone"}]
    pairs = [(name, getattr(first, name), getattr(second, name)) for name in names]
    for item in fields(Backbone) if "backbone" not in skipped else ():
        one, other = getattr(first.backbone, item.name), getattr(second.backbone, item.name)
        pairs.append((f"backbone.{item.name}", one, other))
    for name, one, other in pairs:
        if isinstance(one, Tensor) and isinstance(other, Tensor):
            same = torch.equal(one, other)
        elif isinstance(one, Tensor) or isinstance(other, Tensor):
            same = False
        else:
            same = one == other
        if not same:
            found.append(f"{name}: {_text(one)}, {_text(other)}")
    return found


def tensor_differences(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> list[str]:
    """Names of tensors that are in one only, or differ in dtype, shape or any value."""
    names = sorted(set(first) ^ set(second))
    both = sorted(set(first) & set(second))
    return names + [n for n in both if first[n].dtype != second[n].dtype or not torch.equal(first[n], second[n])]


def _text(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{value.numel()} ids"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
