"""Muon: momentum whose matrix is brought to one length in every direction before it is applied.

A gradient through a frozen head is long in a few directions and short in most; a rate by element (Adam) cannot even
that out, orthogonalising can. Source: Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024);
the size of an update is Adam's usual one (Liu et al., "Muon is scalable for LLM training", 2025, equation 4), so that
both take the same rates. torch.optim.Muon computes in bfloat16 alone, for which a processor that emulates it takes some
thirty times as long; here the products are bfloat16 where the device computes in it, else float32.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from specbench.kernels.processor import has_native_bfloat16

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # Jordan's quintic: singular values of .01 to 1 land near 1 within 5 rounds
ROUNDS = 5
SIZE = 0.2  # root mean square of Adam's updates, which those of a matrix are given


def products_of(device: torch.device) -> torch.dtype:
    """What an update's products are computed in: bfloat16 where ``device`` multiplies it itself."""
    return torch.bfloat16 if device.type == "cuda" or has_native_bfloat16() else torch.float32


def orthogonalise(matrix: Tensor, *, dtype: torch.dtype, rounds: int = ROUNDS) -> Tensor:
    """``matrix`` [m, n] with its singular vectors and singular values near 1 (about .7 to 1.2), in its own dtype.

    ``dtype``: that of the products. Zero stays zero.
    """
    tall = matrix.shape[0] > matrix.shape[1]
    x = (matrix.T if tall else matrix).to(torch.float32)
    x = (x / x.norm().clamp(min=1e-7)).to(dtype)
    a, b, c = COEFFICIENTS
    for _ in range(rounds):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.T if tall else x).to(matrix.dtype)


class Muon(torch.optim.Optimizer):
    """Muon over matrices [m, n]; ``momentum`` is Nesterov's, the decay is decoupled."""

    def __init__(self, matrices: Iterable[Tensor], *, lr: float, momentum: float, weight_decay: float) -> None:
        super().__init__(list(matrices), {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        for group in self.param_groups:
            assert all(p.dim() == 2 for p in group["params"]), "only matrices have directions to even out"

    @torch.no_grad()
    def rehearse(self) -> None:
        """The products of an update, without one."""
        for group in self.param_groups:
            for matrix in group["params"]:
                orthogonalise(matrix, dtype=products_of(matrix.device))

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # no loss is evaluated again
        """One update from the gradients."""
        assert closure is None
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                state = self.state[matrix]
                if not state:
                    state["momentum"] = torch.zeros_like(matrix)
                mean = state["momentum"].lerp_(matrix.grad, 1 - group["momentum"])
                aimed = matrix.grad.lerp(mean, group["momentum"])
                update = orthogonalise(aimed, dtype=products_of(matrix.device))
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
                matrix.add_(update, alpha=-group["lr"] * SIZE * max(matrix.shape) ** 0.5)
