"""Sequential drafters: one draft layer run over committed pairs, then over its own chain of drafts.

EAGLE-3 (Li et al., arXiv 2503.01840) and multi-token-prediction layers (DeepSeek-V3 report, arXiv 2412.19437,
section 2.2) share one recurrence. The pair of position i is the state of token i with the embedding of token i+1; the
layer turns it into the prediction of token i+2 and a state to continue from. Pairs of committed tokens use the target's
state and are computed once, in ``prefill`` and ``commit``. A round continues from the output of the last committed
pair: that gives the first draft, and each further draft runs the layer once on (own state, drafted token).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from specbench.api import Random
from specbench.drafting.chain_attention import Attend, CommittedAttend, RoundAttend
from specbench.drafting.sampling import draw, join
from specbench.drafting.slots import SlotCache, SlotState
from specbench.drafting.stops import truncate_at_stop
from specbench.drafting.vocab import nameable
from specbench.types import DraftLogits, Features, Proposal, Rows, Taps, TargetView, Verdict


class ChainModel(Protocol):
    """The network of a sequential drafter. N, T are any leading sizes (1 and flat tokens at inference).

    ``num_layers`` attention caches in all; ``num_depths`` layers that take turns over the steps of a round (1 where
    every step runs the whole model).
    """

    num_layers: int
    num_depths: int
    num_key_heads: int
    key_dim: int
    value_dim: int
    width: int

    def start(self, features: Tensor) -> Tensor:
        """The target's tapped states [N, T, D] as first states [N, T, d]."""
        ...

    def step(
        self,
        hidden: Tensor,
        token_ids: Tensor,
        positions: Tensor,
        *,
        attend: Attend,
        depth: int = 0,
        only: Tensor | None = None,
    ) -> Tensor:
        """Layer outputs [N, T, d] of the pairs (``hidden`` [N, T, d], ``token_ids`` [N, T]) at ``positions`` [N, T].

        With ``only`` [R] flat indices (N = 1), only those outputs: [1, R, d].
        """
        ...

    def finish(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """(what the head reads, the state of the next step), both [..., d], from layer outputs [..., d]."""
        ...

    def logits(self, normed: Tensor) -> Tensor:
        """Draft logits [..., Vd] of what `finish` gave for the head."""
        ...


class ChainDrafter:
    """A `Drafter` around a `ChainModel`: caches by slot, drafting greedy or sampled.

    Rows never see each other: a row's result depends on its own pairs only. Rejected drafts need no clean-up, because
    every read is bounded by the committed length.
    """

    graph_safe = True

    def __init__(
        self,
        model: ChainModel,
        *,
        target: TargetView,
        taps: Taps,
        trained_length: int,
        max_context: int | None,
        id_map: Tensor | None,
        greedy: bool,
        weight_bytes: int,
    ) -> None:
        self.model = model
        self.taps = taps
        self.trained_length = trained_length
        self.max_context = max_context
        self.id_map = None if id_map is None else id_map.to(target.device)
        self._width = nameable(target, id_map=id_map)
        self._greedy = greedy
        self._weight_bytes = weight_bytes
        self._stop_ids = torch.tensor(sorted(target.stop_ids), dtype=torch.int64, device=target.device)
        self._last_position = target.max_context  # one position past the longest sequence: scratch
        self._cache = SlotCache(
            num_layers=model.num_layers,
            num_heads=model.num_key_heads,
            key_dim=model.key_dim,
            value_dim=model.value_dim,
            max_slots=target.max_rows,
            max_length=target.max_context + 1,
            dtype=target.dtype,
            device=target.device,
        )
        self._outputs = SlotState(model.width, max_slots=target.max_rows, dtype=target.dtype, device=target.device)

    @torch.no_grad()
    def begin(self, rows: Rows) -> None:
        """New requests took these slots."""
        self._outputs.clear(rows.slots)

    @torch.no_grad()
    def prefill(self, rows: Rows, features: Features) -> None:
        """The pairs of a prompt chunk."""
        self._extend(rows, features)

    @torch.no_grad()
    def commit(self, rows: Rows, *, verdict: Verdict, features: Features) -> None:
        """The pairs of the anchor and the accepted drafts, over whatever was drafted at their positions."""
        self._extend(rows, features)

    def _extend(self, rows: Rows, features: Features) -> None:
        starts = features.row_starts_host
        assert all(a < b for a, b in itertools.pairwise(starts)), "a row without committed tokens"
        attend = CommittedAttend(self._cache, rows, features, limit=self._last_position)
        hidden = self.model.start(features.hidden[None])  # [1, T, d]
        tokens, positions = features.next_ids[None], features.positions[None]  # [1, T]
        last = features.row_starts[1:] - 1  # [B]
        # Only the last pair of a row is continued from; of the others the keys and values are all that is needed.
        output = self.model.step(hidden, tokens, positions, attend=attend, depth=0, only=last)
        self._outputs.put(rows.slots, output[0])
        for depth in range(1, self.model.num_depths):
            self.model.step(hidden, tokens, positions, attend=attend, depth=depth, only=last)

    @torch.no_grad()
    def propose(self, rows: Rows, *, limits: Tensor, rng: Random) -> Proposal:
        """A chain of G drafts: G heads, G - 1 layers."""
        steps = rows.width(limits)
        sampled = not (self._greedy or rows.all_greedy)
        uniforms = rng.draft(rows, steps) if sampled else None
        attend = RoundAttend(self._cache, rows, steps=steps, limit=self._last_position)
        output = self._outputs.get(rows.slots)[None]  # [1, B, d]
        parts: list[tuple[Tensor, DraftLogits | None]] = []
        for step in range(steps):
            normed, hidden = self.model.finish(output)
            logits = self.model.logits(normed[0])[:, None]  # [B, 1, Vd]
            noise = None if uniforms is None else uniforms[:, step : step + 1]
            parts.append(draw(logits, rows, uniforms=noise, id_map=self.id_map, width=self._width, greedy=self._greedy))
            if step + 1 < steps:
                output = self._next(rows, attend, hidden, parts[-1][0], step=step)
        tokens, draft = join(parts)
        return Proposal(tokens=tokens, counts=truncate_at_stop(tokens, limits, self._stop_ids), draft=draft)

    def _next(self, rows: Rows, attend: RoundAttend, hidden: Tensor, tokens: Tensor, *, step: int) -> Tensor:
        """Layer outputs [1, B, d] of the chain's pair ``step``: own states [1, B, d] with the drafts [B, 1]."""
        # Each layer fills its own indices in order; with layers that take turns not every step adds to the same one.
        attend.move_to(index=rows.lengths + step // self.model.num_depths)
        depth = (step + 1) % self.model.num_depths
        return self.model.step(hidden, tokens.T, (rows.lengths + step)[None], attend=attend, depth=depth)

    def release(self, slots: Sequence[int]) -> None:
        """Nothing to do: a slot's contents are unreachable once its length is."""

    def growth_bytes(self) -> int:
        """Bytes by which the cache may still grow."""
        return self._cache.growth_bytes()

    def state_bytes(self) -> int:
        """Own weights, key/value cache and the per-slot states."""
        return self._weight_bytes + self._cache.bytes() + self._outputs.bytes()
