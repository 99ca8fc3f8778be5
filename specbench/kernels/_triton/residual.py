"""The correction or bonus token of each request, from one row of the target's logits and one of the draft's.

A kernel sums the target's weights and the residual's, max(p - q, 0), over tiles of the vocabulary; another finds the
tile that holds the point and the token in it. What rounding may do is said in `specbench.kernels._triton.sample`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from specbench.kernels._triton.probs import cut
from specbench.kernels._triton.sample import first_beyond, point_of
from specbench.kernels._triton.threshold import scaled
from specbench.kernels._triton.variant import Variant

POINT, DENSE, MAPPED = 0, 1, 2  # the drafts' distribution: point masses, over the first target ids, over mapped ids


@triton.jit
def read(logits_ptr, at, inside, index, row, temperature_ptr, threshold_ptr, last_ptr, RAW: tl.constexpr):
    """Processed logits, float64, at offsets ``at`` (entries ``index`` of flat row ``row``); -inf where masked."""
    x = tl.load(logits_ptr + at, mask=inside, other=-float("inf"))
    if RAW:
        y = scaled(x, tl.load(temperature_ptr + row))
        x = cut(y, index, tl.load(threshold_ptr + row), tl.load(last_ptr + row))
    return x.to(tl.float64)


@triton.jit
def _weights(
    logits_ptr,
    stride,
    normaliser_ptr,
    temperature_ptr,
    threshold_ptr,
    last_ptr,
    draft_ptr,
    draft_stride,
    q_ptr,
    q_row,
    q_position,
    q_normaliser_ptr,
    q_normaliser_row,
    inverse_ptr,
    row,
    flat,
    accepted,
    rejected,
    at,
    width,
    q_width,
    RAW: tl.constexpr,
    KIND: tl.constexpr,
):
    """p and what is left of it at tokens ``at``: max(p - q, 0) where a draft was rejected, p elsewhere."""
    inside = at < width
    x = read(logits_ptr, flat * stride + at, inside, at, flat, temperature_ptr, threshold_ptr, last_ptr, RAW)
    p = tl.exp(x - tl.load(normaliser_ptr + flat).to(tl.float64))
    left = p
    if rejected:
        if KIND == 0:
            token = tl.load(draft_ptr + row * draft_stride + accepted)
            token = tl.minimum(tl.maximum(token, 0), width - 1)
            left = tl.where(at == token, 0.0, p)
        else:
            index = at
            known = inside & (at < q_width)
            if KIND == 2:
                index = tl.load(inverse_ptr + at, mask=inside, other=-1)
                known = index >= 0
            q = tl.load(q_ptr + row * q_row + accepted * q_position + index, mask=known, other=-float("inf"))
            log_q = q.to(tl.float64) - tl.load(q_normaliser_ptr + row * q_normaliser_row + accepted).to(tl.float64)
            left = tl.maximum(p - tl.exp(log_q), 0.0)
    return p, left


@triton.jit
def residual_kernel(
    logits_ptr,
    stride,
    normaliser_ptr,
    temperature_ptr,
    threshold_ptr,
    last_ptr,
    draft_ptr,
    draft_stride,
    q_ptr,
    q_row,
    q_position,
    q_normaliser_ptr,
    q_normaliser_row,
    inverse_ptr,
    start_ptr,
    length_ptr,
    accepted_ptr,
    p_mass_ptr,
    left_mass_ptr,
    width,
    q_width,
    tiles,
    RAW: tl.constexpr,
    KIND: tl.constexpr,
    TILE: tl.constexpr,
):
    """Sums over each tile of the target's weights and of the residual's, at each request's next position."""
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    accepted = tl.load(accepted_ptr + row)
    p, left = _weights(
        logits_ptr,
        stride,
        normaliser_ptr,
        temperature_ptr,
        threshold_ptr,
        last_ptr,
        draft_ptr,
        draft_stride,
        q_ptr,
        q_row,
        q_position,
        q_normaliser_ptr,
        q_normaliser_row,
        inverse_ptr,
        row,
        tl.load(start_ptr + row) + accepted,
        accepted,
        accepted < tl.load(length_ptr + row),
        tile * TILE + tl.arange(0, TILE),
        width,
        q_width,
        RAW,
        KIND,
    )
    tl.store(p_mass_ptr + row * tiles + tile, tl.sum(p, axis=0))
    tl.store(left_mass_ptr + row * tiles + tile, tl.sum(left, axis=0))


