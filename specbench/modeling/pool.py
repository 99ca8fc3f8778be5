"""The paged key-value pool: fixed memory, pages handed out and taken back on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.errors import CapacityError
from specbench.kernels.processor import has_native_bfloat16
from specbench.kernels.scatter import scatter_kv

PAGE = 16  # tokens a page


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Key and value shape of one attention layer; the two widths may differ (multi-head latent attention)."""

    num_heads: int
    key_dim: int
    value_dim: int

    def bytes_per_token(self, dtype: torch.dtype) -> int:
        """Bytes that one token's key and value take in this layer."""
        return self.num_heads * (self.key_dim + self.value_dim) * dtype.itemsize


class KVPool:
    """Keys and values of all layers in pages of `PAGE` tokens; page ids are shared by all layers.

    ``keys[i]`` is [num_pages, PAGE, heads, key_dim], ``values[i]`` likewise. The memory is taken once, at construction;
    in it each head's pages lie together, so that attention reads a context front to back.

    ``spare`` pages more follow the others and are never handed out: the padding of a padded batch is written there.
    ``devices`` places each layer's pages, where layers of a model are on several devices; None: all on ``device``.
    With ``rows`` the pages are shared out once: each of so many rows has an equal run of its own, which must hold its
    longest sequence. Contexts then lie at equal distances, and attention reads those of many rows where they are.
    """

    def __init__(
        self,
        layers: tuple[LayerShape, ...],
        *,
        num_pages: int,
        dtype: torch.dtype,
        device: torch.device,
        spare: int = 0,
        devices: Sequence[torch.device] | None = None,
        rows: int | None = None,
    ) -> None:
        self.layers = layers
        self._share = None if rows is None else num_pages // rows  # pages of each row
        self.num_pages = num_pages
        self.devices = (device,) * len(layers) if devices is None else tuple(devices)
        assert len(self.devices) == len(layers), "one device a layer"

        def taken(heads: int, width: int, at: torch.device) -> Tensor:
            return torch.zeros(heads, num_pages + spare, PAGE, width, dtype=dtype, device=at).permute(1, 2, 0, 3)

        self.keys = [taken(s.num_heads, s.key_dim, at) for s, at in zip(layers, self.devices)]
        self.values = [taken(s.num_heads, s.value_dim, at) for s, at in zip(layers, self.devices)]
        self._free = list(range(num_pages - 1, -1, -1))  # descending: pop gives ascending, so runs stay contiguous
        self._held = 0

    @property
    def num_free(self) -> int:
        """Pages that no sequence holds."""
        return len(self._free) if self._share is None else self.num_pages - self._held

    def bytes(self) -> int:
        """Bytes of all pages."""
        return sum(t.numel() * t.element_size() for t in (*self.keys, *self.values))

    def take(self, count: int, *, row: int = 0, held: int = 0) -> list[int] | None:
        """``count`` page ids for a row that holds ``held``, or None (and nothing taken) when fewer are free."""
        if self._share is not None:
            assert held + count <= self._share, "a row's share holds its longest sequence"
            self._held += count
            first = row * self._share + held
            return list(range(first, first + count))
        if count > len(self._free):
            return None
        return [self._free.pop() for _ in range(count)]

    def give_back(self, pages: list[int]) -> None:
        """Return pages. They are sorted in, so that later sequences get contiguous runs again."""
        if self._share is not None:
            self._held -= len(pages)
            assert self._held >= 0, "a page was returned twice"
        elif pages:
            self._free.extend(pages)
            self._free.sort(reverse=True)
        assert len(self._free) <= self.num_pages, "a page was returned twice"

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Store ``key`` [T, heads, key_dim] and ``value`` at flat positions ``slots`` [T] = page * PAGE + offset."""
        dtype = self.keys[layer].dtype
        scatter_kv(self.keys[layer], self.values[layer], slots=slots, key=key.to(dtype), value=value.to(dtype))


def pages_for(tokens: int) -> int:
    """Pages that hold ``tokens`` tokens."""
    return -(-tokens // PAGE)


def pool_dtype(
    layers: tuple[LayerShape, ...], *, dtype: torch.dtype, device: torch.device, tokens: int, budget_bytes: int | None
) -> torch.dtype:
    """What the pages of a model in ``dtype`` hold: float32 for bfloat16 on a processor that only emulates it.

    Attention computes in float32 there, and read in place the same values cost it no conversion a step. Only where the
    budget holds all ``tokens`` that the run can use in float32: speed must not cost rows.
    """
    if dtype != torch.bfloat16 or device.type != "cpu" or has_native_bfloat16():
        return dtype
    wide = pages_for(tokens) * PAGE * sum(shape.bytes_per_token(torch.float32) for shape in layers)
    return torch.float32 if budget_bytes is None or wide <= budget_bytes else dtype


def size_pool(
    layers: tuple[LayerShape, ...], *, dtype: torch.dtype, wanted_tokens: int, longest: int, budget_bytes: int | None
) -> int:
    """Number of pages: what the run can use at most, within the budget.

    Args:
        wanted_tokens: rows times the longest sequence: more than this is never used.
        longest: tokens of the longest single sequence, which must fit.
        budget_bytes: None for no limit.

    Errors: CapacityError when the budget does not hold one sequence.
    """
    page_bytes = PAGE * sum(s.bytes_per_token(dtype) for s in layers)
    pages = pages_for(wanted_tokens)
    if budget_bytes is not None:
        pages = min(pages, budget_bytes // page_bytes)
    if pages < pages_for(longest):
        needed = pages_for(longest) * page_bytes
        raise CapacityError(
            f"KV budget of {(budget_bytes or 0) / 2**20:.1f} MiB is too small: one sequence of {longest} tokens needs "
            f"{needed / 2**20:.1f} MiB; raise --kv-memory, shorten the run or lower --concurrency"
        )
    return pages
