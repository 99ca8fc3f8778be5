"""Triton twins in the interpreter: small tiles, outputs full of poison before they are written, copies with a fault."""

from __future__ import annotations

import importlib.util
import itertools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton and the kernels are imported
pytest.importorskip("triton")

import support_quick_interpreter

support_quick_interpreter.install()

_numbers = itertools.count()
BAD_INDEX = 1 << 40  # an index that no test can reach without leaving its memory
TILES = {"TILE": 32, "_SPLIT": 64, "_ROWS": 16, "_COLUMNS": 4, "_OWN": 8, "_OTHERS": 16, "_BLOCK": 16}


def _poison(made: Tensor) -> Tensor:
    if made.is_floating_point():
        return made.fill_(torch.nan)
    return made.fill_(True) if made.dtype == torch.bool else made.fill_(min(BAD_INDEX, torch.iinfo(made.dtype).max))


@contextmanager
def poisoned() -> Iterator[None]:
    """Fresh memory holds NaN, or integers that point nowhere, so that what a kernel leaves unwritten is seen."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("empty", "empty_like"):
            made = getattr(torch, name)
            patch.setattr(torch, name, lambda *args, _made=made, **kwargs: _poison(_made(*args, **kwargs)))
        yield


@contextmanager
def small_tiles(*modules: ModuleType) -> Iterator[None]:
    """Tiles so small that tests cross their edges with few tokens."""
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            for name, value in TILES.items():
                if hasattr(module, name):
                    patch.setattr(module, name, value)
        yield


def with_fault(module: ModuleType, old: str, new: str, *, folder: Path, **replaced: Any) -> ModuleType:
    """A copy of ``module`` in which the text ``old``, found once, reads ``new``; ``replaced`` names are set in it."""
    assert module.__file__ is not None
    text = Path(module.__file__).read_text()
    assert text.count(old) == 1, f"'{old}' is found {text.count(old)} times in {module.__name__}"
    name = f"{module.__name__.rsplit('.', 1)[1]}_with_fault_{next(_numbers)}"
    path = folder / f"{name}.py"
    path.write_text(text.replace(old, new))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    sys.modules[name] = copy
    try:
        spec.loader.exec_module(copy)
    finally:
        del sys.modules[name]
    for key, value in (TILES | replaced).items():
        if hasattr(copy, key):
            setattr(copy, key, value)
    return copy
