"""Choosing draft tokens from draft logits, and keeping the distribution that they were chosen from.

Drafts and target go through the same truncation and the same float32 normaliser, so that the ratio p/q in the
acceptance test is the ratio of what was really sampled.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.errors import ConfigError
from specbench.kernels.draw import draw
from specbench.types import DraftLogits

__all__ = ["DRAFT_SAMPLING", "draw", "is_greedy", "join"]

DRAFT_SAMPLING = ("probabilistic", "greedy")


def is_greedy(option: object) -> bool:
    """Whether the option ``draft_sampling`` asks for point masses at every temperature.

    Errors: ConfigError for another word than "probabilistic" or "greedy".
    """
    if option not in DRAFT_SAMPLING:
        raise ConfigError(f"draft_sampling is {option!r}; use {' or '.join(DRAFT_SAMPLING)}")
    return option == "greedy"


def join(parts: Sequence[tuple[Tensor, DraftLogits | None]]) -> tuple[Tensor, DraftLogits | None]:
    """One draw over all positions from draws of single positions [B, 1], left to right."""
    tokens = torch.cat([part for part, _ in parts], dim=1)
    kept = [draft for _, draft in parts if draft is not None]
    if not kept:
        return tokens, None
    assert len(kept) == len(parts), "some positions were sampled and some were not"
    draft = DraftLogits(
        logits=torch.cat([d.logits for d in kept], dim=1),
        log_normaliser=torch.cat([d.log_normaliser for d in kept], dim=1),
        id_map=kept[0].id_map,
    )
    return tokens, draft
