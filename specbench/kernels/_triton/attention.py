"""Triton twin of `specbench.kernels.attention`: ragged paged attention, split over keys where rows are few.

One program attends a tile of a row's query tokens, with all query heads that share a key head folded in, over one
share of the keys that they see; online softmax as in Dao et al. 2022 (arXiv 2205.14135). With more than one share the
programs leave partial results with their weights, and a second kernel merges them (flash decoding).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench.kernels._triton.launch import processors, wide
from specbench.kernels.attention import Table

_TABLES = ["tiles", "starts", "counts", "lengths", "pages"]
_LOG2E = 1.4426950408889634
_MIN_KEYS = 128  # of a share, and at least this many for each query of a program: fewer cost more to merge
_MIN_KEYS_A_QUERY = 4  # than the parallel work saves
_MAX_SHARES = 64
_MERGED = 8  # shares that are merged at a time
_BUSY = 2  # programs a multiprocessor should have


@triton.jit
def _keys_of(before, low, high, window, shares, BLOCK_N: tl.constexpr, WINDOWED: tl.constexpr, SPLIT: tl.constexpr):
    """First and last key (exclusive) that this program reads for the row's query tokens ``low`` to ``high``."""
    begin = 0
    if WINDOWED:
        begin = tl.maximum(before + low - window + 1, 0)
    end = before + high + 1
    if SPLIT:
        each = tl.cdiv(tl.cdiv(end - begin, BLOCK_N), shares) * BLOCK_N
        begin = begin + tl.program_id(2) * each
        end = tl.minimum(begin + each, end)
    return begin, end


@triton.jit
def _masked(scores, index, inside, position, softcap, window, CAPPED: tl.constexpr, WINDOWED: tl.constexpr):
    """Scores [M, N] in base 2, -inf for keys that a query does not see."""
    if CAPPED:
        # cap * tanh(score), and log2(e) times that
        scores = (softcap * 1.4426950408889634) * (1.0 - 2.0 / (tl.exp2(scores * 2.8853900817779268) + 1.0))
    seen = inside[None, :] & (index[None, :] <= position[:, None])
    if WINDOWED:
        seen = seen & (index[None, :] > position[:, None] - window)
    return tl.where(seen, scores, float("-inf"))


@triton.jit
def _weighed(scores, top, total):
    """The new maximum, the keys' weights against it, what older sums shrink by, and the weights' new sum."""
    peak = tl.maximum(top, tl.max(scores, 1))
    base = tl.where(peak == float("-inf"), 0.0, peak)
    chance = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(top - base)
    return peak, chance, shrink, total * shrink + tl.sum(chance, 1)


