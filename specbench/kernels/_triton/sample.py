"""One token per row by the inverse of the cumulative sum, the sum kept by tiles of the vocabulary, all in float64.

The first kernel sums the weights of each tile, the second finds the tile that holds the point and the token in it. A
token's probability is its weight over the sum of all, exact to float64 rounding, and a token of weight 0 is never
drawn. The sums are taken in another order than the definition's: a point within about 1e-15 of the total from the
boundary of two tokens may fall to the other one.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench.kernels._triton.variant import Variant

TILE = 2048
_WARPS = 8


@triton.jit
def first_beyond(weights, point, index, SIZE: tl.constexpr):
    """The first place in ``weights`` [SIZE] of positive weight whose running sum is above ``point``, and the sum up to
    that place without it. ``index`` is 0 .. SIZE - 1. Where rounding leaves none, the last place of positive weight;
    0 where nothing has weight."""
    running = tl.cumsum(weights, axis=0)
    found = tl.min(tl.where((running > point) & (weights > 0.0), index, SIZE), axis=0)
    final = tl.maximum(tl.max(tl.where(weights > 0.0, index, -1), axis=0), 0)
    place = tl.where(found == SIZE, final, found)
    before = tl.sum(tl.where(index == place, running - weights, 0.0), axis=0)
    return place, before


@triton.jit
def point_of(u, total):
    """Where the uniform ``u`` falls below ``total``: never on it."""
    below = (total.to(tl.int64, bitcast=True) - 1).to(tl.float64, bitcast=True)  # the next smaller positive number
    return tl.minimum(u * total, tl.where(total > 0.0, below, 0.0))


@triton.jit
def _weights(logits_ptr, stride, normaliser_ptr, row, at, width):
    x = tl.load(logits_ptr + row * stride + at, mask=at < width, other=-float("inf")).to(tl.float64)
    return tl.exp(x - tl.load(normaliser_ptr + row).to(tl.float64))


@triton.jit
def mass_kernel(logits_ptr, stride, normaliser_ptr, mass_ptr, width, tiles, TILE: tl.constexpr):
    """The sum of exp(logits - normaliser) over each tile of each row."""
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    weights = _weights(logits_ptr, stride, normaliser_ptr, row, tile * TILE + tl.arange(0, TILE), width)
    tl.store(mass_ptr + row * tiles + tile, tl.sum(weights, axis=0))


@triton.jit
def sample_kernel(
    logits_ptr,
    stride,
    normaliser_ptr,
    mass_ptr,
    u_ptr,
    token_ptr,
    width,
    tiles,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
):
    """The token of each row, from the sums that `mass_kernel` left."""
    row = tl.program_id(0).to(tl.int64)
    tile_index = tl.arange(0, TILES)
    masses = tl.load(mass_ptr + row * tiles + tile_index, mask=tile_index < tiles, other=0.0)
    point = point_of(tl.load(u_ptr + row), tl.sum(masses, axis=0))
    tile, before = first_beyond(masses, point, tile_index, TILES)
    in_tile = tl.arange(0, TILE)
    weights = _weights(logits_ptr, stride, normaliser_ptr, row, tile * TILE + in_tile, width)
    place, _ = first_beyond(weights, point - before, in_tile, TILE)
    tl.store(token_ptr + row, (tile * TILE + place).to(tl.int64))


def sample(logits: Tensor, log_normaliser: Tensor, u: Tensor) -> Tensor:
    """Twin of `specbench.kernels.sample.sample`."""
    rows, width = logits.shape
    assert logits.stride(1) == 1 or width == 1, "a row of logits is contiguous"
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if rows == 0:
        return tokens
    tiles = triton.cdiv(width, TILE)
    masses = torch.empty(rows, tiles, dtype=torch.float64, device=logits.device)
    log_normaliser = log_normaliser.contiguous()
    mass_kernel[rows, tiles](
        logits, logits.stride(0), log_normaliser, masses, width, tiles, TILE=TILE, num_warps=_WARPS
    )
    sample_kernel[(rows,)](
        logits,
        logits.stride(0),
        log_normaliser,
        masses,
        u.contiguous(),
        tokens,
        width,
        tiles,
        TILE=TILE,
        TILES=triton.next_power_of_2(tiles),
        num_warps=_WARPS,
    )
    return tokens


def _variants() -> list[Variant]:
    """128 rows over Qwen3's vocabulary."""
    rows, width = 128, 151_936
    tiles = triton.cdiv(width, TILE)
    sums = rows * tiles * 8
    types = {"logits_ptr": "*fp32", "stride": "i32", "normaliser_ptr": "*fp32", "mass_ptr": "*fp64"}
    types |= {"width": "i32", "tiles": "i32"}
    aligned = ("logits_ptr", "stride", "width")
    first = Variant(
        mass_kernel,
        "fp32",
        f"[{rows}, {width}]",
        types=types,
        constants={"TILE": TILE},
        moved=rows * width * 4 + sums,
        fewest=rows * width * 4 + sums,
        aligned=aligned,
        num_warps=_WARPS,
    )
    second = Variant(
        sample_kernel,
        "fp32",
        f"[{rows}, {width}]",
        types=types | {"u_ptr": "*fp64", "token_ptr": "*i64"},
        constants={"TILE": TILE, "TILES": triton.next_power_of_2(tiles)},
        moved=rows * (TILE * 4 + 20) + sums,
        fewest=rows * (TILE * 4 + 20) + sums,
        aligned=aligned,
        num_warps=_WARPS,
    )
    return [first, second]


VARIANTS = _variants()
