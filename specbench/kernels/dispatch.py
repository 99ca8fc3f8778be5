"""Which implementation of an operation runs: its plain-torch definition, or on a CUDA device its Triton twin."""

from __future__ import annotations

import functools
import importlib.metadata
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


@functools.cache
def _new_enough(device: torch.device) -> bool:
    """Whether the matrix products of the twins exist on ``device``: from the Ampere generation on."""
    return torch.version.hip is not None or torch.cuda.get_device_capability(device) >= (8, 0)


def _on(device: torch.device) -> bool:
    return device.type == "cuda" and _choice(os.environ.get(VARIABLE, "")) and _new_enough(device)


def uses_triton(tensor: Tensor) -> bool:
    """Whether the operation that was given ``tensor`` runs as its Triton twin.

    Twins have no backward, so a tensor that wants gradients gets the definition. Errors: ConfigError for a value of
    SPECBENCH_KERNELS that cannot be followed.
    """
    return _on(tensor.device) and not (tensor.requires_grad and torch.is_grad_enabled())


def kernels_on(device: torch.device) -> str | None:
    """For records: what operations on ``device`` run as, "torch" or Triton with its version; None on a CPU."""
    if device.type != "cuda":
        return None
    return f"triton {importlib.metadata.version('triton')}" if _on(device) else "torch"
