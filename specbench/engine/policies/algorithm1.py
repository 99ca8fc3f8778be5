"""``algorithm1``: admit drafts by survival while each raises the expected throughput, with this cycle's own scores.

Algorithm 1 of the DSpark paper (arXiv 2607.05147). Causal because it stops at the first draft that does not pay: it
then never looks at what comes after the drafts that it decides on.
"""

from __future__ import annotations

import torch

from specbench.engine.policy import (
    SHARED,
    Decision,
    Drafted,
    PolicyContext,
    ScoredPolicy,
    canonical,
    needed_cost,
    parse_options,
)
from specbench.kernels.plan import admit, early_stop, rank
from specbench.types import Load, Rows


class Algorithm1Policy(ScoredPolicy):
    """Early stop over current scores."""

    def __init__(self, draft_length: int, argument: str | None = None, *, context: PolicyContext | None = None) -> None:
        options = parse_options("algorithm1", argument, SHARED)
        self._cost = needed_cost("algorithm1", context)
        super().__init__(canonical("algorithm1", options), draft_length, options, context)

    def _decide(self, rows: Rows, drafted: Drafted, load: Load) -> Decision:
        scores, counts, expected, riding = drafted.survival, drafted.counts, None, load.prefill_tokens
        if drafted.whole is not None:  # rows that verify everything are no candidates; their tokens ride along
            riding += drafted.num_whole * scores.shape[1]
            expected = len(rows) + (scores * drafted.whole[:, None]).sum()
            counts = torch.where(drafted.whole, 0, counts)
        rates = self._cost.rates(len(rows), riding=riding, candidates=scores.numel())
        ranking = rank(scores, counts)
        choice = early_stop(ranking, rates, expected=expected)
        return Decision(admit(ranking, choice.admitted), {"capacity": choice.admitted, "theta": choice.theta})


PLUGIN = Algorithm1Policy
