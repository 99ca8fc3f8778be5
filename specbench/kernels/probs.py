"""Logits to a distribution: temperature, top-k, top-p, alike for draft and target."""

from __future__ import annotations

import torch
from torch import Tensor

from specbench.kernels.dispatch import uses_triton


def process_logits(
    logits: Tensor,
    *,
    temperature: Tensor,
    top_p: Tensor,
    top_k: Tensor,
    any_truncated: bool,
    any_greedy: bool = True,
) -> tuple[Tensor, Tensor]:
    """Logits after temperature and truncation, and their log-normaliser: p = exp(out - log_normaliser).

    The order is temperature, top-k (ties with the k-th value stay), then the smallest set of the most likely tokens
    whose probability reaches top-p. A row with temperature 0 becomes a point mass at its argmax.

    Args:
        logits: [N, V], any float dtype.
        temperature, top_p: [N] float32.
        top_k: [N] int64; the vocabulary size or more where off.
        any_truncated: False skips the sort; the caller knows from the host that no row truncates.
        any_greedy: False skips the search for the most likely token; likewise for rows at temperature 0.

    Returns:
        ([N, V] float32 with -inf where cut, [N] float32).
    """
    if uses_triton(logits):
        from specbench.kernels._triton import probs as twin

        return twin.process_logits(
            logits,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            any_truncated=any_truncated,
            any_greedy=any_greedy,
        )
    greedy = temperature == 0
    scale = torch.where(greedy, torch.ones_like(temperature), temperature)
    out = logits.to(torch.float32) / scale[:, None]
    if any_truncated:
        out = _truncate(out, top_p=top_p, top_k=top_k)
    if any_greedy:
        best = out.argmax(dim=-1, keepdim=True)  # [N, 1]
        top = out.gather(1, best)
        out.masked_fill_(greedy[:, None], -torch.inf).scatter_(1, best, top)
    return out, torch.logsumexp(out, dim=-1)


def _truncate(logits: Tensor, *, top_p: Tensor, top_k: Tensor) -> Tensor:
    """[N, V] float32 with tokens outside top-k and then top-p at -inf."""
    width = logits.shape[-1]
    ordered, index = logits.sort(dim=-1, descending=True, stable=True)  # [N, V]
    kth = ordered.gather(1, top_k.clamp(1, width)[:, None] - 1)
    ordered = ordered.masked_fill(ordered < kth, -torch.inf)
    before = torch.softmax(ordered, dim=-1).cumsum(dim=-1).roll(1, dims=-1)
    before[:, 0] = 0.0
    cut = (before >= top_p[:, None]) & (top_p < 1)[:, None]
    cut[:, 0] = False
    ordered = ordered.masked_fill(cut, -torch.inf)
    return torch.empty_like(logits).scatter_(1, index, ordered)
