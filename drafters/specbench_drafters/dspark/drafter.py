"""DSpark (arXiv 2607.05147): one backbone forward a block, then tokens left to right with a bias from the prefix.

The backbone and its cache are DFlash's. The sequential head costs one [B, r] x [r, Vd] product a position; confidence
is read for the whole block afterwards.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from specbench.drafting.heads import MarkovHead
from specbench.kernels.markov import kept_for, markov_step
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
        kept = None if uniforms is None else kept_for(base, id_map=self.id_map, width=self.width)
        previous, state = rows.last_token, markov.start(hidden[:, 0])
        tokens = []
        for k in range(hidden.shape[1]):
            table, index, state = markov.factor(hidden[:, k], previous, state)
            previous = markov_step(
                base[:, k],
                table=table,
                index=index,
                product=markov.markov_w2,
                rows=rows,
                uniforms=None if uniforms is None else uniforms[:, k],
                id_map=self.id_map,
                width=self.width,
                kept=kept,
                position=k,
            )
            tokens.append(previous)
        return torch.stack(tokens, dim=1), kept

    def _confidence(self, rows: Rows, hidden: Tensor, tokens: Tensor) -> Tensor | None:
        head, markov = self.model.confidence_head, self.model.markov_head
        if head is None:
            return None
        embedded = None
        if head.rank:
            assert markov is not None, "the model refuses a Markov input without a Markov head"
            embedded = markov.embed(torch.cat((rows.last_token[:, None], tokens[:, :-1]), dim=1))
        return torch.sigmoid(head(hidden, embedded).to(torch.float32))
