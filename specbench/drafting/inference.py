"""What a drafter's network and its borrowed head need before they draft: no gradients, and fast layers on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from specbench.modeling.cpu_linear import use_cpu_linears, weight_bytes


def for_inference(model: nn.Module, *, device: torch.device) -> None:
    """Freeze ``model``, whose weights are in place, and give it the same linear layers on a CPU as the target has.

    On a CPU its linear layers are others afterwards; read weights before.
    """
    model.requires_grad_(False).eval()
    if device.type == "cpu":
        use_cpu_linears(model)


def prepared(layer: nn.Module, *, device: torch.device) -> nn.Module:
    """`for_inference` for a single layer, which may be replaced by the one that is returned."""
    holder = nn.ModuleList([layer])
    for_inference(holder, device=device)
    return holder[0]


def head_rows(head: nn.Module, *, id_map: Tensor | None) -> nn.Module:
    """The target's head itself, or a linear layer of its rows for the ids of ``id_map`` [Vd], copied once."""
    if id_map is None:
        return head
    weight, bias = head.get_parameter("weight").detach(), getattr(head, "bias", None)
    rows = id_map.to(weight.device)
    part = nn.Linear(weight.shape[1], rows.numel(), bias=bias is not None, device="meta")
    part.weight = nn.Parameter(weight[rows], requires_grad=False)
    if bias is not None:
        part.bias = nn.Parameter(bias.detach()[rows], requires_grad=False)
    return part


def module_bytes(model: nn.Module) -> int:
    """Bytes of a network's weights and buffers in memory; modules it borrowed from the target are not counted."""
    return weight_bytes(model) + sum(t.numel() * t.element_size() for t in model.buffers())
