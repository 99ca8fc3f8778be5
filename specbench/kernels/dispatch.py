"""Which implementation of an operation runs: its plain-torch definition, or on a CUDA device its Triton twin."""

from __future__ import annotations

import functools
import importlib.util
import os

import torch
from torch import Tensor

from specbench.errors import ConfigError

VARIABLE = "SPECBENCH_KERNELS"  # "torch": the definitions everywhere; "triton" or unset: twins on CUDA devices


@functools.cache
def _choice(value: str) -> bool:
    """Whether the setting ``value`` allows Triton and Triton can be imported."""
    if value not in ("", "torch", "triton"):
        raise ConfigError(f"{VARIABLE} is '{value}'; use 'triton' (the default on CUDA devices) or 'torch'")
    found = value != "torch" and importlib.util.find_spec("triton") is not None
    if value == "triton" and not found:
        raise ConfigError(f"{VARIABLE} is 'triton' but triton is not installed; install triton or unset {VARIABLE}")
    return found


def uses_triton(tensor: Tensor) -> bool:
    """Whether the operation that was given ``tensor`` runs as its Triton twin.

    Twins have no backward, so a tensor that wants gradients gets the definition. Errors: ConfigError for a value of
    SPECBENCH_KERNELS that cannot be followed.
    """
    if tensor.device.type != "cuda" or (tensor.requires_grad and torch.is_grad_enabled()):
        return False
    return _choice(os.environ.get(VARIABLE, ""))
