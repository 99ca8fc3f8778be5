"""The draft vocabulary: a ``d2t`` map in any published form becomes strictly increasing absolute target ids."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specbench_drafters.formats.source import Derived, Source


@dataclass(frozen=True, slots=True)
class DraftVocabulary:
    """``ids`` [Vd] absolute target ids, None for the whole vocabulary. ``order`` [Vd] puts the stored rows of the head
    into the order of ``ids``; None where they are in it already."""

    ids: Tensor | None
    order: Tensor | None = None


def read_vocabulary(source: Source, *, vocab_size: int, draft_size: int | None) -> DraftVocabulary:
    """Read and check ``d2t`` and ``t2d``. ``draft_size`` is what the configuration says, None where it says nothing.

    EAGLE-3 stores offsets (target id = draft id + d2t[draft id]); absolute maps are recognised by ``t2d`` or by
    offsets that leave the vocabulary. Errors: CheckpointError when a reduced vocabulary has no valid map.
    """
    rows = _head_rows(source)
    size = rows if rows is not None else draft_size
    if draft_size is not None and rows is not None and rows != draft_size:
        raise source.error(f"config says a draft vocabulary of {draft_size}, the stored rows are {rows}")
    if not source.has("d2t"):
        if size is not None and size != vocab_size:
            raise source.error(
                f"the draft vocabulary has {size} of {vocab_size} tokens but no 'd2t' map says which; "
                "without it every draft would be another token"
            )
        return DraftVocabulary(None)
    stored = source.read("d2t")
    if stored.dim() != 1 or stored.is_floating_point() or stored.dtype == torch.bool:
        raise source.error(f"'d2t' must be one row of whole numbers, found {stored.dtype} {list(stored.shape)}")
    stored = stored.to(torch.int64)
    if size is not None and stored.numel() != size:
        raise source.error(f"'d2t' has {stored.numel()} entries for {size} draft tokens")
    ids = _absolute(source, stored, vocab_size=vocab_size)
    return _sorted(source, ids, vocab_size=vocab_size)


def _head_rows(source: Source) -> int | None:
    for name in ("lm_head.weight", "markov_head.markov_w2.weight"):
        shape = source.shape(name)
        if shape is not None:
            return shape[0]
    return None


def _absolute(source: Source, stored: Tensor, *, vocab_size: int) -> Tensor:
    offset = stored + torch.arange(stored.numel())
    marked = _marked(source, vocab_size)
    if marked is not None:
        for ids, word in ((offset, "offsets"), (stored, "absolute ids")):
            if torch.equal(ids.sort().values, marked):
                source.notes.append(f"d2t holds {word}: they give exactly the {marked.numel()} ids that t2d marks")
                return ids
        raise source.error(
            f"'d2t' ({stored.numel()} entries) and 't2d' ({marked.numel()} ids marked) contradict each other"
            + ("; d2t is all zero, so it was never filled" if not bool(stored.any()) else "")
        )
    if not bool(stored.any()) and stored.numel() != vocab_size:
        raise source.error("'d2t' is all zero: the map was never filled, every draft would be another token")
    if int(offset.max()) >= vocab_size:
        source.notes.append("d2t holds absolute ids: as offsets they would leave the vocabulary")
        return stored
    source.notes.append("d2t holds offsets (no t2d to check against)")
    return offset


def _marked(source: Source, vocab_size: int) -> Tensor | None:
    if not source.has("t2d"):
        return None
    mask = source.read("t2d")
    if mask.shape != (vocab_size,):
        raise source.error(f"'t2d' has shape {list(mask.shape)}, the target's vocabulary has {vocab_size} tokens")
    return mask.to(torch.bool).nonzero().flatten()


def _sorted(source: Source, ids: Tensor, *, vocab_size: int) -> DraftVocabulary:
    if int(ids.min()) < 0 or int(ids.max()) >= vocab_size:
        raise source.error(
            f"'d2t' points to ids {int(ids.min())}..{int(ids.max())} outside the target's vocabulary of {vocab_size}"
        )
    ranked = ids.sort().values
    repeats = int((ranked[1:] == ranked[:-1]).sum())
    if repeats:
        raise source.error(f"'d2t' gives {repeats} target ids more than once")
    order = None
    if not bool((ids[1:] > ids[:-1]).all()):
        source.notes.append("draft ids were put in the order of their target ids (head rows moved along)")
        order = ids.argsort()
        ids = ids[order]
    if ids.numel() == vocab_size:
        return DraftVocabulary(None, order)
    return DraftVocabulary(ids.contiguous(), order)


def reorder_rows(source: Source, vocabulary: DraftVocabulary) -> dict[str, Derived]:
    """Rows of the draft-vocabulary matrices in the order of ``vocabulary.ids``; empty where nothing moves."""
    if vocabulary.order is None:
        return {}
    order = vocabulary.order
    names = [name for name in ("lm_head.weight", "markov_head.markov_w2.weight") if source.has(name)]
    return {
        name: Derived(source.shape(name) or (), lambda name=name: source.read(name)[order].contiguous())  # type: ignore[misc]
        for name in names
    }


def read_own_map(source: Source, *, vocab_size: int) -> Tensor | None:
    """``d2t`` of our own layout: absolute ids, strictly increasing. Errors: CheckpointError."""
    if not source.has("d2t"):
        rows = _head_rows(source)
        if rows is not None and rows != vocab_size:
            raise source.error(f"the draft vocabulary has {rows} of {vocab_size} tokens but no 'd2t' map says which")
        return None
    ids = source.read("d2t")
    if ids.dim() != 1 or ids.is_floating_point() or ids.dtype == torch.bool:
        raise source.error(f"'d2t' must be one row of whole numbers, found {ids.dtype} {list(ids.shape)}")
    ids = ids.to(torch.int64)
    if int(ids[0]) < 0 or int(ids[-1]) >= vocab_size or not bool((ids[1:] > ids[:-1]).all()):
        raise source.error(f"'d2t' must hold strictly increasing ids below {vocab_size}; the map is damaged")
    return ids
