"""The exact distribution of a sampler that is a monotone function of one uniform."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def breakpoints(draw: Callable[[Tensor], Tensor], rows: int, width: int) -> Tensor:
    """[rows, width] float64: probability of each index under ``draw(u [n])``, monotone in u, by bisection to 2^-60.

    ``draw`` is called with rows * width uniforms, row-major, and answers which index each gives.
    """
    low, high = torch.zeros(rows * width, dtype=torch.float64), torch.ones(rows * width, dtype=torch.float64)
    wanted = torch.arange(width).repeat(rows)
    for _ in range(60):
        middle = (low + high) / 2
        beyond = draw(middle) > wanted  # the end of index j's interval lies below
        high, low = torch.where(beyond, middle, high), torch.where(beyond, low, middle)
    ends = ((low + high) / 2).view(rows, width)
    return torch.diff(ends, dim=1, prepend=torch.zeros(rows, 1, dtype=torch.float64))
