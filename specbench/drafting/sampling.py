"""Choosing draft tokens from draft logits, and keeping the distribution that they were chosen from.

Drafts and target go through the same truncation and the same float32 normaliser, so that the ratio p/q in the
acceptance test is the ratio of what was really sampled.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.errors import ConfigError
from specbench.kernels.probs import process_logits
from specbench.kernels.sample import sample
from specbench.types import DraftLogits, Rows

DRAFT_SAMPLING = ("probabilistic", "greedy")


def is_greedy(option: object) -> bool:
    """Whether the option ``draft_sampling`` asks for point masses at every temperature.

    Errors: ConfigError for another word than "probabilistic" or "greedy".
    """
    if option not in DRAFT_SAMPLING:
        raise ConfigError(f"draft_sampling is {option!r}; use {' or '.join(DRAFT_SAMPLING)}")
    return option == "greedy"


def draw(
    logits: Tensor,
    rows: Rows,
    *,
    uniforms: Tensor | None,
    id_map: Tensor | None = None,
    width: int | None = None,
    greedy: bool = False,
) -> tuple[Tensor, DraftLogits | None]:
    """Draft tokens [B, G] (target ids) from ``logits`` [B, G, Vd], and their distribution where one was sampled.

    Rows with temperature 0 take the argmax; so do all with ``greedy``, and then no distribution is kept (point
    masses). ``uniforms`` [B, G] float64 may be None where nothing is sampled. Only the first ``width`` draft ids may
    be drawn (see `vocab.nameable`); None: all.
    """
    if width is not None and width < logits.shape[-1]:
        logits = logits[..., :width]
        id_map = None if id_map is None else id_map[:width]
    if greedy or rows.all_greedy:
        return _target_ids(logits.argmax(dim=-1), id_map), None
    assert uniforms is not None, "sampling without random numbers"
    batch, drafts, width = logits.shape
    # Rows at temperature 0 come back as a point mass at their argmax, so their sample is their argmax.
    processed, log_normaliser = process_logits(
        logits.reshape(batch * drafts, width),
        temperature=rows.temperature.repeat_interleave(drafts),
        top_p=rows.top_p.repeat_interleave(drafts),
        top_k=rows.top_k.repeat_interleave(drafts),
        any_truncated=rows.any_truncated,
        any_greedy=rows.any_greedy,
    )
    ids = sample(processed, log_normaliser, uniforms.reshape(-1)).view(batch, drafts)
    draft = DraftLogits(
        logits=processed.view(batch, drafts, width),
        log_normaliser=log_normaliser.view(batch, drafts),
        id_map=id_map,
    )
    return _target_ids(ids, id_map), draft


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


def _target_ids(ids: Tensor, id_map: Tensor | None) -> Tensor:
    return ids if id_map is None else id_map[ids]
