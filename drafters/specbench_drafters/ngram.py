"""Prompt lookup: what followed the last time these tokens were seen (Saxena 2023; n-gram drafting in serving engines).

The longest suffix that occurred before wins. Among its occurrences the one with the longest continuation (up to the
limit) is taken, the most recent of those. Drafts are point masses; a row without a match drafts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from specbench.api import Random
from specbench.drafting.stops import truncate_at_stop
from specbench.drafting.vocab import nameable
from specbench.errors import ConfigError
from specbench.kernels.accept import prefix_length
from specbench.types import Features, Proposal, Rows, Taps, TargetView, Verdict


class NgramDrafter:
    """Keeps the token history of every slot in one table and searches all rows at once."""

    taps = Taps()
    trained_length = 7
    max_context: int | None = None
    graph_safe = True
    options: ClassVar[Mapping[str, str]] = {
        "max_ngram": "longest suffix that is looked up, in tokens (default 3)",
        "min_ngram": "shortest suffix that is looked up, in tokens (default 1)",
    }

    def __init__(self, target: TargetView, *, max_ngram: int, min_ngram: int) -> None:
        self.max_ngram, self.min_ngram = max_ngram, min_ngram
        self._history = torch.zeros(
            target.max_rows, target.max_context + 1, dtype=torch.int64, device=target.device
        )  # [slots, positions]
        self._nameable = nameable(target, id_map=None)
        self._stop_ids = torch.tensor(sorted(target.stop_ids), dtype=torch.int64, device=target.device)

    @classmethod
    def load(cls, checkpoint: Path | None, *, target: TargetView, options: Mapping[str, Any]) -> NgramDrafter:
        """No checkpoint; windows from the options. Errors: ConfigError for windows that make no sense."""
        longest, shortest = options.get("max_ngram", 3), options.get("min_ngram", 1)
        if not (isinstance(longest, int) and isinstance(shortest, int) and 1 <= shortest <= longest):
            raise ConfigError(
                f"ngram windows min_ngram={shortest!r}, max_ngram={longest!r}; give whole numbers with 1 <= min <= max"
            )
        return cls(target, max_ngram=longest, min_ngram=shortest)

    def begin(self, rows: Rows) -> None:
        """Nothing to clear: only positions below a row's length are read."""

    def prefill(self, rows: Rows, features: Features) -> None:
        """Remember the prompt's tokens."""
        self._remember(rows, features)

    def commit(self, rows: Rows, *, verdict: Verdict, features: Features) -> None:
        """Remember the anchor and the accepted drafts."""
        self._remember(rows, features)

    def _remember(self, rows: Rows, features: Features) -> None:
        self._history[rows.slots[features.row_index], features.positions] = features.token_ids

    def propose(self, rows: Rows, *, limits: Tensor, rng: Random) -> Proposal:
        """Look every row's newest tokens up in its own history."""
        width = rows.width(limits)
        self._history[rows.slots, rows.lengths] = rows.last_token
        span = max(rows.lengths_host) + 1
        table = self._history[rows.slots, :span]  # [B, L]
        start, found = self._lookup(table, lengths=rows.lengths, limits=limits)
        counts = torch.where(found, torch.minimum(limits, rows.lengths + 1 - start), torch.zeros_like(limits))
        index = (start[:, None] + torch.arange(width, device=table.device)).clamp(max=span - 1)  # [B, G]
        tokens = table.gather(1, index)
        known = prefix_length(tokens < self._nameable)  # a target may have put out ids that its tokenizer cannot read
        return Proposal(tokens, truncate_at_stop(tokens, torch.minimum(counts, known), self._stop_ids))

    def _lookup(self, table: Tensor, *, lengths: Tensor, limits: Tensor) -> tuple[Tensor, Tensor]:
        """Where the continuation of the best earlier occurrence starts [B], and whether there is one [B]."""
        rows = torch.arange(table.shape[0], device=table.device)
        position = torch.arange(table.shape[1], device=table.device)[None, :]  # last token of an occurrence
        matches = torch.ones_like(table, dtype=torch.bool)
        best = torch.zeros_like(lengths)
        found = torch.zeros_like(lengths, dtype=torch.bool)
        for n in range(1, self.max_ngram + 1):
            back = n - 1
            wanted = table[rows, (lengths - back).clamp(min=0)]  # [B], the suffix's n-th newest token
            shifted = table.roll(back, dims=1)  # shifted[b, i] = table[b, i - back]
            matches &= (shifted == wanted[:, None]) & (position >= back) & (lengths >= back)[:, None]
            if n < self.min_ngram:
                continue
            inside = matches & (position < lengths[:, None])  # strictly before the anchor itself
            gain = torch.minimum((lengths[:, None] - position).clamp(min=0), limits.clamp(min=1)[:, None])
            score = torch.where(inside, gain * (table.shape[1] + 1) + position, -1)  # longest, then most recent
            value, where = score.max(dim=1)
            better = value >= 0
            best = torch.where(better, where + 1, best)
            found |= better
        return best, found

    def release(self, slots: Sequence[int]) -> None:
        """Nothing to free."""

    def state_bytes(self) -> int:
        """Bytes of the history table."""
        return self._history.numel() * self._history.element_size()


PLUGIN = NgramDrafter
