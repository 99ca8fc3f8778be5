"""What every launch needs to know: whether kernels are interpreted, and how many programs keep a device busy."""

from __future__ import annotations

import functools

import torch
import triton

# Read when the kernels of this package are made, which is when Triton itself decides it.
INTERPRETED = bool(triton.knobs.runtime.interpret)


def wide(dtype: torch.dtype) -> bool:
    """Whether products are taken in float32: for float32, and for bfloat16 in the interpreter, which gets it wrong."""
    return dtype == torch.float32 or (INTERPRETED and dtype == torch.bfloat16)


@functools.cache
def processors(device: torch.device) -> int:
    """Multiprocessors of ``device``; in the interpreter, on a CPU, those of an H200."""
    if device.type != "cuda":
        return 132
    return torch.cuda.get_device_properties(device).multi_processor_count
