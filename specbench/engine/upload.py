"""Host values to the device without waiting for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def upload(values: Any, *, device: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
    """``values`` (numbers, nested lists) as a tensor on ``device``.

    A CUDA device is sent them from pinned memory: from other memory the host would wait for what is running there.
    """
    if device.type != "cuda":
        return torch.tensor(values, dtype=dtype)
    return torch.tensor(values, dtype=dtype, pin_memory=True).to(device, non_blocking=True)
