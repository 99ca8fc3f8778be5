"""The rows of a flat batch as a few small integer tables on the device: all that a paged attention kernel reads.

One table serves every layer of a step. Its memory may be filled again for the next step, so that a captured graph finds
the new rows where it looked for the old ones: `RowTable.refill`.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from specbench.modeling.pool import pages_for

_TILE = 64  # most query tokens that one tile holds; the heads that share a key head come on top


class Span(Protocol):
    """A row of the flat batch (see modeling.layout.RowSpan)."""

    @property
    def start(self) -> int:
        """First flat index."""

    @property
    def count(self) -> int:
        """Query tokens."""

    @property
    def length(self) -> int:
        """Tokens held in ``pages``, the query's included."""

    @property
    def pages(self) -> Sequence[int]:
        """Page ids."""


@dataclass(frozen=True, slots=True)
class TableShape:
    """How large a table is; the same for all batches that share its memory."""

    rows: int  # R; rows beyond a batch's own have count 0
    pages: int  # P, pages of the longest row
    count: int  # most query tokens of a row
    length: int  # most tokens of a row: decides over how many programs its keys are split

    @classmethod
    def of(cls, rows: Sequence[Span]) -> TableShape:
        """The smallest that holds ``rows``."""
        length = max(row.length for row in rows)
        return cls(len(rows), pages_for(length), max(row.count for row in rows), length)


@dataclass(slots=True)
class RowTable:
    """R rows; the columns are views of ``packed``, so that one copy fills them all."""

    packed: Tensor  # int32
    starts: Tensor  # [R] int32, first flat index of each row
    counts: Tensor  # [R] int32, query tokens of each row: 0 where the row is padding
    lengths: Tensor  # [R] int32, tokens in the cache after this step's are written
    tiles: Tensor  # [N, 2] int32, the row and first query token (within the row) of every tile; beyond the count: empty
    pages: Tensor  # [R, P] int32
    tile: int  # query tokens a tile
    shape: TableShape
    padded: bool  # the batch may have tokens of no row, whose attention is 0
    host: Tensor  # what ``packed`` was copied from
    held: list[list[int]]  # the pages that ``host`` has of each row: most rows keep theirs from step to step
    kept: dict[tuple[int, ...], Tensor] = field(default_factory=dict)  # partial results, layer after layer

    @property
    def widest(self) -> int:
        """No row's count is above it; known on the host."""
        return self.shape.count

    @property
    def longest(self) -> int:
        """No row's length is above it; known on the host."""
        return self.shape.length

    @classmethod
    def build(cls, rows: Sequence[Span], device: torch.device, *, shape: TableShape | None = None) -> RowTable:
        """The table of ``rows``, given in flat order; with ``shape`` one that other batches can be filled into.

        Every row of a given shape has the tiles of its longest query: they are then the same for all batches.
        """
        size = TableShape.of(rows) if shape is None else shape
        counts = [row.count for row in rows] if shape is None else [size.count] * size.rows
        tile = _tile(size.count)
        tiles = np.array([(b, i) for b, count in enumerate(counts) for i in range(0, count, tile)], dtype=np.int32)
        end = size.rows * (3 + size.pages)
        host = torch.zeros(end + tiles.size, dtype=torch.int32)
        host[end:] = torch.from_numpy(tiles).flatten()
        held: list[list[int]] = [[] for _ in range(size.rows)]
        _fill(host, held, rows, size)
        packed = _sent(host, device)
        table = packed[: 3 * size.rows].view(3, size.rows)
        return cls(
            packed=packed,
            starts=table[0],
            counts=table[1],
            lengths=table[2],
            tiles=packed[end:].view(tiles.size // 2, 2),
            pages=packed[3 * size.rows : end].view(size.rows, size.pages),
            tile=tile,
            shape=size,
            padded=shape is not None,
            host=host,
            held=held,
        )

    def refill(self, rows: Sequence[Span]) -> None:
        """Replace the rows, in the same memory and without waiting for the device."""
        _fill(self.host, self.held, rows, self.shape)
        self.packed.copy_(_sent(self.host, self.packed.device), non_blocking=True)


def _tile(count: int) -> int:
    """Query tokens a tile where no row has more than ``count``: a power of two."""
    return min(_TILE, 1 << max(count - 1, 0).bit_length())


def _fill(host: Tensor, held: list[list[int]], rows: Sequence[Span], shape: TableShape) -> None:
    """Write the columns of ``rows`` to ``host``, and of their pages what ``held`` does not have there already."""
    assert len(rows) <= shape.rows, "more rows than the table holds"
    columns = host[: 3 * shape.rows].view(3, shape.rows).numpy()
    pages = host[3 * shape.rows : shape.rows * (3 + shape.pages)].view(shape.rows, shape.pages).numpy()
    columns[:] = 0
    for column, name in zip(columns, ("start", "count", "length"), strict=True):
        column[: len(rows)] = [getattr(row, name) for row in rows]
    for b, row in enumerate(rows):
        fits = row.count <= shape.count and row.length <= shape.length and pages_for(row.length) <= shape.pages
        assert fits, "a row outgrew the table"
        now = list(row.pages[: pages_for(row.length)])
        if now != held[b]:
            pages[b, : len(now)] = array("i", now)
            held[b] = now


def _sent(host: Tensor, device: torch.device) -> Tensor:
    """A copy on ``device``. From pinned memory: from other memory the host would wait for the device first."""
    return (host.pin_memory() if device.type == "cuda" else host.clone()).to(device, non_blocking=True)
