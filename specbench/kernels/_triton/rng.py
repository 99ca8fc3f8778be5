"""Philox-4x32-10 on the device: bit for bit the draws of `specbench.kernels.rng`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench.kernels._triton.variant import Variant

_BLOCK = 256


@triton.jit
def philox(c0, c1, c2, c3, k0, k1):
    """The first two output words, as uint64 that hold 32 bits, of counter (c0..c3) and key (k0, k1), likewise."""
    mask: tl.constexpr = 0xFFFFFFFF
    for _ in tl.static_range(10):
        p0 = c0 * 0xD2511F53
        p1 = c2 * 0xCD9E8D57
        c0 = (p1 >> 32) ^ c1 ^ k0
        c1 = p1 & mask
        c2 = (p0 >> 32) ^ c3 ^ k1
        c3 = p0 & mask
        k0 = (k0 + 0x9E3779B9) & mask
        k1 = (k1 + 0xBB67AE85) & mask
    return c0, c1


@triton.jit
def draw(seed, number, anchor, offset, PURPOSE: tl.constexpr):
    """Uniforms in [0, 1) with 53 random bits, float64; all arguments int64 and of one shape."""
    mask: tl.constexpr = 0xFFFFFFFF
    c0 = (number & mask).to(tl.uint64)
    c1 = (anchor & mask).to(tl.uint64)
    c2 = offset.to(tl.uint64)
    c3 = ((((number >> 32) & 0xFFFFFF) << 8) | PURPOSE).to(tl.uint64)
    w0, w1 = philox(c0, c1, c2, c3, (seed & mask).to(tl.uint64), ((seed >> 32) & mask).to(tl.uint64))
    bits = ((w0 >> 5) << 26) | (w1 >> 6)
    return bits.to(tl.int64).to(tl.float64) * 1.1102230246251565e-16  # 2 ** -53


# Rows of one table: where they begin follows the batch, and must not lead to another compilation in a run.
@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["seed_ptr", "number_ptr", "anchor_ptr"])
def uniform_kernel(
    seed_ptr, number_ptr, anchor_ptr, out_ptr, count, OFFSETS: tl.constexpr, PURPOSE: tl.constexpr, BLOCK: tl.constexpr
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    row = at // OFFSETS
    seed = tl.load(seed_ptr + row, mask=inside, other=0)
    number = tl.load(number_ptr + row, mask=inside, other=0)
    anchor = tl.load(anchor_ptr + row, mask=inside, other=0)
    tl.store(out_ptr + at, draw(seed, number, anchor, (at % OFFSETS).to(tl.int64), PURPOSE), mask=inside)


def uniform(seed: Tensor, number: Tensor, anchor: Tensor, *, offsets: int, purpose: int) -> Tensor:
    """Twin of `specbench.kernels.rng.uniform`."""
    rows = seed.shape[0]
    out = torch.empty(rows, offsets, dtype=torch.float64, device=seed.device)
    if out.numel():
        uniform_kernel[(triton.cdiv(out.numel(), _BLOCK),)](
            seed.contiguous(),
            number.contiguous(),
            anchor.contiguous(),
            out,
            out.numel(),
            OFFSETS=offsets,
            PURPOSE=int(purpose),
            BLOCK=_BLOCK,
        )
    return out


VARIANTS = [
    Variant(
        kernel=uniform_kernel,
        dtype="i64",
        shape="128 rows, 15 draws each",
        types={"seed_ptr": "*i64", "number_ptr": "*i64", "anchor_ptr": "*i64", "out_ptr": "*fp64", "count": "i32"},
        constants={"OFFSETS": 15, "PURPOSE": 1, "BLOCK": _BLOCK},
        moved=128 * 15 * (3 * 8 + 8),
        fewest=128 * (3 * 8 + 15 * 8),
        aligned=("out_ptr",),
    )
]
