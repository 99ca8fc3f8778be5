"""The optimiser and its learning rate: linear warm-up to the peak, then half a cosine down to the floor."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from specbench.train.muon import Muon
from specbench.train.recipe import OptimiserSpec

_LOGITS = ("lm_head", "markov_w2")  # names of the modules that make logits


def learning_rate(step: int, *, spec: OptimiserSpec, total: int) -> float:
    """The rate of 0-based ``step`` of ``total``. It reaches the peak at the end of the warm-up and never exceeds it."""
    warmup = min(round(spec.warmup * total), total - 1)
    if step < warmup:
        return spec.lr * (step + 1) / (warmup + 1)
    progress = (step - warmup) / max(1, total - warmup)
    return spec.lr * (spec.floor + (1 - spec.floor) * 0.5 * (1 + math.cos(math.pi * progress)))


class Updates:
    """The optimisers of a module's parameters, stepped and saved as one."""

    def __init__(self, *optimisers: torch.optim.Optimizer) -> None:
        self._optimisers = optimisers

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all."""
        return [group for optimiser in self._optimisers for group in optimiser.param_groups]

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for optimiser in self._optimisers:
            optimiser.zero_grad(set_to_none=True)

    def step(self) -> None:
        """One update of every parameter."""
        for optimiser in self._optimisers:
            optimiser.step()

    def rehearse(self) -> None:
        """The matrix products of an update, without one."""
        for optimiser in self._optimisers:
            if isinstance(optimiser, Muon):
                optimiser.rehearse()

    def set_rate(self, rate: float) -> None:
        """The rate of the next update."""
        for group in self.param_groups:
            group["lr"] = rate

    def state_dict(self) -> dict[str, Any]:
        """What a resumed training needs."""
        return {str(index): optimiser.state_dict() for index, optimiser in enumerate(self._optimisers)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""
        for index, optimiser in enumerate(self._optimisers):
            optimiser.load_state_dict(state[str(index)])


def make_optimiser(module: nn.Module, spec: OptimiserSpec) -> Updates:
    """What ``spec`` says over the trainable parameters; vectors (norms, biases) are not decayed.

    Of Muon's are the matrices between states; tables of tokens, single rows and vectors stay with AdamW, as its authors
    advise.
    """
    wanted = [p for p in module.parameters() if p.requires_grad]
    tables = {id(p) for p in _tables(module)}
    hidden = [p for p in wanted if spec.kind == "muon" and p.dim() == 2 and min(p.shape) > 1 and id(p) not in tables]
    taken = {id(p) for p in hidden}
    rest = [p for p in wanted if id(p) not in taken]
    groups = [
        {"params": [p for p in rest if p.dim() > 1], "weight_decay": spec.weight_decay},
        {"params": [p for p in rest if p.dim() <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    found: list[torch.optim.Optimizer] = []
    if hidden:
        found.append(Muon(hidden, lr=spec.lr, momentum=spec.momentum, weight_decay=spec.weight_decay))
    if groups:
        found.append(torch.optim.AdamW(groups, lr=spec.lr, betas=(spec.beta1, spec.beta2), eps=1e-8, fused=True))
    return Updates(*found)


def _tables(module: nn.Module) -> Iterator[Tensor]:
    """Weights with a row for each token of a vocabulary: embeddings, and products that end in logits."""
    for name, part in module.named_modules():
        if isinstance(part, nn.Embedding) or name.rpartition(".")[2] in _LOGITS:
            yield from part.parameters(recurse=False)


def clip_gradients(parameters: Iterable[Tensor], limit: float | None) -> float:
    """Scale the gradients so that their joint norm is at most ``limit``; the norm before that."""
    found = [p.grad for p in parameters if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(found) if found else torch.zeros(())
    if limit is not None and found:
        torch._foreach_mul_(found, (limit / (norm + 1e-6)).clamp(max=1.0))
    return float(norm)
