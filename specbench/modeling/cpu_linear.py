"""bfloat16 linear layers on processors without bfloat16 arithmetic: weights stay as they are, tiles compute in float32.

Such a processor emulates every product, at about a tenth of its float32 rate. Converting a tile of the weight to
float32 while it is in cache and multiplying there reads each weight once from memory, as bfloat16, for any number of
tokens; the sum is rounded to bfloat16 once, as native arithmetic does.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_TILE = 512 * 576  # weight elements converted at a time: about 1.2 MB of float32, a core's second-level cache
_FROM = 3  # fewer tokens than this are faster in the emulated product, which is bound by memory


def has_native_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 itself (AVX-512 BF16, AMX, Arm BF16)."""
    capability = torch.backends.cpu.get_cpu_capability()
    if not capability.startswith("AVX"):
        return True
    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(bool(getattr(torch.cpu, name, lambda: False)()) for name in probes)


class TiledLinear(nn.Module):
    """Shares the weight and bias of a bfloat16 `nn.Linear`; same result up to the order of the float32 sums."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = linear.weight  # [out, in]
        self.bias = linear.bias
        self.out_features, self.in_features = linear.out_features, linear.in_features

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] to [..., out], both bfloat16."""
        flat = x.reshape(-1, self.in_features)
        if flat.shape[0] < _FROM:
            return nn.functional.linear(x, self.weight, self.bias)
        rows = max(_TILE // self.in_features, 1)
        wide = flat.float()
        out = wide.new_empty(flat.shape[0], self.out_features)
        for start in range(0, self.out_features, rows):
            tile = self.weight[start : start + rows].float()
            out[:, start : start + rows] = wide @ tile.t()
        if self.bias is not None:
            out += self.bias.float()
        return out.to(x.dtype).view(*x.shape[:-1], self.out_features)


def use_tiled_linears(model: nn.Module) -> int:
    """Replace every bfloat16 `nn.Linear` of ``model`` in place; how many were replaced. Shared weights stay shared."""
    count = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and child.weight.dtype == torch.bfloat16:
                setattr(parent, name, TiledLinear(child))
                count += 1
    return count
