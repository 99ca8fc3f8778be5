"""``threshold:p``: verify the drafts before the first one whose confidence is below p (DeepSpec's static mode).

Causal: the confidence of a draft is computed without it, and nothing later is looked at.
"""

from __future__ import annotations

import torch

from specbench.engine.policy import (
    SHARED,
    Decision,
    Drafted,
    Option,
    PolicyContext,
    ScoredPolicy,
    canonical,
    parse_options,
)
from specbench.errors import ConfigError
from specbench.types import Load, Rows

OPTIONS = {"p": Option("share", None, "least confidence of a verified draft, given those before it"), **SHARED}


class ThresholdPolicy(ScoredPolicy):
    """The prefix before the first conditional confidence below the threshold."""

    def __init__(self, draft_length: int, argument: str | None = None, *, context: PolicyContext | None = None) -> None:
        options = parse_options("threshold", argument, OPTIONS, bare="p")
        if options["p"] is None:
            raise ConfigError("policy 'threshold' needs the least confidence; write for example threshold:0.5")
        super().__init__(canonical("threshold", options, bare="p"), draft_length, options, context)
        self.threshold = options["p"]

    def _decide(self, rows: Rows, drafted: Drafted, load: Load) -> Decision:
        kept = (drafted.conditional >= self.threshold).to(torch.int64).cumprod(dim=1).sum(dim=1)  # [B]
        return Decision(torch.minimum(kept, drafted.counts), {}, label=f"threshold={self.threshold:g}")


PLUGIN = ThresholdPolicy
