"""Linear layers of a CPU target: the product is laid out, and the weight read, as suits a handful of tokens.

A decode step multiplies a large weight by few rows. In float32 the matrix library packs the weight anew for every
call unless the few rows come first in its own (column-major) order; asked for weight times rows it reads the weight
once, at up to half the time for two to eight tokens. In bfloat16 a processor without bfloat16 arithmetic emulates
every product at about a tenth of its float32 rate; converting a tile of the weight to float32 while it is in cache
and multiplying there reads each weight once from memory, as bfloat16, for any number of tokens. The sum is rounded to
bfloat16 once, as native arithmetic does. Results differ from `nn.Linear` in the order of the float32 sums only.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_TILE = 512 * 576  # weight elements converted at a time: about 1.2 MB of float32
_NARROW = 8  # up to this many tokens the product is asked for as weight times rows
_FROM = 3  # bfloat16: fewer tokens than this are faster in the emulated product, which is bound by memory


def has_native_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 itself (AVX-512 BF16, AMX, Arm BF16)."""
    capability = torch.backends.cpu.get_cpu_capability()
    if not capability.startswith("AVX"):
        return True
    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(bool(getattr(torch.cpu, name, lambda: False)()) for name in probes)


class NarrowLinear(nn.Module):
    """Shares weight and bias of a `nn.Linear` in float32, or in bfloat16 that the processor cannot multiply."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = linear.weight  # [out, in]
        self.bias = linear.bias
        self.out_features, self.in_features = linear.out_features, linear.in_features

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] to [..., out] in the weight's dtype."""
        flat = x.reshape(-1, self.in_features)
        count = flat.shape[0]
        if self.weight.dtype == torch.bfloat16 and count >= _FROM:
            out = self._tiled(flat)
        elif self.weight.dtype == torch.float32 and 1 < count <= _NARROW:
            out = (self.weight @ flat.t()).t()
        else:
            return nn.functional.linear(x, self.weight, self.bias)
        if self.bias is not None:
            out = out + self.bias
        return out.to(x.dtype).contiguous().view(*x.shape[:-1], self.out_features)

    def _tiled(self, flat: Tensor) -> Tensor:
        """[T, in] bfloat16 to [T, out] float32, one tile of the weight after the other."""
        rows = max(_TILE // self.in_features, 1)
        wide = flat.float()
        out = wide.new_empty(flat.shape[0], self.out_features)
        for start in range(0, self.out_features, rows):
            tile = self.weight[start : start + rows].float()
            out[:, start : start + rows] = (tile @ wide.t()).t() if flat.shape[0] <= _NARROW else wide @ tile.t()
        return out


def use_narrow_linears(model: nn.Module) -> int:
    """Replace the plain linear layers of a CPU model in place, where that helps; how many were replaced.

    Layers of other kinds, and bfloat16 ones where the processor multiplies bfloat16, stay. Shared weights stay shared.
    """
    wanted = {torch.float32} if has_native_bfloat16() else {torch.float32, torch.bfloat16}
    count = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and child.weight.dtype in wanted:
                setattr(parent, name, NarrowLinear(child))
                count += 1
    return count
