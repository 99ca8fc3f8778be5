"""Paged attention in Triton, interpreted, against its definition: ragged rows, windows, page edges, poisoned memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support_twins import poisoned, with_fault
from torch import Tensor
from triton.runtime import interpreter

from specbench.kernels import attention as definition
from specbench.kernels._triton import attention
from specbench.modeling.layout import BatchLayout, RowSpan
from specbench.modeling.pool import PAGE, pages_for
from specbench.modeling.row_table import RowTable

CPU = torch.device("cpu")
ROUNDING = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}  # of a sum, relative to its largest values


@dataclass(frozen=True)
class Shape:
    """Rows as (tokens held before, query tokens), a layer, and over how many programs its keys are split."""

    rows: tuple[tuple[int, int], ...]
    heads: int = 4
    key_heads: int = 2
    key_width: int = 8
    value_width: int = 8
    window: int | None = None
    softcap: float | None = None
    shares: int = 1
    dtype: torch.dtype = torch.float32


RAGGED = ((0, 1), (37, 3), (15, 1), (44, 5), (16, 4), (0, 8))
SHAPES = {
    "ragged": Shape(RAGGED),
    "ragged, split": Shape(((37, 3), (0, 1), (50, 1)), shares=3),
    "half": Shape(((40, 2), (5, 6)), shares=2, dtype=torch.float16),
    "brain": Shape(((40, 2), (5, 6)), shares=2, dtype=torch.bfloat16),
    "one row of one token": Shape(((0, 1),), shares=2),
    "one row": Shape(((83, 3),), shares=4),
    "page edges": Shape(((15, 1), (16, 1), (13, 4), (28, 8)), heads=2),
    "three heads share one": Shape(((40, 2), (5, 6)), heads=6),
    "no shared heads": Shape(((40, 2), (5, 6)), key_heads=4),
    "unequal odd widths": Shape(((40, 2), (5, 6)), key_width=24, value_width=12, shares=2),
    "softcap": Shape(((40, 2), (5, 6)), softcap=0.5, shares=2),
    "window of one": Shape(((40, 2), (0, 6)), window=1, shares=2),
    "window edges": Shape(((15, 1), (16, 1), (12, 8)), heads=2, window=16),
    "window, split": Shape(((60, 3), (5, 6)), window=33, shares=3, softcap=5.0),
    "several tiles": Shape(((9, 70), (3, 1)), key_heads=1, heads=1, window=40),
    "several pieces": Shape(((2, 20),), key_heads=1, heads=5),
}


@pytest.fixture(autouse=True, scope="module", name="nan_before")
def _surroundings() -> Iterator[None]:
    """Few keys a step, so that short contexts take several; memory that holds NaN before it is written.

    The interpreter's own checks for overflow take two thirds of the time and are left out.
    """
    chosen, builder = attention.blocks, interpreter.interpreter_builder
    with poisoned(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "blocks", lambda layer: replace(chosen(layer), n=16))
        patch.setattr(builder, "options", replace(builder.options, sanitize_overflow=False))
        yield


@dataclass(frozen=True)
class Batch:
    """Queries, and a pool in which all that no row holds is NaN; ``clean`` has zeros there."""

    spans: list[RowSpan]
    query: Tensor
    pools: tuple[Tensor, Tensor]
    clean: tuple[Tensor, Tensor]


def batch(shape: Shape, *, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    needed = [pages_for(before + count) for before, count in shape.rows]
    free = torch.randperm(sum(needed) + 2, generator=generator).tolist()
    spans, start = [], 0
    for (before, count), pages in zip(shape.rows, needed, strict=True):
        spans.append(RowSpan(start, count, before + count, [free.pop() for _ in range(pages)]))
        start += count
    held = torch.zeros(sum(needed) + 2, PAGE, dtype=torch.bool)
    for span in spans:
        for position in range(span.length):
            held[span.pages[position // PAGE], position % PAGE] = True

    def pool(width: int) -> tuple[Tensor, Tensor]:
        made = torch.randn(shape.key_heads, len(held), PAGE, width, generator=generator).to(shape.dtype)
        made = made.permute(1, 2, 0, 3)
        return made.masked_fill(~held[..., None, None], torch.nan), made.masked_fill(~held[..., None, None], 0)

    keys, values = pool(shape.key_width), pool(shape.value_width)
    # the layout that a projection leaves: heads before tokens
    query = torch.randn(shape.heads, start, shape.key_width, generator=generator).to(shape.dtype).transpose(0, 1)
    return Batch(spans, query, (keys[0], values[0]), (keys[1], values[1]))


def error(shape: Shape, kernels: Any, *, table: RowTable | None = None) -> float:
    """The largest difference to the definition in float32, over what rounding allows: NaN where a NaN came through."""
    made = batch(shape)
    same = {"scale": shape.key_width**-0.5, "window": shape.window, "softcap": shape.softcap}
    keys, values = made.clean
    groups = BatchLayout.build(made.spans, CPU).groups
    exact = definition.paged_attention(made.query.float(), keys.float(), values.float(), groups=groups, **same)
    table = table or RowTable.build(made.spans, CPU)
    found = kernels.paged_attention(made.query, *made.pools, table=table, shares=shape.shares, **same)
    assert found.dtype == shape.dtype
    gap = (found.float() - exact).abs() / (ROUNDING[shape.dtype] * (1 + exact.abs()))
    return float(gap.max())


@pytest.mark.parametrize("name", SHAPES)
def test_equals_the_definition(name: str) -> None:
    assert error(SHAPES[name], attention) < 1.0


def test_equals_the_definition_for_257_rows() -> None:
    rows = tuple((5 * i % 17, 1) for i in range(257))
    assert error(Shape(rows, heads=1, key_heads=1), attention) < 1.0


def padded_table(made: Batch) -> RowTable:
    """Of two rows among two of padding, which name pages that do not exist."""
    rows = torch.tensor([[0, 3, 40], [3, 0, 0], [3, 5, 95], [0, 0, 0]])  # start, count, length
    pages = torch.full((4, 6), 1 << 30)
    for at, span in zip((0, 2), made.spans, strict=True):
        pages[at, : len(span.pages)] = torch.tensor(span.pages)
    return RowTable.padded(starts=rows[:, 0], counts=rows[:, 1], lengths=rows[:, 2], pages=pages, widest=6, longest=96)


PADDED = Shape(((37, 3), (90, 5)), shares=2)


def test_padding_rows_are_not_read() -> None:
    assert error(PADDED, attention, table=padded_table(batch(PADDED))) < 1.0


def test_tokens_of_no_row_are_not_written(nan_before: None) -> None:
    made = batch(PADDED)
    query = torch.cat([made.query, made.query[:2]])
    out = attention.paged_attention(query, *made.pools, table=padded_table(made), scale=1.0, shares=1)
    assert bool(out[:8].isfinite().all())
    assert bool(out[8:].isnan().all()), "what the memory held before"


def test_the_number_of_shares_changes_rounding_only() -> None:
    shape = Shape(((70, 1),), key_heads=1, heads=2)
    assert all(error(replace(shape, shares=shares), attention) < 1.0 for shares in (1, 2, 5, 64))


def test_shares_keep_a_device_busy_and_are_none_too_small() -> None:
    layer = attention.Layer(
        heads=32, key_heads=8, key_width=128, value_width=128, tile=1, page=16, dtype=torch.bfloat16
    )

    def shares(tiles: int, longest: int, window: int | None = None) -> int:
        return attention.shares_for(layer, tiles=tiles, longest=longest, window=window, processors=132)

    assert shares(1, 100) == 1  # too few keys to share
    assert shares(1, 1024) == 8  # 128 keys each
    assert shares(1, 1 << 20) == 33  # two programs a multiprocessor
    assert shares(1, 1 << 20, window=511) == 4
    assert shares(64, 1 << 20) == 1  # busy already


FAULTS = {
    "first visible key": ("(index[None, :] <= position[:, None])", "(index[None, :] < position[:, None])"),
    "window edge": ("index[None, :] > position[:, None] - window", "index[None, :] >= position[:, None] - window"),
    "window start": ("before + low - window + 1, 0)", "before + low - window + 2, 0)"),
    "page": ("index // PAGE, mask=inside", "index // PAGE // 2, mask=inside"),
    "slot": ("slot = index % PAGE", "slot = (index + 1) % PAGE"),
    "keys behind the last": ("mask=inside[:, None] & (in_value < V", "mask=(inside | True)[:, None] & (in_value < V"),
    "key head": ("keys + head.to(tl.int64) * k_head", "keys + head.to(tl.int64) * 0"),
    "query head": ("q_at = token * q_token + own_head", "q_at = token * q_token + own_head // 2"),
    "last query": ("end = before + high + 1", "end = before + high"),
    "shrink": ("total * shrink + tl.sum", "total + tl.sum"),
    "scale": ("_LOG2E = 1.4426950408889634", "_LOG2E = 1.443"),
    "cap": ("2.8853900817779268", "2.88"),
    "share": ("begin = begin + tl.program_id(2) * each", "begin = begin + tl.program_id(2) * (each - 1)"),
    "mass": ("top + tl.log2(safe)", "top + total"),
    "merged share": ("some = first + tl.arange(0, MERGED)", "some = first + tl.arange(0, MERGED) % (MERGED - 1)"),
    "merged weight": ("total += tl.sum(weight, 0)", "total += 1.0"),
}
CAUGHT_BY = {"window edge": "window, split", "window start": "window, split", "cap": "softcap"}
SMALL = replace(SHAPES["ragged, split"], rows=((37, 2), (50, 1)))


@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_caught(name: str, tmp_path: Path) -> None:
    shape = SHAPES[CAUGHT_BY[name]] if name in CAUGHT_BY else SMALL
    if name == "merged share":
        shape = Shape(((150, 1),), heads=2, key_heads=1, shares=9)
    faulty = with_fault(attention, *FAULTS[name], folder=tmp_path, blocks=attention.blocks)
    assert not error(shape, faulty) < 1.0
