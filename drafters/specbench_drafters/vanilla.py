"""Plain decoding: a drafter that proposes nothing, so that the baseline pays the same overheads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from specbench.api import Random
from specbench.types import Features, Proposal, Rows, Taps, TargetView, Verdict


class VanillaDrafter:
    """No drafts, no state."""

    taps = Taps()
    trained_length = 0
    max_context: int | None = None
    graph_safe = True
    options: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def load(cls, checkpoint: Path | None, *, target: TargetView, options: Mapping[str, Any]) -> VanillaDrafter:
        """Nothing to load."""
        return cls()

    def begin(self, rows: Rows) -> None:
        """No state."""

    def prefill(self, rows: Rows, features: Features) -> None:
        """No state."""

    def propose(self, rows: Rows, *, limits: Tensor, rng: Random) -> Proposal:
        """No drafts, whatever the limits."""
        return Proposal(limits.new_zeros(len(rows), 0), limits.new_zeros(len(rows)))

    def commit(self, rows: Rows, *, verdict: Verdict, features: Features) -> None:
        """No state."""

    def release(self, slots: Sequence[int]) -> None:
        """No state."""

    def state_bytes(self) -> int:
        """Nothing is held."""
        return 0


PLUGIN = VanillaDrafter
