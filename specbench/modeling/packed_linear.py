"""Linear layers of a CPU model with their weights packed as half floats, where that loses nothing.

Weights published in bfloat16 carry eight significant bits, which a half float holds exactly once a row is scaled by a
power of two into its range. The matrix library widens packed half floats in registers, so the product is the float32
one of the very same numbers, at half the memory traffic of float32 and at a fraction of the time of bfloat16 on a
processor that must emulate it: one token costs about half as much, eight tokens a third to a half. Only the order of
the float32 sums differs from `nn.Linear`. A weight that does not fit exactly is left alone.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
from torch import Tensor, nn

_PIECE = 2048  # columns of a wide product computed at once: they stay in cache until they are put in place
_SHARED = 1 << 18  # a smaller weight is not worth waking a second thread for
_BLOCK, _COLUMNS = 512, 16  # how the matrix library tiles a packed weight
_TOP = 14  # a scaled row's largest entry lies below 2 ** (_TOP + 1), inside the range of half floats


@functools.cache
def can_pack() -> bool:
    """Whether this build of torch, on this processor, has the product with packed half floats."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says once that these calls may go; this function then says no
        try:
            for packed in (_Alone(torch.ones(8, 8)), _Threaded(torch.ones(8, 8))):
                packed(torch.ones(1, 8), torch.zeros(8), dtype=torch.float32)
        except (AttributeError, RuntimeError):
            return False
    return True


def exact_half(weight: Tensor) -> tuple[Tensor, Tensor | None] | None:
    """A float32 copy of ``weight`` [out, in] that half floats hold exactly, and the factor [out] it was scaled by.

    The factor is None where none is needed; each is a power of two. None where half floats cannot hold the weight.
    """
    wide = weight.detach().float()
    if not bool(wide.sum().isfinite()):
        return None
    if _holds(wide):
        return wide, None
    _, exponent = torch.frexp(wide.abs().amax(dim=1))  # |entry| < 2 ** exponent
    factor = torch.ldexp(torch.ones_like(wide[:, 0]), _TOP + 1 - exponent.clamp(-80, 80))
    scaled = wide * factor[:, None]
    return (scaled, factor) if _holds(scaled) else None


def _holds(wide: Tensor) -> bool:
    """Whether half floats hold every entry of ``wide`` [out, in]; a few rows at a time, to take little memory."""
    rows = max(1, (1 << 20) // wide.shape[1])
    return all(bool((part.half().float() == part).all()) for part in torch.split(wide, rows))


class PackedLinear(nn.Module):
    """What `nn.Linear` computes, from packed half floats; for inference.

    It computes in float32 and returns ``dtype`` (None: the weight's). With ``keep`` the weight stays beside the packed
    form, for those who share it or need its gradient.
    """

    def __init__(
        self, linear: nn.Linear, scaled: Tensor, factor: Tensor | None, *, keep: bool, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.out_features, self.in_features = linear.out_features, linear.in_features
        if keep:
            self.weight = linear.weight  # [out, in]
        self.bias = linear.bias
        self.dtype = linear.weight.dtype if dtype is None else dtype
        self._kept = keep
        threaded = torch.get_num_threads() > 1 and scaled.numel() >= _SHARED
        self._product = _Threaded(scaled) if threaded else _Alone(scaled)
        self._inverse = None if factor is None else 1.0 / factor  # exact: powers of two
        added = self.bias is not None and factor is None
        self._added = linear.bias.detach().float() if added else None

    @property
    def packed_bytes(self) -> int:
        """Bytes of the packed weight: its inputs are padded to blocks, its outputs to the width of two registers."""
        padded = -(-self.in_features // _BLOCK) * _BLOCK
        return 2 * padded * (-(-self.out_features // _COLUMNS) * _COLUMNS)

    @property
    def read_bytes(self) -> int:
        """Bytes of it that a product reads."""
        return 2 * self.in_features * self.out_features

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] to [..., out] in the layer's dtype. Under gradients the kept weight is used."""
        if torch.is_grad_enabled() and self._kept:
            return nn.functional.linear(x, self.weight, self.bias)
        assert not (torch.is_grad_enabled() and x.requires_grad), "packed weights give no gradients"
        if self._inverse is None:
            return self._product(x.float(), self._added, dtype=self.dtype)
        out = self._product(x.float(), None, dtype=torch.float32) * self._inverse
        return (out if self.bias is None else out + self.bias).to(self.dtype)


class _Alone:
    """The product on one thread: the call with the least around it, for a wide weight piece by piece."""

    def __init__(self, weight: Tensor) -> None:
        """``weight``: float32 [out, in] whose entries half floats hold exactly."""
        pieces = torch.split(weight, _PIECE) if len(weight) >= 2 * _PIECE else (weight,)
        self._packed: list[Tensor] = [torch.fbgemm_pack_gemm_matrix_fp16(piece) for piece in pieces]
        self._width = len(weight)

    def __call__(self, x: Tensor, bias: Tensor | None, *, dtype: torch.dtype) -> Tensor:
        """float32 [..., in] to [..., out] in ``dtype``, which the float32 product is rounded to once."""
        product = torch.fbgemm_linear_fp16_weight_fp32_activation
        if len(self._packed) == 1:
            one: Tensor = product(x, self._packed[0], bias)
            return one.to(dtype)
        out = x.new_empty(*x.shape[:-1], self._width, dtype=dtype)
        first = 0
        for packed in self._packed:
            last = min(first + _PIECE, self._width)
            out[..., first:last] = product(x, packed, None if bias is None else bias[first:last])
            first = last
        return out


class _Threaded:
    """The same product, its columns shared out among torch's threads."""

    def __init__(self, weight: Tensor) -> None:
        self._packed: Any = torch.ops.quantized.linear_prepack_fp16(weight, None)

    def __call__(self, x: Tensor, bias: Tensor | None, *, dtype: torch.dtype) -> Tensor:
        """float32 [..., in] to [..., out] in ``dtype``."""
        out: Tensor = torch.ops.quantized.linear_dynamic_fp16(x, self._packed)
        return (out if bias is None else out.add_(bias)).to(dtype)
