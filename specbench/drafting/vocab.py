"""Draft vocabularies: the map from draft ids to target ids, checked once, and what may be proposed and is covered."""

from __future__ import annotations

import torch
from torch import Tensor

from specbench.errors import CheckpointError
from specbench.types import TargetView


def checked_map(ids: Tensor | None, *, draft_size: int, vocab_size: int) -> Tensor | None:
    """The map [Vd] of absolute target ids as int64, or None where both vocabularies are the same.

    ``draft_size`` Vd is the height of the draft head, ``vocab_size`` V the target's.
    Errors: CheckpointError when the map is missing, of the wrong length, all zero, out of range or not strictly
    increasing. Each of these would load cleanly and only lower acceptance.
    """
    if ids is None:
        if draft_size == vocab_size:
            return None
        raise CheckpointError(
            f"the drafter has {draft_size} output rows but the target has {vocab_size} tokens and no d2t map is "
            "stored; use a checkpoint with its d2t tensor"
        )
    if ids.ndim != 1 or ids.shape[0] != draft_size:
        raise CheckpointError(
            f"d2t has shape {tuple(ids.shape)} but the drafter has {draft_size} output rows; the map does not belong "
            "to this head"
        )
    ids = ids.to(torch.int64)
    if draft_size > 1 and not bool(ids.any()):
        raise CheckpointError(
            "d2t is all zero: every draft would be token 0; the map was not saved, use a complete checkpoint"
        )
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocab_size:
        raise CheckpointError(
            f"d2t names target ids {low}..{high} outside 0..{vocab_size - 1}; the drafter is for another target"
        )
    if not bool((ids.diff() > 0).all()):
        raise CheckpointError(
            "d2t is not strictly increasing, so two draft ids name one token; use a checkpoint with a valid map"
        )
    if draft_size == vocab_size:  # then it can only be the identity
        return None
    return ids


def nameable(target: TargetView, *, id_map: Tensor | None) -> int:
    """How many of the leading draft ids stand for a token of the target's tokenizer; all of them where it is not known.

    Heads are often taller than the tokenizer; the rows beyond it name nothing, and a draft of one is wasted. ``id_map``
    [Vd] is increasing, so those rows are the last ones. Errors: CheckpointError when no draft id names a token.
    """
    size = target.vocab_size if id_map is None else id_map.numel()
    if target.tokenizer is None:
        return size
    bound = max(target.tokenizer.get_vocab().values()) + 1
    count = min(size, bound) if id_map is None else int((id_map < bound).sum())
    if count == 0:
        raise CheckpointError(
            f"d2t names only ids from {bound} on, for which the target's tokenizer has no token; the drafter is for "
            "another target"
        )
    return count


def from_offsets(offsets: Tensor) -> Tensor:
    """Absolute target ids [Vd] of a published ``d2t``, which stores target id minus draft id (SafeAILab/EAGLE)."""
    return offsets.to(torch.int64) + torch.arange(offsets.shape[0], device=offsets.device)


def scatter_logits(logits: Tensor, *, id_map: Tensor | None, vocab_size: int) -> Tensor:
    """Draft logits [..., Vd] over the target's vocabulary: [..., V], -inf where the drafter has no token."""
    if id_map is None:
        return logits
    full = logits.new_full((*logits.shape[:-1], vocab_size), -torch.inf)
    return full.index_copy_(-1, id_map, logits)


def coverage(token_ids: Tensor, *, id_map: Tensor | None) -> float:
    """Share of ``token_ids`` [N] that the draft vocabulary can name, in 0..1."""
    if id_map is None or token_ids.numel() == 0:
        return 1.0
    return float(torch.isin(token_ids, id_map).double().mean())
