"""``fixed:k``: draft k tokens every round and verify them all."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from specbench.engine.policy import PolicyContext
from specbench.errors import ConfigError
from specbench.types import Load, Proposal, Rows, Verdict, VerifyPlan


class FixedPolicy:
    """The same draft length in every round of every row. Causal: nothing about a draft decides on it."""

    causal: ClassVar[bool] = True

    def __init__(self, draft_length: int, argument: str | None = None, *, context: PolicyContext | None = None) -> None:
        if argument is not None:
            if not argument.isdigit():
                raise ConfigError(f"policy 'fixed:{argument}': the length must be a whole number; write fixed:3")
            draft_length = int(argument)
        self.draft_length = draft_length
        self.name = f"fixed:{draft_length}"

    def draft_limits(self, rows: Rows, *, load: Load) -> Tensor:
        """[B] int64: always the fixed length."""
        return torch.full_like(rows.lengths, self.draft_length)

    def plan(self, rows: Rows, *, proposal: Proposal, load: Load) -> VerifyPlan:
        """Everything that was drafted."""
        return VerifyPlan(proposal.counts)

    def observe(self, rows: Rows, *, plan: VerifyPlan, verdict: Verdict) -> None:
        """Nothing to learn."""


PLUGIN = FixedPolicy
