"""DFlash: a whole block drafted in one forward, each position independent of the drafts before it.

z-lab's checkpoints (slot k predicts position k) and DeepSpec's (shifted slots, no heads) are the same method; the
checkpoint's record says which.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from specbench.types import Proposal, Rows
from specbench_drafters._block import BlockDrafter
from specbench_drafters.formats.record import DraftKind


class DFlash(BlockDrafter):
    """Parallel block drafter: every draft is drawn from its own position's logits."""

    kind: ClassVar[DraftKind] = DraftKind.DFLASH

    def _draft(self, rows: Rows, hidden: Tensor, uniforms: Tensor | None) -> Proposal:
        logits = self.model.logits(hidden)  # [B, G, Vd]
        tokens, draft = self._draw(logits, rows, uniforms)
        return Proposal(tokens=tokens, counts=rows.lengths.new_full((len(rows),), tokens.shape[1]), draft=draft)


PLUGIN = DFlash
