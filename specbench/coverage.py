"""How much of a run's text its drafter could have proposed: coverage of a reduced draft vocabulary."""

from __future__ import annotations

from typing import Any

import numpy as np

from specbench.metrics._measured import measured
from specbench.records.schema import DraftVocabulary
from specbench.types import RunTrace


def draft_vocabulary(drafter: Any, trace: RunTrace, *, vocab_size: int) -> DraftVocabulary | None:
    """Committed tokens of the measured rounds inside the drafter's ``id_map`` [Vd]; None where it can name every token.

    ``vocab_size`` is the target's. The prefill's token is not counted: no drafter is asked for it.
    """
    ids = getattr(drafter, "id_map", None)
    if ids is None:
        return None
    known = np.zeros(vocab_size, dtype=bool)
    known[np.asarray(ids.tolist(), dtype=np.int64)] = True
    rounds = measured(trace).rounds
    committed = np.array([token for entry in rounds for token in entry.committed_ids], dtype=np.int64)
    return DraftVocabulary(
        size=int(known.sum()), target_size=vocab_size, committed=len(committed), inside=int(known[committed].sum())
    )
