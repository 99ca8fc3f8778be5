"""A small honest drafter whose drafts depend on everything before them, and copies of it that each break one rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from specbench.api import Random
from specbench.drafting.sampling import draw
from specbench.types import DraftLogits, Features, Proposal, Rows, Taps, TargetView, Verdict


class Summing:
    """Draft logits from the sum over a row's tokens, each times its position: any wrong state gives other logits.

    The sum is kept up by additions alone, so that a token left out, left behind or counted twice stays visible.
    """

    trained_length = 3
    max_context: int | None = None
    options: ClassVar[Mapping[str, str]] = {}

    def __init__(self, target: TargetView) -> None:
        self.taps = Taps(boundaries=(1,))
        self.sums = torch.zeros(target.max_rows, dtype=torch.float64)
        table = torch.randn(64, 3, target.vocab_size, generator=torch.Generator().manual_seed(4))
        self.table = table * 1.5

    def begin(self, rows: Rows) -> None:
        self.sums[rows.slots] = 0

    def prefill(self, rows: Rows, features: Features) -> None:
        self.add(rows, features)

    def commit(self, rows: Rows, *, verdict: Verdict, features: Features) -> None:
        self.add(rows, features)

    def add(self, rows: Rows, features: Features) -> None:
        values = ((features.token_ids + 1) * (features.positions + 3)).double()
        self.sums.index_add_(0, rows.slots[features.row_index], values)

    def logits(self, rows: Rows, width: int) -> Tensor:
        """[B, width, V] of a hash of each row's sum and anchor."""
        state = (self.sums[rows.slots].long() * 7 + rows.last_token * 11 + rows.lengths) % len(self.table)
        return self.table[state][:, :width]

    def propose(self, rows: Rows, *, limits: Tensor, rng: Random) -> Proposal:
        width = min(int(limits.max()), 3)
        uniforms = None if rows.all_greedy else rng.draft(rows, width)
        tokens, draft = draw(self.logits(rows, width), rows, uniforms=uniforms)
        return Proposal(tokens, limits.clamp(max=width), draft, torch.full(tokens.shape, 0.5))

    def release(self, slots: Sequence[int]) -> None: ...

    def state_bytes(self) -> int:
        return self.sums.numel() * 8


class ForgetsNothing(Summing):
    """A slot's next request goes on from the last one's sum."""

    def begin(self, rows: Rows) -> None: ...


class KeepsRejected(Summing):
    """The first draft enters the state when it is proposed, and stays there when it is rejected."""

    def propose(self, rows: Rows, *, limits: Tensor, rng: Random) -> Proposal:
        found = super().propose(rows, limits=limits, rng=rng)
        self.sums[rows.slots] += found.tokens[:, 0] * (found.counts > 0)
        return found


class SkipsUndraftedRows(Summing):
    """commit() passes over rows that were not drafted for."""

    drafted: Tensor | None = None  # slots

    def propose(self, rows: Rows, *, limits: Tensor, rng: Random) -> Proposal:
        self.drafted = rows.slots[limits > 0]
        return super().propose(rows, limits=limits, rng=rng)

    def commit(self, rows: Rows, *, verdict: Verdict, features: Features) -> None:
        before = self.sums.clone()
        super().commit(rows, verdict=verdict, features=features)
        if self.drafted is not None:
            skipped = rows.slots[~torch.isin(rows.slots, self.drafted)]
            self.sums[skipped] = before[skipped]


class TouchesNeighbours(Summing):
    """A row's commit also changes the slot beside it."""

    def commit(self, rows: Rows, *, verdict: Verdict, features: Features) -> None:
        super().commit(rows, verdict=verdict, features=features)
        self.sums[(rows.slots + 1) % len(self.sums)] += 1


class ReplacesAtEveryChunk(Summing):
    """prefill() starts anew at each chunk."""

    def prefill(self, rows: Rows, features: Features) -> None:
        self.sums[rows.slots] = 0
        super().prefill(rows, features)


class ChangesFeatures(Summing):
    """Works in the tensor that it was given."""

    def add(self, rows: Rows, features: Features) -> None:
        super().add(rows, features)
        features.hidden.mul_(0.5)


class CutsAtTop2(Summing):
    """Draws from its two likeliest tokens, and reports the whole distribution."""

    def propose(self, rows: Rows, *, limits: Tensor, rng: Random) -> Proposal:
        found = super().propose(rows, limits=limits, rng=rng)
        if found.draft is None:
            return found
        best = found.draft.logits.topk(2, dim=-1).indices
        pick = (rng.draft(rows, found.tokens.shape[1]) > 0.5).long()
        return replace(found, tokens=best.gather(2, pick[..., None]).squeeze(2))


class Misreports(Summing):
    """A valid proposal in which ``change`` broke one thing."""

    def __init__(self, target: TargetView, change: Any) -> None:
        super().__init__(target)
        self.change = change

    def propose(self, rows: Rows, *, limits: Tensor, rng: Random) -> Proposal:
        changed: Proposal = self.change(super().propose(rows, limits=limits, rng=rng))
        return changed


def with_draft(found: Proposal, **changes: Any) -> Proposal:
    """The proposal with fields of its distribution replaced."""
    assert found.draft is not None
    return replace(found, draft=replace(found.draft, **changes))


def with_unlikely_tokens(found: Proposal) -> Proposal:
    """The drafts' own q set to zero."""
    assert found.draft is not None
    logits = found.draft.logits.scatter(2, found.tokens[..., None], -torch.inf)
    return replace(found, draft=DraftLogits(logits, torch.logsumexp(logits, -1)))
