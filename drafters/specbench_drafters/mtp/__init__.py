"""Multi-token-prediction layers: a target's own, or a small head trained for a target that ships none."""

from __future__ import annotations

from specbench_drafters.mtp.drafter import Mtp

PLUGIN = Mtp

__all__ = ["PLUGIN", "Mtp"]
