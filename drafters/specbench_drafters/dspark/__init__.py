"""DSpark: the block drafter with a sequential head and a confidence head."""

from __future__ import annotations

from specbench_drafters.dspark.drafter import DSpark

PLUGIN = DSpark
