"""Per-row drafter state that lives in tensors indexed by slot: keys and values by position, and plain vectors.

A slot belongs to one request at a time. Reads are bounded by the committed length of the row, so whatever a
``propose`` wrote beyond it, or an earlier request left behind, is never seen.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_FIRST_LENGTH = 256  # positions allocated at first; doubled until the longest sequence fits


class SlotCache:
    """Keys and values of the draft layers: per layer [slots, capacity, heads, dim], indexed by slot and position.

    ``max_length`` bounds the capacity: `TargetView.max_context` plus the scratch positions that one propose may write
    beyond it. Memory is zero when new, because a masked key still multiplies its value by an exact zero.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        max_slots: int,
        max_length: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.max_slots = max_slots
        self.max_length = max_length
        self._keys = [self._empty(0, 0, num_heads, key_dim, dtype, device) for _ in range(num_layers)]
        width = key_dim if value_dim is None else value_dim
        self._values = [self._empty(0, 0, num_heads, width, dtype, device) for _ in range(num_layers)]

    @staticmethod
    def _empty(slots: int, length: int, heads: int, dim: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.zeros(slots, length, heads, dim, dtype=dtype, device=device)

    @property
    def num_layers(self) -> int:
        """Layers that the cache holds."""
        return len(self._keys)

    def reserve(self, *, slots: Sequence[int], length: int) -> None:
        """Make room for positions below ``length`` in all of ``slots`` (host values); keeps what is there."""
        assert length <= self.max_length, f"{length} positions asked of a cache bounded to {self.max_length}"
        assert not slots or max(slots) < self.max_slots, "slot beyond the view's max_rows"
        have_slots, have_length = self._keys[0].shape[:2]
        want_slots = max(have_slots, max(slots, default=-1) + 1)
        if want_slots == have_slots and length <= have_length:
            return
        if want_slots > have_slots:  # rows arrive one by one: double, so that they do not copy the cache every time
            want_slots = min(self.max_slots, max(want_slots, 2 * have_slots))
        want_length = have_length
        if length > have_length:
            want_length = min(self.max_length, max(length, 2 * have_length, _FIRST_LENGTH))
        for tensors in (self._keys, self._values):
            for layer, old in enumerate(tensors):
                new = self._empty(want_slots, want_length, old.shape[2], old.shape[3], old.dtype, old.device)
                new[:have_slots, :have_length] = old
                tensors[layer] = new

    def write(self, layer: int, *, slots: Tensor, positions: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store flat tokens: ``slots`` and ``positions`` [T] (any equal shape), ``keys``/``values`` [T, heads, dim]."""
        self._keys[layer][slots, positions] = keys.to(self._keys[layer].dtype)
        self._values[layer][slots, positions] = values.to(self._values[layer].dtype)

    def read(
        self, layer: int, *, slots: Tensor, slots_host: Sequence[int] | None, length: int
    ) -> tuple[Tensor, Tensor]:
        """Keys and values [B, length, heads, dim] of the rows in ``slots``; a view where the slots are consecutive.

        ``slots_host`` None: only the device knows them.
        """
        keys, values = self._keys[layer], self._values[layer]
        if slots_host is not None:
            first, count = slots_host[0], len(slots_host)
            if tuple(slots_host) == tuple(range(first, first + count)):
                return keys[first : first + count, :length], values[first : first + count, :length]
        return keys[:, :length].index_select(0, slots), values[:, :length].index_select(0, slots)

    def bytes(self) -> int:
        """Bytes allocated now."""
        return sum(t.numel() * t.element_size() for t in (*self._keys, *self._values))

    def growth_bytes(self) -> int:
        """Bytes that are not allocated yet, but will be when every slot holds a longest sequence."""
        whole = sum(t.shape[2] * t.shape[3] * t.element_size() for t in (*self._keys, *self._values))
        return whole * self.max_slots * self.max_length - self.bytes()


class SlotState:
    """One tensor of fixed shape a slot: [slots, *shape], for example the hidden state that a drafter continues from."""

    def __init__(self, *shape: int, max_slots: int, dtype: torch.dtype, device: torch.device) -> None:
        self._data = torch.zeros(max_slots, *shape, dtype=dtype, device=device)

    def put(self, slots: Tensor, values: Tensor) -> None:
        """Store ``values`` [B, *shape] for ``slots`` [B]."""
        self._data[slots] = values.to(self._data.dtype)

    def get(self, slots: Tensor) -> Tensor:
        """[B, *shape] of ``slots`` [B]."""
        return self._data.index_select(0, slots)

    def clear(self, slots: Tensor) -> None:
        """Zero the state of ``slots`` [B]."""
        self._data.index_fill_(0, slots, 0)

    def bytes(self) -> int:
        """Bytes allocated."""
        return self._data.numel() * self._data.element_size()
