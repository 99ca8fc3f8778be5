"""What this machine's processor computes itself."""

from __future__ import annotations

import functools

import torch


@functools.cache
def has_native_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 itself (AVX-512 BF16, AMX, Arm BF16)."""
    capability = torch.backends.cpu.get_cpu_capability()
    if not capability.startswith("AVX"):
        return True
    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(bool(getattr(torch.cpu, name, lambda: False)()) for name in probes)