# fmt: off
# What changes from step to step must not lead to another compilation in the middle of a run.
@triton.jit(do_not_specialize=["pages_row", "shares", "window"], do_not_specialize_on_alignment=_TABLES)
def attend_kernel(
    query, keys, values, out, weights, tiles, starts, counts, lengths, pages, pages_row,
    q_token, q_head, q_dim, k_page, k_slot, k_head, k_dim, v_page, v_slot, v_head, v_dim,
    scale, softcap, window, shares,
    HEADS: tl.constexpr, SHARED: tl.constexpr, KEY_WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, TILE: tl.constexpr,
    PAGE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    PIECES: tl.constexpr, WINDOWED: tl.constexpr, CAPPED: tl.constexpr, SPLIT: tl.constexpr, WIDE: tl.constexpr,
):
    """out [T, HEADS, VALUE_WIDTH]; split: float32 out [T, HEADS, shares, VALUE_WIDTH] and weights, log2 of the mass.

    SHARED query heads a key head, PIECES programs a tile and key head; WIDE: products in float32.
    """
    # fmt: on
    row, first = tl.load(tiles + 2 * tl.program_id(0)), tl.load(tiles + 2 * tl.program_id(0) + 1)
    count = tl.load(counts + row)
    piece, head = tl.program_id(1) % PIECES, tl.program_id(1) // PIECES
    low = first + piece * BLOCK_M // SHARED  # the first query token of this program
    if low >= count:
        return
    folded = piece * BLOCK_M + tl.arange(0, BLOCK_M)
    in_tile, own_head = folded // SHARED, head * SHARED + folded % SHARED
    at = first + in_tile
    real = (in_tile < TILE) & (at < count)  # [M]
    before = tl.load(lengths + row) - count  # position of the row's first query token
    token = (tl.load(starts + row) + at).to(tl.int64)
    in_key, in_value = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_V)
    q_at = token * q_token + own_head * q_head
    q_mask = real[:, None] & (in_key < KEY_WIDTH)[None, :]
    q = tl.load(query + q_at[:, None] + in_key[None, :] * q_dim, mask=q_mask, other=0.0)  # [M, K]
    q = q.to(tl.float32) if WIDE else q
    high = tl.minimum(first + tl.minimum((piece * BLOCK_M + BLOCK_M - 1) // SHARED, TILE - 1), count - 1)
    start, stop = _keys_of(before, low, high, window, shares, BLOCK_N, WINDOWED, SPLIT)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    sums = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
    k_first = keys + head.to(tl.int64) * k_head  # a head's pages may lie more than 2^31 elements behind the first's
    v_first = values + head.to(tl.int64) * v_head
    for n in range(start, stop, BLOCK_N):
        index = n + tl.arange(0, BLOCK_N)
        inside = index < stop
        page = tl.load(pages + row * pages_row + index // PAGE, mask=inside, other=0).to(tl.int64)
        slot = index % PAGE
        k_at = k_first + (page * k_page + slot * k_slot)[None, :] + in_key[:, None] * k_dim
        k = tl.load(k_at, mask=inside[None, :] & (in_key < KEY_WIDTH)[:, None], other=0.0)  # [K, N]
        k = k.to(tl.float32) if WIDE else k
        scores = tl.dot(q, k, input_precision="tf32x3") * scale  # [M, N]
        scores = _masked(scores, index, inside, before + at, softcap, window, CAPPED, WINDOWED)
        top, chance, shrink, total = _weighed(scores, top, total)
        v_at = v_first + (page * v_page + slot * v_slot)[:, None] + in_value[None, :] * v_dim
        v = tl.load(v_at, mask=inside[:, None] & (in_value < VALUE_WIDTH)[None, :], other=0.0)  # [N, V]
        v = v.to(tl.float32) if WIDE else v
        sums = tl.dot(chance.to(v.dtype), v, sums * shrink[:, None], input_precision="tf32x3")
    safe = tl.where(total > 0.0, total, 1.0)
    target = token * HEADS + own_head
    if SPLIT:
        target = target * shares + tl.program_id(2)
        tl.store(weights + target, tl.where(total > 0.0, top + tl.log2(safe), float("-inf")), mask=real)
    out_mask = real[:, None] & (in_value < VALUE_WIDTH)[None, :]
    result = (sums / safe[:, None]).to(out.dtype.element_ty)
    tl.store(out + target[:, None] * VALUE_WIDTH + in_value[None, :], result, mask=out_mask)


@triton.jit(do_not_specialize=["shares"], do_not_specialize_on_alignment=_TABLES[:3])
def merge_kernel(
    partial,
    weights,
    out,
    tiles,
    starts,
    counts,
    shares,
    HEADS: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_V: tl.constexpr,
    MERGED: tl.constexpr,
    MAX_SHARES: tl.constexpr,
):
    """out [T, HEADS, VALUE_WIDTH] from the partial results of `attend_kernel`, one token and head a program."""
    tile = tl.program_id(0) // TILE
    row = tl.load(tiles + 2 * tile)
    at = tl.load(tiles + 2 * tile + 1) + tl.program_id(0) % TILE
    if at >= tl.load(counts + row):
        return
    target = (tl.load(starts + row) + at).to(tl.int64) * HEADS + tl.program_id(1)
    share = tl.arange(0, MAX_SHARES)
    top = tl.max(tl.load(weights + target * shares + share, mask=share < shares, other=float("-inf")), 0)
    in_value = tl.arange(0, BLOCK_V)
    sums = tl.zeros([BLOCK_V], tl.float32)
    total = 0.0
    for first in range(0, shares, MERGED):
        some = first + tl.arange(0, MERGED)
        mass = tl.load(weights + target * shares + some, mask=some < shares, other=float("-inf"))
        weight = tl.exp2(mass - top)  # 0 for a share that saw nothing
        piece = tl.load(
            partial + (target * shares + some)[:, None] * VALUE_WIDTH + in_value[None, :],
            mask=(weight > 0.0)[:, None] & (in_value < VALUE_WIDTH)[None, :],
            other=0.0,
        )  # [MERGED, V]
        sums += tl.sum(piece * weight[:, None], 0)
        total += tl.sum(weight, 0)
    tl.store(
        out + target * VALUE_WIDTH + in_value,
        (sums / total).to(out.dtype.element_ty),
        mask=in_value < VALUE_WIDTH,
    )


@dataclass(frozen=True, slots=True)
class Layer:
    """What a compiled kernel depends on: the layer's widths, the size of a tile, which masks apply."""

    heads: int
    key_heads: int
    key_width: int
    value_width: int
    tile: int
    page: int
    dtype: torch.dtype
    windowed: bool = False
    capped: bool = False

    @classmethod
    def of(cls, query: Tensor, keys: Tensor, values: Tensor, *, tile: int, windowed: bool, capped: bool) -> Layer:
        """The layer that these tensors belong to."""
        assert query.dtype == keys.dtype == values.dtype, "queries and pool are of one dtype"
        heads, key_heads, page = query.shape[1], keys.shape[2], keys.shape[1]
        widths = query.shape[2], values.shape[3]
        return cls(heads, key_heads, *widths, tile, page, query.dtype, windowed=windowed, capped=capped)

    @property
    def shared(self) -> int:
        """Query heads a key head."""
        return self.heads // self.key_heads


@dataclass(frozen=True, slots=True)
class Blocks:
    """How a layer's attention is cut into programs."""

    m: int  # query tokens times heads a program
    n: int  # keys a step
    k: int  # key width, padded to a power of two
    v: int  # value width, likewise
    pieces: int  # programs a tile and key head
    num_warps: int
    num_stages: int


def blocks(layer: Layer) -> Blocks:
    """Sizes that keep all sums in registers (`make kernels` shows it)."""
    k, v = (max(16, triton.next_power_of_2(width)) for width in (layer.key_width, layer.value_width))
    large, full = max(k, v) > 128, layer.dtype == torch.float32
    most = (16 if large else 32) if full else 64
    m = max(16, min(triton.next_power_of_2(layer.tile * layer.shared), most))
    n = 32 if full or large else 64
    warps = 8 if m == 64 or (full and large) else 4
    pieces = triton.cdiv(layer.tile * layer.shared, m)
    return Blocks(m, n, k, v, pieces, num_warps=warps, num_stages=3 if m < 64 and not large else 2)


def constants(layer: Layer, *, split: bool) -> dict[str, Any]:
    """The compile-time arguments of `attend_kernel`."""
    sizes = blocks(layer)
    return {
        "HEADS": layer.heads,
        "SHARED": layer.shared,
        "KEY_WIDTH": layer.key_width,
        "VALUE_WIDTH": layer.value_width,
        "TILE": layer.tile,
        "PAGE": layer.page,
        "BLOCK_M": sizes.m,
        "BLOCK_N": sizes.n,
        "BLOCK_K": sizes.k,
        "BLOCK_V": sizes.v,
        "PIECES": sizes.pieces,
        "WINDOWED": layer.windowed,
        "CAPPED": layer.capped,
        "SPLIT": split,
        "WIDE": wide(layer.dtype),
    }


def merge_constants(layer: Layer) -> dict[str, Any]:
    """The compile-time arguments of `merge_kernel`."""
    width = triton.next_power_of_2(layer.value_width)
    return {
        "HEADS": layer.heads,
        "VALUE_WIDTH": layer.value_width,
        "TILE": layer.tile,
        "BLOCK_V": width,
        "MERGED": _MERGED,
        "MAX_SHARES": _MAX_SHARES,
    }


def merge_warps(layer: Layer) -> int:
    """Warps of `merge_kernel`."""
    return 1 if layer.value_width <= 128 else 4


def shares_for(layer: Layer, *, tiles: int, longest: int, window: int | None, processors: int) -> int:
    """Over how many programs the keys of a row are split: enough to keep the device busy, none of them too small."""
    sizes = blocks(layer)
    programs = tiles * layer.key_heads * sizes.pieces
    seen = longest if window is None else min(longest, window + layer.tile)
    fewest = max(_MIN_KEYS, _MIN_KEYS_A_QUERY * sizes.m)
    return max(1, min(-(-_BUSY * processors // programs), seen // fewest, _MAX_SHARES))


def paged_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    table: Table,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    shares: int | None = None,
) -> Tensor:
    """Twin of `specbench.kernels.attention.paged_attention`.

    ``shares`` says over how many programs the keys of a row are split, None for what keeps the device busy.
    All shapes come from the host, so the launches can be captured in a graph and replayed for other rows.
    """
    windowed, capped = window is not None, softcap is not None
    layer = Layer.of(query, keys, values, tile=table.tile, windowed=windowed, capped=capped)
    sizes, tiles = blocks(layer), table.tiles.shape[0]
    out = torch.empty(*query.shape[:2], layer.value_width, dtype=query.dtype, device=query.device)
    if tiles == 0:
        return out
    if shares is None:
        busy = processors(query.device)
        shares = shares_for(layer, tiles=tiles, longest=table.longest, window=window, processors=busy)
    split = shares > 1
    partial, weights = _partial(table, out, shares) if split else (out, out)
    with torch.cuda.device_of(query):
        attend_kernel[tiles, layer.key_heads * sizes.pieces, shares](
            query,
            keys,
            values,
            partial,
            weights,
            *(table.tiles, table.starts, table.counts, table.lengths, table.pages, table.pages.stride(0)),
            *query.stride(),
            *keys.stride(),
            *values.stride(),
            scale * _LOG2E if softcap is None else scale / softcap,
            0.0 if softcap is None else softcap,
            0 if window is None else window,
            shares,
            **constants(layer, split=split),
            num_warps=sizes.num_warps,
            num_stages=sizes.num_stages,
            enable_fp_fusion=True,
        )
        if split:
            merge_kernel[tiles * layer.tile, layer.heads](
                *(partial, weights, out, table.tiles, table.starts, table.counts, shares),
                **merge_constants(layer),
                num_warps=merge_warps(layer),
                enable_fp_fusion=True,
            )
    return out


def _partial(table: Table, out: Tensor, shares: int) -> tuple[Tensor, Tensor]:
    """[T, H, shares, Dv] and [T, H, shares] float32 to leave partial results in: the same memory for every layer."""
    num_tokens, heads, width = out.shape
    key = (num_tokens, heads, shares, width)
    if key not in table.kept:
        size = num_tokens * heads * shares * (width + 1)
        table.kept[key] = torch.empty(size, dtype=torch.float32, device=out.device)
    each = num_tokens * heads * shares
    return table.kept[key][: each * width], table.kept[key][each * width :]
