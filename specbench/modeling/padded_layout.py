"""A flat batch laid out on the device, in a shape that is fixed beforehand: what a captured forward reads.

Rows lie one after the other without gaps, each with as many tokens as the device says; the host knows only how many
there can be. What is left of rows and tokens is padding, which is written to two spare pages behind the pool's own:

- a padding row has one token of id 0 at position 0 on the first spare page, and reads that page alone;
- tokens of no row are written to the second, which nothing reads: what is computed for them may be anything.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.kernels.dispatch import uses_triton
from specbench.modeling.layout import BatchLayout, RowGroup
from specbench.modeling.pool import PAGE
from specbench.modeling.row_table import RowTable

SPARE_PAGES = 2


@dataclass(frozen=True, slots=True)
class PaddedShape:
    """``rows`` R of at most ``width`` W tokens, ``tokens`` T in all, contexts of at most ``pages`` P pages."""

    rows: int
    tokens: int
    width: int
    pages: int


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """The flat batch. Row r owns ``token_ids[starts[r] : starts[r] + its tokens]``."""

    token_ids: Tensor  # [T] int64
    starts: Tensor  # [R] int64
    owner: Tensor  # [T] int64, the row of a token; the last one for tokens of no row
    layout: BatchLayout


def lay_out(
    shape: PaddedShape, *, lengths: Tensor, counts: Tensor, tokens: Tensor, pages: Tensor, num_pages: int
) -> PaddedBatch:
    """Pack the leading ``counts`` tokens of every row.

    Args:
        lengths: [R] int64, tokens of a row in the cache before the step; 0 for padding.
        counts: [R] int64, tokens of a row in this batch, 1..W; 1 for padding. Their sum is at most T.
        tokens: [R, W] int64.
        pages: [R, P] integers, the pages of a row; those of padding name the first spare page.
        num_pages: of the pool, so also the id of the first spare page.
    """
    device = lengths.device
    ends = counts.cumsum(0)  # [R]
    starts = ends - counts
    flat = torch.arange(shape.tokens, device=device)  # [T]
    owner = torch.searchsorted(ends, flat, right=True).clamp(max=shape.rows - 1)
    column = flat - starts[owner]
    real = column < counts[owner]  # [T], false for tokens of no row
    column = torch.where(real, column, 0)
    positions = torch.where(real, lengths[owner] + column, 0)
    page = pages[owner, positions // PAGE].to(torch.int64)
    slots = torch.where(real, page * PAGE + positions % PAGE, (num_pages + 1) * PAGE)
    after = lengths + counts
    if uses_triton(after):
        table = RowTable.padded(
            starts=starts, counts=counts, lengths=after, pages=pages, widest=shape.width, longest=shape.pages * PAGE
        )
        layout = BatchLayout(positions, slots, (), shape.tokens, table)
    else:
        group = _group(shape, starts=starts, lengths=lengths, counts=counts, pages=pages)
        layout = BatchLayout(positions, slots, (group,), shape.tokens)
    return PaddedBatch(
        token_ids=torch.where(real, tokens[owner, column], 0),
        starts=starts,
        owner=owner,
        layout=layout,
    )


def _group(shape: PaddedShape, *, starts: Tensor, lengths: Tensor, counts: Tensor, pages: Tensor) -> RowGroup:
    """All rows in one group, a row's last token repeated as padding."""
    columns = torch.arange(shape.width, device=lengths.device)[None, :]
    offsets = torch.minimum(columns, counts[:, None] - 1)  # [R, W]
    return RowGroup(
        tokens=starts[:, None] + offsets,
        positions=lengths[:, None] + offsets,
        lengths=lengths + counts,
        pages=pages,
        span=None,
        run=None,
        kv_length=shape.pages * PAGE,
        valid=None,
        full=False,
    )
