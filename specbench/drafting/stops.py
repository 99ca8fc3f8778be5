"""The stop rule of every method: a drafted stop token is the last draft of its row."""

from __future__ import annotations

import torch
from torch import Tensor


def truncate_at_stop(tokens: Tensor, counts: Tensor, stop_ids: Tensor) -> Tensor:
    """Counts [B] shrunk so that nothing is drafted past a stop token.

    ``tokens`` [B, G] target ids, ``counts`` [B] drafts that are real (entries beyond are never looked at),
    ``stop_ids`` [S] on the same device, possibly empty.
    """
    if stop_ids.numel() == 0 or tokens.shape[1] == 0:
        return counts
    offsets = torch.arange(tokens.shape[1], device=tokens.device)
    is_stop = torch.isin(tokens, stop_ids) & (offsets < counts[:, None])  # [B, G]
    first = torch.where(is_stop, offsets, tokens.shape[1]).amin(dim=1)  # [B], G where none
    return torch.minimum(counts, first + 1)
