"""One token per row from a distribution and one uniform: inverse of the cumulative sum, in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from specbench.kernels.dispatch import uses_triton


def sample(logits: Tensor, log_normaliser: Tensor, u: Tensor) -> Tensor:
    """Draw from p = exp(logits - log_normaliser), row by row.

    The draw's own distribution differs from p by the rounding of a float64 sum only, so a verifier that reads the
    same two tensors judges the distribution that was really used.

    Args:
        logits: [N, V] float32, -inf where impossible; at least one finite entry a row.
        log_normaliser: [N] float32.
        u: [N] float64 in [0, 1).

    Returns:
        [N] int64.
    """
    if uses_triton(logits):
        from specbench.kernels._triton import sample as twin

        return twin.sample(logits, log_normaliser, u)
    weights = (logits.to(torch.float64) - log_normaliser[:, None].to(torch.float64)).exp_()
    return sample_weights(weights, u)


def sample_weights(weights: Tensor, u: Tensor) -> Tensor:
    """Draw an index in proportion to non-negative ``weights`` [N, V] float64 (any positive mass a row): [N] int64."""
    cumulative = weights.cumsum(dim=-1)
    total = cumulative[:, -1]
    point = torch.minimum(u * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, point[:, None], right=True).squeeze(1)
