"""Root-mean-square norms of the draft layers, with the rounding that each family uses."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """x / rms(x) * w over the last axis, statistics in float32 (Zhang and Sennrich, 2019).

    ``one_plus``: the stored weight is w - 1. ``float_scale``: multiply before rounding to the input's dtype (Gemma)
    and not after (Qwen3, Llama). ``weighted`` False has no weight at all.
    """

    def __init__(
        self,
        dim: int,
        *,
        eps: float,
        one_plus: bool = False,
        float_scale: bool = False,
        weighted: bool = True,
    ) -> None:
        super().__init__()
        self.eps = eps
        self.one_plus = one_plus
        self.float_scale = float_scale or one_plus
        self.weight = nn.Parameter(torch.zeros(dim) if one_plus else torch.ones(dim)) if weighted else None

    def forward(self, x: Tensor) -> Tensor:
        """[..., dim] to [..., dim] in the input's dtype."""
        wide = x.to(torch.float32)
        normed = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        if self.weight is None:
            return normed.to(x.dtype)
        if not self.float_scale:
            return self.weight * normed.to(x.dtype)
        weight = self.weight.to(torch.float32)
        return (normed * (1.0 + weight if self.one_plus else weight)).to(x.dtype)
