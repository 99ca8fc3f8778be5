"""EAGLE-3 drafters in every published layout, drafting a chain."""

from __future__ import annotations

from specbench_drafters.eagle3.drafter import Eagle3

PLUGIN = Eagle3

__all__ = ["PLUGIN", "Eagle3"]
