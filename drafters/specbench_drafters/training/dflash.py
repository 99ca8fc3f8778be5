"""Training of DFlash in DeepSpec's form: every row of a block predicts, each on its own."""

from __future__ import annotations

from specbench_drafters.formats.record import DraftKind
from specbench_drafters.training._block import BlockMethod, BlockOptions


class DFlashMethod(BlockMethod):
    """DFlash: a block model without heads."""

    method = "dflash"
    kind = DraftKind.DFLASH
    model = BlockOptions


PLUGIN = DFlashMethod()
