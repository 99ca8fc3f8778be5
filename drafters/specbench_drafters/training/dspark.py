"""Training of DSpark: DFlash's block model with a sequential head under given tokens, and a confidence head."""

from __future__ import annotations

from specbench_drafters.formats.record import DraftKind
from specbench_drafters.training._block import BlockMethod, SparkOptions


class DSparkMethod(BlockMethod):
    """DSpark: a block model with heads."""

    method = "dspark"
    kind = DraftKind.DSPARK
    model = SparkOptions


PLUGIN = DSparkMethod()
