"""DSpark (arXiv 2607.05147): one backbone forward a block, then tokens left to right with a bias from the prefix.

The backbone and its cache are DFlash's. The sequential head costs one [B, r] x [r, Vd] product a position; confidence
is read for the whole block afterwards.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from specbench.drafting.heads import MarkovHead
from specbench.drafting.sampling import join
from specbench.types import DraftLogits, Proposal, Rows
from specbench_drafters._block import BlockDrafter
from specbench_drafters.formats.record import DraftKind


class DSpark(BlockDrafter):
    """Semi-autoregressive block drafter with confidences."""

    kind: ClassVar[DraftKind] = DraftKind.DSPARK

    def _draft(self, rows: Rows, hidden: Tensor, uniforms: Tensor | None) -> Proposal:
        base = self.model.logits(hidden)  # [B, G, Vd]
        markov = self.model.markov_head
        if markov is None:
            tokens, draft = self._draw(base, rows, uniforms)
        else:
            tokens, draft = self._sequential(rows, markov, hidden, base, uniforms)
        return Proposal(
            tokens=tokens,
            counts=rows.lengths.new_full((len(rows),), tokens.shape[1]),
            draft=draft,
            confidence=self._confidence(rows, hidden, tokens),
        )

    def _sequential(
        self, rows: Rows, markov: MarkovHead, hidden: Tensor, base: Tensor, uniforms: Tensor | None
    ) -> tuple[Tensor, DraftLogits | None]:
        previous, state = rows.last_token, markov.start(hidden[:, 0])
        parts = []
        for k in range(hidden.shape[1]):
            bias, state = markov.step(hidden[:, k], markov.embed(previous), state)
            noise = None if uniforms is None else uniforms[:, k : k + 1]
            logits = (base[:, k] + bias)[:, None]  # [B, 1, Vd]
            parts.append(self._draw(logits, rows, noise))
            previous = parts[-1][0][:, 0]
        return join(parts)

    def _confidence(self, rows: Rows, hidden: Tensor, tokens: Tensor) -> Tensor | None:
        head, markov = self.model.confidence_head, self.model.markov_head
        if head is None:
            return None
        embedded = None
        if head.rank:
            assert markov is not None, "the model refuses a Markov input without a Markov head"
            embedded = markov.embed(torch.cat((rows.last_token[:, None], tokens[:, :-1]), dim=1))
        return torch.sigmoid(head(hidden, embedded).to(torch.float32))
