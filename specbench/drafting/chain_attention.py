"""Attention of sequential drafters over slot caches: committed pairs, then a round's own chain."""

from __future__ import annotations

import itertools
from typing import Protocol

import torch
from torch import Tensor

from specbench.drafting.attention import attend
from specbench.drafting.slots import SlotCache
from specbench.types import Features, Rows

_LONG = 64  # rows with more queries are attended on their own: padding the others to them would waste work


class Attend(Protocol):
    """The attention of one call of a draft layer: stores its keys and values, reads what its queries may see."""

    def __call__(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scaling: float,
        window: int | None = None,
        only: Tensor | None = None,
    ) -> Tensor:
        """[N, T, H, dv] from ``query`` [N, T, H, dk], ``key`` [N, T, Hkv, dk], ``value`` [N, T, Hkv, dv].

        ``window`` hides keys that are ``window`` or more positions back. With ``only`` the query belongs to those
        flat tokens alone: the rows' last ones, [1, B, H, dk].
        """
        ...


def causal_slots(
    query: Tensor, keys: Tensor, values: Tensor, *, index: Tensor, scaling: float, window: int | None
) -> Tensor:
    """Causal attention of each row over its own cache: [B, Q, H, dv].

    ``query`` [B, Q, H, dk]; ``keys`` [B, L, Hkv, dk] and ``values`` [B, L, Hkv, dv] by index; a query at ``index``
    [B, Q] sees keys j with index - window < j <= index.
    """
    at = torch.arange(keys.shape[1], device=keys.device)
    seen = at <= index[..., None]  # [B, Q, L]
    if window is not None:
        seen &= at > index[..., None] - window
    return attend(query, keys, values, mask=seen, scale=scaling)


class CommittedAttend:
    """Committed tokens of a step: keys and values go into the cache at their positions, for good.

    ``limit`` is the last position that the cache can hold.
    """

    def __init__(self, cache: SlotCache, rows: Rows, features: Features, *, limit: int) -> None:
        starts = features.row_starts_host
        counts = [b - a for a, b in itertools.pairwise(starts)]
        self._cache, self._rows, self._features, self._counts = cache, rows, features, counts
        ends = [length + count for length, count in zip(rows.lengths_host, counts, strict=True)]
        self._length = min(max(ends), limit + 1)
        self._slots = rows.slots[features.row_index]  # [T]
        cache.reserve(slots=rows.slots_host, length=self._length)

    def __call__(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scaling: float,
        window: int | None = None,
        only: Tensor | None = None,
    ) -> Tensor:
        """See `Attend`."""
        rows, positions = self._rows, self._features.positions
        self._cache.write(layer, slots=self._slots, positions=positions, keys=key[0], values=value[0])
        keys, values = self._cache.read(layer, slots=rows.slots, slots_host=rows.known_slots, length=self._length)
        if only is not None:
            out = causal_slots(
                query[0][:, None], keys, values, index=positions[only][:, None], scaling=scaling, window=window
            )
            return out[:, 0][None]
        out = query.new_empty(1, *query.shape[1:3], values.shape[-1])
        for group in self._groups():
            tokens, valid = self._padded(group)
            piece = causal_slots(
                query[0][tokens],
                keys if len(group) == len(rows) else keys[group],
                values if len(group) == len(rows) else values[group],
                index=positions[tokens],
                scaling=scaling,
                window=window,
            )
            if valid is None:
                out[0, tokens.flatten()] = piece.flatten(0, 1)
            else:
                out[0, tokens[valid]] = piece[valid]
        return out

    def _groups(self) -> list[list[int]]:
        """Row numbers attended together: all short rows, and each long row alone."""
        short = [r for r, count in enumerate(self._counts) if count <= _LONG]
        return ([short] if short else []) + [[r] for r, count in enumerate(self._counts) if count > _LONG]

    def _padded(self, group: list[int]) -> tuple[Tensor, Tensor | None]:
        """Flat token indices [b, Q] of a group's rows, the last one repeated, and which are real (None: all)."""
        starts = self._features.row_starts
        picked = slice(None) if len(group) == len(self._rows) else group
        first, end = starts[:-1][picked], starts[1:][picked]  # [b]
        offsets = torch.arange(max(self._counts[r] for r in group), device=starts.device)
        tokens = first[:, None] + offsets  # [b, Q]
        if len({self._counts[r] for r in group}) == 1:
            return tokens, None
        return torch.minimum(tokens, end[:, None] - 1), tokens < end[:, None]


class RoundAttend:
    """The chain of one round: one token a row and step, written past the committed pairs and never kept.

    The committed keys and values are read once per layer and round. Where the rows' slots are consecutive that is a
    view of the cache, and the chain's entries land beyond the committed length, where no later read sees them.
    """

    def __init__(self, cache: SlotCache, rows: Rows, *, steps: int, limit: int) -> None:
        self._cache, self._rows, self._limit = cache, rows, limit
        self._length = min(max(rows.lengths_host) + steps, limit + 1)
        self._pieces: dict[int, tuple[Tensor, Tensor]] = {}
        self._row = torch.arange(len(rows), device=rows.slots.device)
        self._index = rows.lengths
        cache.reserve(slots=rows.slots_host, length=self._length)

    def move_to(self, *, index: Tensor) -> None:
        """The next call writes at ``index`` [B]. Rows past their own limit may point past the cache's end."""
        self._index = index.clamp(max=self._limit)

    def __call__(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scaling: float,
        window: int | None = None,
        only: Tensor | None = None,
    ) -> Tensor:
        """See `Attend`."""
        assert only is None, "every token of a chain step is needed"
        rows = self._rows
        if layer not in self._pieces:
            self._pieces[layer] = self._cache.read(
                layer, slots=rows.slots, slots_host=rows.known_slots, length=self._length
            )
        keys, values = self._pieces[layer]
        keys[self._row, self._index] = key[0].to(keys.dtype)
        values[self._row, self._index] = value[0].to(values.dtype)
        out = causal_slots(query[0][:, None], keys, values, index=self._index[:, None], scaling=scaling, window=window)
        return out[:, 0][None]
