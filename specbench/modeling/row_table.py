"""The rows of a flat batch as a few small integer tables on the device: all that a paged attention kernel reads."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from specbench.modeling.pool import pages_for

# Query tokens a tile, the heads that share a key head come on top. Few sizes: each is a kernel of its own to compile.
_TILES = (1, 8, 16, 64)


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


@dataclass(slots=True)
class RowTable:
    """R rows, of which those with count 0 are padding. One table serves every layer of a step."""

    starts: Tensor  # [R] int32, first flat index of each row
    counts: Tensor  # [R] int32, query tokens of each row
    lengths: Tensor  # [R] int32, tokens in the cache after this step's are written
    tiles: Tensor  # [N, 2] int32, the row and first query token (within the row) of every tile; beyond the count: empty
    pages: Tensor  # [R, P] int32
    tile: int  # query tokens a tile
    longest: int  # no length is above it: decides over how many programs keys are split
    kept: dict[tuple[int, ...], Tensor] = field(default_factory=dict)  # partial results, layer after layer

    @classmethod
    def build(cls, rows: Sequence[Span], device: torch.device) -> RowTable:
        """The table of ``rows``, known on the host, in one copy."""
        longest = max((row.length for row in rows), default=0)
        tile = _tile(max((row.count for row in rows), default=1))
        columns = [[getattr(row, name) for row in rows] for name in ("start", "count", "length")]
        tiles = [(b, first) for b, row in enumerate(rows) for first in range(0, row.count, tile)]
        pages = np.zeros((len(rows), pages_for(longest)), dtype=np.int32)
        for line, row in zip(pages, rows, strict=True):
            held = pages_for(row.length)
            line[:held] = array("i", row.pages[:held])
        parts = [np.array(part, dtype=np.int32).ravel() for part in (columns, tiles, pages)]
        host = torch.from_numpy(np.concatenate(parts))
        # From pinned memory: from other memory the host would wait for the device first.
        packed = (host.pin_memory() if device.type == "cuda" else host).to(device, non_blocking=True)
        table, flat_tiles, flat_pages = torch.split(packed, [part.size for part in parts])
        starts, counts, lengths = table.view(3, len(rows)).unbind()
        return cls(
            starts=starts,
            counts=counts,
            lengths=lengths,
            tiles=flat_tiles.view(len(tiles), 2),
            pages=flat_pages.view(pages.shape),
            tile=tile,
            longest=longest,
        )

    @classmethod
    def padded(
        cls, *, starts: Tensor, counts: Tensor, lengths: Tensor, pages: Tensor, widest: int, longest: int
    ) -> RowTable:
        """The table of rows that only the device knows; its shape depends on ``widest``, ``longest`` and R alone.

        Args:
            starts, counts, lengths: [R] integers, counts at most ``widest`` and lengths at most ``longest``.
            pages: [R, P] integers.
        """
        tile = _tile(widest)
        each = -(-widest // tile)
        index = torch.arange(starts.shape[0] * each, dtype=torch.int32, device=starts.device)
        return cls(
            starts=starts.to(torch.int32),
            counts=counts.to(torch.int32),
            lengths=lengths.to(torch.int32),
            tiles=torch.stack([index // each, index % each * tile], dim=1),
            pages=pages.to(torch.int32),
            tile=tile,
            longest=longest,
        )


def _tile(count: int) -> int:
    """Query tokens a tile where no row has more than ``count``."""
    return next((tile for tile in _TILES if count <= tile), _TILES[-1])
