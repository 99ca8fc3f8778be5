"""AdamW and its learning rate: linear warm-up to the peak, then half a cosine down to the floor."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from specbench.train.recipe import OptimiserSpec


def learning_rate(step: int, *, spec: OptimiserSpec, total: int) -> float:
    """The rate of 0-based ``step`` of ``total``. It reaches the peak at the end of the warm-up and never exceeds it."""
    warmup = min(round(spec.warmup * total), total - 1)
    if step < warmup:
        return spec.lr * (step + 1) / (warmup + 1)
    progress = (step - warmup) / max(1, total - warmup)
    return spec.lr * (spec.floor + (1 - spec.floor) * 0.5 * (1 + math.cos(math.pi * progress)))


def make_optimiser(module: nn.Module, spec: OptimiserSpec) -> torch.optim.AdamW:
    """AdamW over the trainable parameters; vectors (norms, biases) are not decayed."""
    wanted = [p for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in wanted if p.dim() > 1], "weight_decay": spec.weight_decay},
        {"params": [p for p in wanted if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [g for g in groups if g["params"]], lr=spec.lr, betas=(spec.beta1, spec.beta2), eps=1e-8, fused=True
    )


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """The rate of the next update."""
    for group in optimiser.param_groups:
        group["lr"] = rate


def clip_gradients(parameters: Iterable[Tensor], limit: float | None) -> float:
    """Scale the gradients so that their joint norm is at most ``limit``; the norm before that."""
    found = [p.grad for p in parameters if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(found) if found else torch.zeros(())
    if limit is not None and found:
        torch._foreach_mul_(found, (limit / (norm + 1e-6)).clamp(max=1.0))
    return float(norm)