@triton.jit
def next_kernel(
    logits_ptr,
    stride,
    normaliser_ptr,
    temperature_ptr,
    threshold_ptr,
    last_ptr,
    draft_ptr,
    draft_stride,
    q_ptr,
    q_row,
    q_position,
    q_normaliser_ptr,
    q_normaliser_row,
    inverse_ptr,
    start_ptr,
    length_ptr,
    accepted_ptr,
    p_mass_ptr,
    left_mass_ptr,
    u_ptr,
    next_ptr,
    width,
    q_width,
    tiles,
    RAW: tl.constexpr,
    KIND: tl.constexpr,
    MIN_MASS: tl.constexpr,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
):
    """The correction or bonus token of each request, from the sums of `residual_kernel`."""
    row = tl.program_id(0).to(tl.int64)
    accepted = tl.load(accepted_ptr + row)
    tile_index = tl.arange(0, TILES)
    masses = tl.load(p_mass_ptr + row * tiles + tile_index, mask=tile_index < tiles, other=0.0)
    left_masses = tl.load(left_mass_ptr + row * tiles + tile_index, mask=tile_index < tiles, other=0.0)
    rejected = accepted < tl.load(length_ptr + row)
    use_left = rejected & (tl.sum(left_masses, axis=0) > MIN_MASS)
    masses = tl.where(use_left, left_masses, masses)
    point = point_of(tl.load(u_ptr + row), tl.sum(masses, axis=0))
    tile, before = first_beyond(masses, point, tile_index, TILES)
    in_tile = tl.arange(0, TILE)
    p, left = _weights(
        logits_ptr,
        stride,
        normaliser_ptr,
        temperature_ptr,
        threshold_ptr,
        last_ptr,
        draft_ptr,
        draft_stride,
        q_ptr,
        q_row,
        q_position,
        q_normaliser_ptr,
        q_normaliser_row,
        inverse_ptr,
        row,
        tl.load(start_ptr + row) + accepted,
        accepted,
        rejected,
        tile * TILE + in_tile,
        width,
        q_width,
        RAW,
        KIND,
    )
    place, _ = first_beyond(tl.where(use_left, left, p), point - before, in_tile, TILE)
    tl.store(next_ptr + row, (tile * TILE + place).to(tl.int64))


def _variants() -> list[Variant]:
    """128 requests that verified 7 drafts and rejected one each, over Qwen3's vocabulary, raw logits cut as read."""
    rows, width, tile = 128, 151_936, 2048
    tiles = triton.cdiv(width, tile)
    sums = 2 * rows * tiles * 8
    pointers = {"normaliser_ptr": "*fp32", "temperature_ptr": "*fp32", "threshold_ptr": "*fp32", "last_ptr": "*i32"}
    pointers |= {"draft_ptr": "*i64", "q_ptr": "*fp32", "q_normaliser_ptr": "*fp32", "inverse_ptr": "*i32"}
    pointers |= {"start_ptr": "*i64", "length_ptr": "*i64", "accepted_ptr": "*i64"}
    pointers |= {"p_mass_ptr": "*fp64", "left_mass_ptr": "*fp64"}
    numbers = ("stride", "draft_stride", "q_row", "q_position", "q_normaliser_row", "width", "q_width", "tiles")
    types = pointers | dict.fromkeys(numbers, "i32")
    aligned = ("logits_ptr", "stride", "q_ptr", "q_row", "q_position", "width")
    out = []
    kinds = ((DENSE, "sampled", 4), (POINT, "point masses", 0), (MAPPED, "32000 mapped ids", 8))
    for dtype, size, count in (("bf16", 2, 3), ("fp16", 2, 1), ("fp32", 4, 1)):
        for kind, name, extra in kinds[:count]:
            row = width * (size + (extra if kind == DENSE else 0)) + (width * 4 + 32_000 * 4 if kind == MAPPED else 0)
            once = row - (width * 4 * (rows - 1) // rows if kind == MAPPED else 0)  # the map is the same for all
            tokens = {"logits_ptr": f"*{dtype}"}
            out.append(
                Variant(
                    residual_kernel,
                    dtype,
                    f"{rows} rows of [{width}], {name}",
                    types=tokens | types,
                    constants={"RAW": True, "KIND": kind, "TILE": tile},
                    moved=rows * row + sums,
                    fewest=rows * once + sums,
                    aligned=aligned,
                    num_warps=8,
                )
            )
            moved = rows * (row * tile // width + 16) + sums
            out.append(
                Variant(
                    next_kernel,
                    dtype,
                    f"{rows} rows of [{width}], {name}",
                    types=tokens | types | {"u_ptr": "*fp64", "next_ptr": "*i64"},
                    constants={
                        "RAW": True,
                        "KIND": kind,
                        "MIN_MASS": 1e-12,
                        "TILE": tile,
                        "TILES": triton.next_power_of_2(tiles),
                    },
                    moved=moved,
                    fewest=moved,
                    aligned=aligned,
                    num_warps=8,
                )
            )
    return out


VARIANTS = _variants()
