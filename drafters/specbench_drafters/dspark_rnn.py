"""DSpark with the recurrent head, under a name of its own so that it runs beside ``dspark`` with its own weights.

The drafter is `specbench_drafters.dspark`; only the checkpoint's head is checked here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from specbench.errors import DrafterError
from specbench.types import TargetView
from specbench_drafters.dspark.drafter import DSpark
from specbench_drafters.formats.record import LoadedCheckpoint


class DSparkRnn(DSpark):
    """DSpark whose sequential head carries a state from draft to draft."""

    @classmethod
    def build(cls, loaded: LoadedCheckpoint, *, target: TargetView, options: Mapping[str, Any]) -> Self:
        """As `BlockDrafter.build`. Errors: also DrafterError for a checkpoint whose head is not the recurrent one."""
        found = super().build(loaded, target=target, options=options)
        if loaded.spec.markov != "rnn":
            head = "no sequential head" if loaded.spec.markov == "none" else f"the {loaded.spec.markov} head"
            raise DrafterError(f"{loaded.path} is DSpark with {head}, not the recurrent one; use --method dspark")
        return found


PLUGIN = DSparkRnn
