"""Sequential drafters against a slow, uncached oracle: unequal rows, late joins, wrong drafts, slots used again."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from support_drafting import CounterRandom, make_features, make_rows, make_verdict
from torch import Tensor

# (committed tokens with the anchor last, target features [n, D] of all before the anchor, drafts fed in)
# -> draft logits [len(drafts) + 1, Vd]: after the anchor, and after each of the drafts
Oracle = Callable[[list[int], Tensor, list[int]], Tensor]


@dataclass
class _Row:
    slot: int
    tokens: list[int]
    computed: int = 0
    rounds: int = 0
    history: list[list[int]] = field(default_factory=list)


class Drill:
    """Feeds a drafter committed tokens of its own choosing and compares every proposal with the oracle."""

    def __init__(
        self, drafter: Any, *, features: Callable[[list[int]], Tensor], oracle: Oracle, vocab: int, seed: int = 0
    ) -> None:
        self.drafter, self.features, self.oracle, self.vocab = drafter, features, oracle, vocab
        self.random = random.Random(seed)
        self.rows: list[_Row] = []
        self.worst = 0.0
        self.compared = 0

    def join(self, slot: int, length: int, *, chunks: int = 1) -> None:
        """A new request with a random prompt, prefilled in ``chunks`` pieces."""
        row = _Row(slot, [self.random.randrange(self.vocab) for _ in range(length + 1)])
        self.drafter.begin(make_rows([slot], [0], [0]))
        hidden = self.features(row.tokens[:length])
        bounds = sorted({0, length, *(length * i // chunks for i in range(1, chunks))})
        for low, high in itertools.pairwise(bounds):
            part = (row.tokens[low:high], low, hidden[low:high], row.tokens[high])
            self.drafter.prefill(make_rows([slot], [low], [row.tokens[high]]), make_features([part]))
        row.computed = length
        self.rows.append(row)

    def join_together(self, slots: list[int], lengths: list[int]) -> None:
        """Several new requests whose whole prompts are prefilled in one ragged step."""
        joined = [_Row(s, [self.random.randrange(self.vocab) for _ in range(n + 1)], n) for s, n in zip(slots, lengths)]
        nothing = make_rows(slots, [0] * len(slots), [row.tokens[-1] for row in joined])
        self.drafter.begin(nothing)
        parts = [(row.tokens[:-1], 0, self.features(row.tokens[:-1]), row.tokens[-1]) for row in joined]
        self.drafter.prefill(nothing, make_features(parts))
        self.rows += joined

    def leave(self, slot: int) -> None:
        """The request in ``slot`` ends."""
        self.rows = [row for row in self.rows if row.slot != slot]
        self.drafter.release([slot])

    def round(self, limits: list[int], *, temperature: list[float] | float = 1.0) -> Any:
        """Propose for all rows, compare, commit a random share of the drafts and then a random token."""
        rows = make_rows(
            [r.slot for r in self.rows],
            [r.computed for r in self.rows],
            [r.tokens[-1] for r in self.rows],
            temperature=temperature,
        )
        proposal = None
        if any(limits):
            proposal = self.drafter.propose(rows, limits=torch.tensor(limits), rng=CounterRandom())
            assert proposal.counts.tolist() == limits
            for index, row in enumerate(self.rows):
                self._compare(index, row, limits[index], proposal)
        accepted = [self.random.randint(0, limit) for limit in limits]
        after = [self.random.randrange(self.vocab) for _ in self.rows]
        parts = []
        for index, row in enumerate(self.rows):
            drafts = [] if proposal is None else proposal.tokens[index].tolist()[: accepted[index]]
            row.tokens = [*row.tokens, *drafts, after[index]]
            hidden = self.features(row.tokens[:-1])
            parts.append((row.tokens[row.computed : -1], row.computed, hidden[row.computed :], row.tokens[-1]))
            row.computed = len(row.tokens) - 1
        self.drafter.commit(rows, verdict=make_verdict(accepted, after), features=make_features(parts))
        return proposal

    def _compare(self, index: int, row: _Row, limit: int, proposal: Any) -> None:
        if limit == 0:
            return
        drafts = proposal.tokens[index].tolist()[:limit]
        wanted = self.oracle(row.tokens, self.features(row.tokens[:-1]), drafts[:-1])
        if proposal.draft is not None:
            seen = proposal.draft.logits[index, :limit]
            self.worst = max(self.worst, float((seen - wanted).abs().max()))
            id_map = proposal.draft.id_map
        else:
            best = wanted.argmax(dim=-1)
            id_map = self.drafter.id_map
            assert drafts == (best if id_map is None else id_map[best]).tolist()
        if id_map is not None:
            assert set(drafts) <= set(id_map.tolist())
        self.compared += limit

    def play(self) -> None:
        """The whole drill."""
        self.join(2, 9, chunks=2)
        self.join(0, 1)
        self.round([3, 3])
        self.round([0, 4])
        self.join(1, 17, chunks=3)  # joins late, and makes the slots of the step unordered
        for _ in range(4):
            self.round([self.random.randint(0, 4) for _ in self.rows])
        self.leave(0)
        self.round([5, 2])
        self.join(0, 5)  # a used slot
        self.round([0, 0, 0])
        self.round([4, 4, 4], temperature=0.0)
        for _ in range(3):
            self.round([self.random.randint(1, 4) for _ in self.rows], temperature=[1.0, 1.0, 1.0])
        assert self.compared > 40
        assert self.worst < 1e-4, self.worst


def causal(length: int, *, window: int | None = None) -> Tensor:
    """Additive mask [1, 1, length, length] for a plain causal layer."""
    seen = torch.ones(length, length, dtype=torch.bool).tril()
    if window is not None:
        seen = seen.triu(1 - window)
    return torch.zeros(length, length).masked_fill(~seen, -torch.inf)[None, None]
