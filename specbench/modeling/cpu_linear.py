"""Linear layers of a CPU target: the product is laid out, and the weight read, as suits a handful of tokens.

A decode step multiplies a large weight by few rows. One row is asked for as matrix times vector, which goes through the
weight with less around it than a product of two matrices. In float32 the matrix library packs the weight anew for every
call unless the few rows come first in its own (column-major) order; asked for weight times rows it reads the weight
once, at up to half the time for two to eight tokens. In bfloat16 a processor without bfloat16 arithmetic emulates
every product at about a tenth of its float32 rate; converting a tile of the weight to float32 while it is in cache
and multiplying there reads each weight once from memory, as bfloat16, for any number of tokens. The sum is rounded to
bfloat16 once, as native arithmetic does. Results differ from `nn.Linear` in the order of the float32 sums only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import torch
from torch import Tensor, nn

from specbench.kernels.processor import has_native_bfloat16
from specbench.modeling.host_memory import give_back_freed
from specbench.modeling.packed_linear import PackedLinear, can_pack, exact_half

_TILE = 768 * 576  # weight elements converted at a time: 1.8 MB of float32, in the cache until it is multiplied
_NARROW = 8  # up to this many tokens the product is asked for as weight times rows
_FROM = 3  # bfloat16: fewer tokens than this are faster in the emulated product, which is bound by memory


class NarrowLinear(nn.Module):
    """Shares weight and bias of a `nn.Linear` in float32, or in bfloat16 that the processor cannot multiply."""

    def __init__(self, linear: nn.Linear, scratch: Tensor | None = None) -> None:
        super().__init__()
        self.weight = linear.weight  # [out, in]
        self.bias = linear.bias
        self.out_features, self.in_features = linear.out_features, linear.in_features
        self._scratch = scratch if scratch is not None else new_scratch()

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] to [..., out] in the weight's dtype."""
        flat = x.reshape(-1, self.in_features)
        count = flat.shape[0]
        if torch.is_grad_enabled():  # none of the ways below is recorded for gradients
            return nn.functional.linear(x, self.weight, self.bias)
        if count == 1:
            out = torch.mv(self.weight, flat[0])
        elif self.weight.dtype == torch.bfloat16 and count >= _FROM:
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
        rows = min(max(_TILE // self.in_features, 1), self.out_features)
        if self._scratch.numel() < rows * self.in_features:  # one row longer than the tile
            self._scratch = self._scratch.new_empty(rows * self.in_features)
        tile = self._scratch[: rows * self.in_features].view(rows, self.in_features)
        wide = flat.float()
        out = wide.new_empty(flat.shape[0], self.out_features)
        for start in range(0, self.out_features, rows):
            part = self.weight[start : start + rows]
            converted = tile[: part.shape[0]].copy_(part)
            torch.mm(wide, converted.t(), out=out[:, start : start + rows])
        return out


def new_scratch() -> Tensor:
    """Room for one converted tile; layers that never run at the same time share it."""
    return torch.empty(_TILE, dtype=torch.float32)


def use_cpu_linears(model: nn.Module, *, keep: Collection[nn.Module] = (), dtype: torch.dtype | None = None) -> int:
    """Replace the plain linear layers of a CPU model in place, where that helps; how many were replaced.

    Packed half floats where they hold the weight exactly, else `NarrowLinear`. Layers of other kinds stay, and so do
    bfloat16 ones where the processor multiplies bfloat16. Packed layers give up their weight, except those in ``keep``
    and those whose weight another module shares. With ``dtype`` the whole model computes in that from here on.
    """
    wanted = {torch.float32} if has_native_bfloat16() else {torch.float32, torch.bfloat16}
    owners = Counter(p.data_ptr() for m in model.modules() for p in m.parameters(recurse=False))
    scratch = new_scratch()
    count = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is not nn.Linear or (dtype or child.weight.dtype) not in wanted:
                continue
            half = exact_half(child.weight) if can_pack() else None
            if half is None:
                setattr(parent, name, NarrowLinear(child, scratch))
            else:
                shared = child in keep or owners[child.weight.data_ptr()] > 1
                setattr(parent, name, PackedLinear(child, *half, keep=shared, dtype=dtype))
            count += 1
    _settle(model, dtype)
    return count


def _settle(model: nn.Module, dtype: torch.dtype | None) -> None:
    """Copy what is left, in ``dtype``: the mapping of the file it was read from ends, and freed memory goes back."""
    moved: dict[tuple[int, torch.Size, tuple[int, ...], torch.dtype], Tensor] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        old = tensor.data
        other = dtype is not None and old.is_floating_point() and old.dtype != dtype
        if old.device.type != "cpu":
            continue
        key = (old.data_ptr(), old.shape, old.stride(), old.dtype)  # views of one memory may differ in the rest
        if key not in moved:
            moved[key] = old.to(dtype) if other else old.clone()
        tensor.data = moved[key]
    moved.clear()
    give_back_freed()


def weight_bytes(model: nn.Module) -> int:
    """Bytes of a model's weights in memory: parameters, shared ones once, and packed forms."""
    return packed_bytes(model) + sum(p.numel() * p.element_size() for p in model.parameters())


def packed_bytes(model: nn.Module) -> int:
    """Of these the bytes of packed forms, padding included."""
    return sum(m.packed_bytes for m in model.modules() if isinstance(m, PackedLinear))
