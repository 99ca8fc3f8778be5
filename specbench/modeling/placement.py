"""A model's layers on several devices: where each one is, and a step's tables brought there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T")


def layer_devices(layers: Iterable[nn.Module]) -> tuple[torch.device, ...]:
    """The device of each layer's weights."""
    return tuple(next(layer.parameters()).device for layer in layers)


def brought(value: T, device: torch.device) -> T:
    """``value`` (tensors, tuples, dataclasses of them) on ``device``. What a dataclass keeps for later starts empty."""
    return _brought(value, device)  # type: ignore[no-any-return]


def _brought(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, tuple):
        return tuple(_brought(part, device) for part in value)
    if is_dataclass(value) and not isinstance(value, type):
        given = [field for field in fields(value) if field.default_factory is MISSING]
        return type(value)(**{field.name: _brought(getattr(value, field.name), device) for field in given})
    return value


def head_on(head: nn.Module, device: torch.device) -> nn.Module:
    """The output projection on ``device``: itself, or a copy of it where it lies on another one."""
    weight = head.get_parameter("weight")
    if weight.device == device:
        return head
    bias = getattr(head, "bias", None)
    copy = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    copy.weight = nn.Parameter(weight.detach().to(device), requires_grad=False)
    if bias is not None:
        copy.bias = nn.Parameter(bias.detach().to(device), requires_grad=False)
    return copy
