"""Counter-based random numbers: the same draw for the same (seed, request, anchor, offset, purpose), anywhere.

Philox-4x32 with ten rounds (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011). The anchor
position is part of the counter, so a position that was rejected and is drafted again sees fresh noise: with noise
keyed by position alone, older confidences have already seen it and a lagged verification budget becomes biased.
"""

from __future__ import annotations

from enum import IntEnum

import torch
from torch import Tensor

from specbench.kernels.dispatch import uses_triton

_MASK = 0xFFFFFFFF
_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85


class Purpose(IntEnum):
    """What a draw decides; draws for different purposes are independent."""

    DRAFT = 0
    ACCEPT = 1
    NEXT = 2
    POLICY = 3


def philox(c0: Tensor, c1: Tensor, c2: Tensor, c3: Tensor, k0: Tensor, k1: Tensor) -> tuple[Tensor, Tensor]:
    """The first two of the four 32-bit output words for counter (c0..c3) and key (k0, k1).

    All arguments are int64 tensors holding 32-bit values, broadcastable; products wrap modulo 2^64, which keeps both
    halves exact.
    """
    for _ in range(10):
        p0, p1 = c0 * _M0, c2 * _M1
        c0, c1, c2, c3 = (p1 >> 32 & _MASK) ^ c1 ^ k0, p1 & _MASK, (p0 >> 32 & _MASK) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    return c0, c1


def uniform(seed: Tensor, number: Tensor, anchor: Tensor, *, offsets: int, purpose: int) -> Tensor:
    """Uniforms in [0, 1) with 53 random bits.

    Args:
        seed, number, anchor: [B] int64: the request's seed and number, and the anchor's position in the sequence.
        offsets: how many draws a row; the offset in the round is part of the counter.
        purpose: a `Purpose`.

    Returns:
        [B, offsets] float64.
    """
    if uses_triton(seed):
        from specbench.kernels._triton import rng as twin

        return twin.uniform(seed, number, anchor, offsets=offsets, purpose=purpose)
    offset = torch.arange(offsets, device=seed.device)[None, :]  # [1, offsets]
    c0 = (number & _MASK)[:, None].expand(-1, offsets)
    c1 = (anchor & _MASK)[:, None]
    c2 = offset
    c3 = (number >> 32 & 0xFFFFFF)[:, None] << 8 | purpose
    k0, k1 = (seed & _MASK)[:, None], (seed >> 32 & _MASK)[:, None]
    w0, w1 = philox(c0, c1, c2, c3, k0, k1)
    bits = (w0 >> 5 << 26) | (w1 >> 6)  # 27 + 26 bits
    return bits.to(torch.float64) * 2.0**-53
