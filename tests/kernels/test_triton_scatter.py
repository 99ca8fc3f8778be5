"""Keys and values into their pages by Triton, interpreted, against the definition."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support_twins import with_fault
from triton.runtime import interpreter

from specbench.kernels import scatter as definition
from specbench.kernels._triton import scatter

PAGE = 16
CASES = {
    "one token": (1, 2, 8, 8, torch.float32),
    "257 tokens": (257, 1, 8, 8, torch.float32),
    "three heads, odd widths": (19, 3, 24, 12, torch.float16),
    "more heads than a program": (5, 9, 8, 16, torch.bfloat16),
    "no token": (0, 2, 8, 8, torch.float32),
}


def agrees(kernels: Any, tokens: int, heads: int, key_width: int, value_width: int, dtype: torch.dtype) -> bool:
    """Whether both leave the same pool behind, NaN where nothing was written."""
    generator = torch.Generator().manual_seed(tokens)
    pages = tokens // PAGE + 3
    slots = torch.randperm(pages * PAGE, generator=generator)[:tokens]
    pools = [
        torch.full((heads, pages, PAGE, width), torch.nan, dtype=dtype).permute(1, 2, 0, 3)
        for width in (key_width, value_width)
    ]
    new = [  # as projections leave them: heads before tokens, and values as a part of something wider
        torch.randn(heads, tokens, key_width, generator=generator).to(dtype).transpose(0, 1),
        torch.randn(tokens, heads, 2 * value_width, generator=generator).to(dtype)[..., value_width:],
    ]
    left = []
    for one in (definition, kernels):
        keys, values = (pool.clone(memory_format=torch.preserve_format) for pool in pools)
        assert keys.stride() == pools[0].stride()
        one.scatter_kv(keys, values, slots=slots, key=new[0], value=new[1])
        left.append((keys, values))
    return all(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in zip(*left, strict=True))


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few elements a program that nine heads take several; without the interpreter's slow checks for overflow."""
    builder = interpreter.interpreter_builder
    monkeypatch.setattr(scatter, "_BLOCK", 64)
    monkeypatch.setattr(builder, "options", replace(builder.options, sanitize_overflow=False))


@pytest.mark.parametrize("name", CASES)
def test_equals_the_definition(name: str) -> None:
    assert agrees(scatter, *CASES[name])


FAULTS = {
    "page": ("page = slot // PAGE", "page = slot // PAGE * 0"),
    "offset": ("inside = slot % PAGE", "inside = (slot + 1) % PAGE"),
    "head": ("tl.program_id(1) * BLOCK_H + ", ""),
    "value stride": ("head[:, None] * value_head", "head[:, None] * key_head"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_caught(name: str, tmp_path: Path) -> None:
    faulty = with_fault(scatter, *FAULTS[name], folder=tmp_path, _BLOCK=64)
    assert not agrees(faulty, *CASES["more heads than a program"])
