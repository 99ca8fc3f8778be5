"""Ragged paged attention over a step's row groups: the definition, in plain torch."""

from __future__ import annotations

from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from specbench.kernels.dispatch import uses_triton
from specbench.kernels.processor import has_native_bfloat16


class Group(Protocol):
    """What attention needs to know of a group of rows (see modeling.layout.RowGroup)."""

    tokens: Tensor  # [b, q]
    pages: Tensor  # [b, P]
    span: tuple[int, int] | None
    run: tuple[int, int] | None
    kv_length: int
    valid: Tensor | None
    gathered: dict[tuple[str, tuple[int, ...], torch.dtype], Tensor]

    def mask(self, *, window: int | None, heads: int, dtype: torch.dtype) -> Tensor | None:
        """Additive mask [b, 1, heads * q, kv_length], or None where all is visible."""
        ...


class Table(Protocol):
    """The same rows as tables on the device, for kernels (see modeling.row_table.RowTable)."""

    starts: Tensor  # [R] int32
    counts: Tensor  # [R] int32, 0 where a row is padding
    lengths: Tensor  # [R] int32
    tiles: Tensor  # [N, 2] int32, row and first query token
    pages: Tensor  # [R, P] int32
    tile: int  # query tokens a tile
    longest: int  # no length is above it
    kept: dict[tuple[int, ...], Tensor]


def paged_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    scale: float,
    groups: tuple[Group, ...] = (),
    table: Table | None = None,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Causal attention of every query token over the pages of its row.

    Args:
        query: [T, Hq, Dk], flat over the rows of all groups.
        keys, values: [pages, PAGE, Hkv, Dk] and [pages, PAGE, Hkv, Dv], best laid out head by head in memory; this
            step's tokens are already written.
        scale: multiplies the scores.
        groups: which tokens see which pages.
        table: the same for the Triton twin, which then needs no groups.
        window: keys further back than this are hidden. softcap: cap * tanh(score / cap).

    Returns:
        [T, Hq, Dv]; anything for tokens of no row.
    """
    if table is not None and uses_triton(query):
        from specbench.kernels._triton import attention as twin

        return twin.paged_attention(query, keys, values, table=table, scale=scale, window=window, softcap=softcap)
    assert groups, "the definition reads the rows from groups"
    outputs = [_attend(query, keys, values, group, scale=scale, window=window, softcap=softcap) for group in groups]
    if _in_order(groups):  # nothing is to be put elsewhere
        parts = [piece.flatten(0, 1) for piece in outputs]
        parts = [p if g.valid is None else p.index_select(0, g.valid) for p, g in zip(parts, groups, strict=True)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)
    shape = (query.shape[0], query.shape[1], values.shape[-1])
    # A padded batch has tokens of no row: what they leave in a spare page may be read, masked, and must be finite.
    out = query.new_zeros(shape) if len(groups) == 1 and groups[0].valid is None else query.new_empty(shape)
    for group, piece in zip(groups, outputs, strict=True):
        flat, index = piece.flatten(0, 1), group.tokens.flatten()
        if group.valid is not None:
            flat, index = flat.index_select(0, group.valid), index.index_select(0, group.valid)
        out.index_copy_(0, index, flat)
    return out


def _in_order(groups: tuple[Group, ...]) -> bool:
    """The groups are stretches of the batch, one after the other."""
    spans = [group.span for group in groups if group.span is not None]
    return len(spans) == len(groups) and all(a[1] == b[0] for a, b in pairwise(spans))


def _attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    group: Group,
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    """One group: [b, q, Hq, Dv]. Where bfloat16 would be emulated its products are taken in float32, rounded once."""
    dtype = query.dtype
    if dtype == torch.bfloat16 and query.device.type == "cpu" and not has_native_bfloat16():
        query = query.float()
    b, width = group.tokens.shape
    num_heads, key_heads = query.shape[1], keys.shape[2]
    shared = num_heads // key_heads
    if group.span is not None and group.valid is None:
        picked = query[group.span[0] : group.span[1]]
    else:
        picked = query.index_select(0, group.tokens.flatten())
    folded = picked.view(b, width, key_heads, shared, -1).permute(0, 2, 3, 1, 4).flatten(2, 3)  # [b, Hkv, g*q, Dk]
    k = _context(keys, group, name="keys", dtype=query.dtype)
    v = _context(values, group, name="values", dtype=query.dtype)
    mask = group.mask(window=window, heads=shared, dtype=query.dtype)
    if softcap is None:
        out = scaled_dot_product_attention(folded, k, v, attn_mask=mask, scale=scale)
    else:
        scores = softcap * torch.tanh(folded @ k.transpose(-1, -2) * scale / softcap)
        scores = scores if mask is None else scores + mask
        out = torch.softmax(scores, dim=-1, dtype=torch.float32).to(v.dtype) @ v
    return out.view(b, key_heads, shared, width, -1).permute(0, 3, 1, 2, 4).flatten(2, 3).to(dtype)


def _context(pool: Tensor, group: Group, *, name: str, dtype: torch.dtype) -> Tensor:
    """Keys or values of the group's rows in ``dtype``: [b, Hkv, L, D], each head's context front to back in memory.

    A view when each row's pages are one run and the runs lie at equal distances. Gathered and converted ones go to
    memory that the group keeps for its next layer: taking it anew for every layer costs several times the copy.
    """
    b, num_pages = group.pages.shape
    by_head = pool.permute(2, 0, 1, 3)  # [Hkv, pages, PAGE, D]
    heads, _, page, width = by_head.shape
    shape = (heads, b, num_pages, page, width)
    if group.run is not None and group.run[0] + (b - 1) * group.run[1] + num_pages <= pool.shape[0]:
        first, apart = group.run
        strides = by_head.stride()
        rows = by_head[:, first:].as_strided(shape, (strides[0], apart * strides[1], *strides[1:]))
    else:
        kept = _kept(group, name, by_head, dtype=pool.dtype)
        rows = torch.index_select(by_head, 1, group.pages.flatten(), out=kept).view(shape)
    if pool.dtype != dtype:
        rows = _kept(group, name, by_head, dtype=dtype).view(shape).copy_(rows)
    return rows.reshape(heads, b, -1, width)[:, :, : group.kv_length].transpose(0, 1)


def _kept(group: Group, name: str, by_head: Tensor, *, dtype: torch.dtype) -> Tensor:
    """[Hkv, b * P, PAGE, D], the same memory for every layer of this shape."""
    heads, _, page, width = by_head.shape
    kept = group.gathered.get((name, (heads, width), dtype))
    if kept is None:
        kept = by_head.new_empty(heads, group.pages.numel(), page, width, dtype=dtype)
        group.gathered[name, (heads, width), dtype] = kept
    return kept
