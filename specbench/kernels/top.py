"""The most likely token of each row, and how far the runner-up is behind."""

from __future__ import annotations

import torch
from torch import Tensor

from specbench.kernels.dispatch import uses_triton

_BLOCK = 256


def top_two(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Argmax of every row, the first of equals, and the gap to the next largest entry.

    Rows are reduced block by block and then over the blocks: one pass at the speed of memory, where an argmax over the
    whole vocabulary and a second maximum beside it take many times as long on a CPU.

    Args:
        logits: [N, V], any float dtype; V at least 2.

    Returns:
        ([N] int64, [N] float32 gap; 0 for a tie, inf where only one entry is finite).
    """
    if uses_triton(logits):
        from specbench.kernels._triton import top as twin

        return twin.top_two(logits)
    num_rows, width = logits.shape
    whole = width // _BLOCK * _BLOCK
    peaks = logits[:, :whole].view(num_rows, whole // _BLOCK, _BLOCK).amax(dim=-1)  # [N, blocks]
    if whole < width:
        peaks = torch.cat([peaks, logits[:, whole:].amax(dim=-1, keepdim=True)], dim=1)
    block = peaks.argmax(dim=-1, keepdim=True)  # [N, 1]
    inside = block * _BLOCK + torch.arange(_BLOCK, device=logits.device)  # [N, BLOCK]
    values = logits.gather(1, inside.clamp(max=width - 1)).masked_fill_(inside >= width, -torch.inf)
    offset = values.argmax(dim=-1, keepdim=True)  # [N, 1]
    top = values.gather(1, offset)
    others = peaks.scatter(1, block, -torch.inf).amax(dim=-1)
    beside = values.scatter_(1, offset, -torch.inf).amax(dim=-1)
    gap = top[:, 0].float() - torch.maximum(others, beside).float()
    return (block * _BLOCK + offset)[:, 0], gap
