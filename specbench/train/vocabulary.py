"""The reduced draft vocabulary: the commonest tokens of the target's own text, and how much of it they cover."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specbench.errors import ConfigError
from specbench.train.store import FeatureSource, in_batches

_TOKENS_AT_ONCE = 1 << 22


@dataclass(frozen=True, slots=True)
class DraftVocabulary:
    """``ids`` [Vd] ascending target ids (None: all), and the share of each split's marked tokens that they name."""

    ids: Tensor | None
    train_coverage: float
    heldout_coverage: float | None

    def line(self) -> str:
        """For people."""
        if self.ids is None:
            return "draft vocabulary: all tokens of the target"
        held = "" if self.heldout_coverage is None else f", {self.heldout_coverage:.3%} of those held out"
        return f"draft vocabulary: {len(self.ids):,} tokens name {self.train_coverage:.3%} of the training tokens{held}"


def count_tokens(source: FeatureSource, sequences: Sequence[int], *, vocab_size: int) -> NDArray[np.int64]:
    """How often each token stands where the target wrote it: [V]."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    for group in in_batches(source.sequences, sequences, max_tokens=_TOKENS_AT_ONCE):
        for sequence in group:
            rows = slice(int(source.sequences[sequence]), int(source.sequences[sequence + 1]))
            written = np.asarray(source.token_ids[rows])[np.asarray(source.loss_mask[rows])]
            counts += np.bincount(written, minlength=vocab_size)
    return counts


def choose_vocabulary(
    source: FeatureSource, *, size: int | None, vocab_size: int, always: Iterable[int]
) -> DraftVocabulary:
    """The ``size`` commonest tokens of the training split; those in ``always`` (stop tokens) are among them.

    Tokens that were never written fill what is left by ascending id, so that the size is as asked for. Errors:
    ConfigError when ``size`` has no room for ``always``.
    """
    if size is None or size >= vocab_size:
        return DraftVocabulary(None, 1.0, 1.0)
    kept = sorted({i for i in always if 0 <= i < vocab_size})
    if size <= len(kept):
        raise ConfigError(f"the recipe's vocabulary is {size}; the target has {len(kept)} stop tokens alone, give more")
    counts = count_tokens(source, source.split("train").tolist(), vocab_size=vocab_size)
    ranked = counts.copy()
    ranked[kept] = np.iinfo(np.int64).max
    chosen = np.sort(np.argsort(-ranked, kind="stable")[:size])
    heldout = count_tokens(source, source.split("heldout").tolist(), vocab_size=vocab_size)
    return DraftVocabulary(
        torch.from_numpy(chosen.astype(np.int64)),
        float(counts[chosen].sum() / max(1, counts.sum())),
        float(heldout[chosen].sum() / heldout.sum()) if heldout.sum() else None,
    )
