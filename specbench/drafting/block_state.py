"""A block model at work: the slot cache of its context and the batched, ragged forward of one block a row."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, arange

from specbench.drafting.attention import attend, visible_keys
from specbench.drafting.block_model import BlockModel
from specbench.drafting.slots import SlotCache
from specbench.types import Features, Rows, TargetView


class BlockState:
    """Context keys and values by slot, computed once a committed token, and blocks attending over them.

    A block's own keys and values are written just beyond the row's committed length, where the next commit overwrites
    them and no mask lets an earlier read see them. Every block has its trained number of inputs, whatever the limits:
    its rows see each other, so a shorter block would give other drafts.
    """

    def __init__(self, model: BlockModel, *, target: TargetView) -> None:
        shape = model.config.shape
        self.model = model
        self.cache = SlotCache(
            num_layers=shape.num_layers,
            num_heads=shape.num_kv_heads,
            key_dim=shape.head_dim,
            max_slots=target.max_rows,
            max_length=target.max_context + model.config.block_inputs,
            dtype=model.dtype,
            device=target.device,
        )
        self._max_context = target.max_context

    def extend(self, rows: Rows, features: Features) -> None:
        """Add the context of newly committed tokens (a prompt chunk, or a round's anchor and accepted drafts)."""
        starts = features.row_starts_host
        longest = max((end - start for start, end in pairwise(starts)), default=0)
        length = min(self._max_context, max(rows.lengths_host, default=0) + longest)
        self.cache.reserve(slots=rows.slots_host, length=length)
        slots = rows.slots[features.row_index]  # [T]
        context = self.model.context(features.hidden)
        for layer, (keys, values) in enumerate(self.model.context_keys(context, features.positions)):
            self.cache.write(layer, slots=slots, positions=features.positions, keys=keys, values=values)

    def block(self, rows: Rows) -> Tensor:
        """Final-normed hidden states [B, block_inputs, d] of one block after each row's anchor."""
        span = self.model.config.block_inputs
        length = max(rows.lengths_host) + span
        self.cache.reserve(slots=rows.slots_host, length=length)
        positions = rows.lengths[:, None] + arange(span, device=rows.lengths.device)  # [B, S]
        slots = rows.slots[:, None].expand_as(positions)
        masks = self._masks(rows, positions, length)

        def attend_layer(layer: int, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            self.cache.write(layer, slots=slots, positions=positions, keys=keys, values=values)
            all_keys, all_values = self.cache.read(layer, slots=rows.slots, slots_host=rows.known_slots, length=length)
            return attend(query, all_keys, all_values, mask=masks[layer], scale=self.model.scale(layer))

        return self.model.block(self.model.block_embeddings(rows.last_token), positions=positions, attend=attend_layer)

    def _masks(self, rows: Rows, positions: Tensor, length: int) -> list[Tensor | None]:
        """The mask [B, S, length] of each layer; None where every row sees every position."""
        shape = self.model.config.shape
        ends = rows.lengths + positions.shape[1]
        even = rows.drafts is None and min(rows.lengths_host) == max(rows.lengths_host)
        made: dict[tuple[bool, int | None], Tensor | None] = {}
        for rule in zip(shape.causal, shape.window, strict=True):
            if rule in made:
                continue
            if even and rule == (False, None):
                made[rule] = None
            else:
                made[rule] = visible_keys(positions, key_length=length, ends=ends, causal=rule[0], window=rule[1])
        return [made[rule] for rule in zip(shape.causal, shape.window, strict=True)]

    def bytes(self) -> int:
        """Bytes of the context cache."""
        return self.cache.bytes()

    def growth_bytes(self) -> int:
        """Bytes by which it may still grow."""
        return self.cache.growth_bytes()
