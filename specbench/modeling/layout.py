"""Which tokens of a flat batch attend to which pages: computed once a step, used by every layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from specbench.kernels.dispatch import uses_triton
from specbench.modeling.pool import PAGE
from specbench.modeling.row_table import RowTable

_SPLIT = 512  # padded keys that a further group must save: about what its calls cost
_STRETCH = 1536  # padded queries times keys that another group of neighbours must save
_REACH = 64  # rows of such a group, at most
_CACHED = 2048  # padded keys of a group gathered on a CPU: what is read again at once is mostly still in its cache
_PADDED = 1.5  # keys read, padding included, over real ones: gathering costs more than reading so much in place
_LONG = 64  # rows with more query tokens than this are attended on their own: padding others to them would waste work


@dataclass(frozen=True, slots=True)
class RowSpan:
    """One row of a flat batch: its query tokens are the last ``count`` of ``length`` tokens held in ``pages``."""

    start: int  # first flat index
    count: int
    length: int  # tokens in the cache after this step's are written
    pages: Sequence[int]


@dataclass(slots=True)
class RowGroup:
    """Rows attended in one call, padded to the widest query and the longest context among them.

    ``tokens`` [b, q] are flat indices (a row's last one repeated as padding), ``valid`` the padded positions that are
    real. ``pages`` [b, P] is padded with page 0; ``kv_length`` is the longest length.
    """

    tokens: Tensor  # [b, q] int64
    positions: Tensor  # [b, q] int64
    lengths: Tensor  # [b] int64
    pages: Tensor  # [b, P] int64
    span: tuple[int, int] | None  # flat range when the rows are contiguous; without padding a view, no gather
    run: tuple[int, int] | None  # first page, and pages from row to row, when such runs hold all: a view, no gather
    kv_length: int
    valid: Tensor | None  # [n] flat indices into [b * q]; None when nothing is padding
    full: bool  # every key is visible to every query (one query at the end of the only row)
    gathered: dict[tuple[str, tuple[int, ...], torch.dtype], Tensor] = field(default_factory=dict)  # layer after layer
    _masks: dict[tuple[int | None, int, torch.dtype], Tensor] = field(default_factory=dict)

    def mask(self, *, window: int | None, heads: int, dtype: torch.dtype) -> Tensor | None:
        """Additive mask [b, 1, heads * q, kv_length], or None where all is visible.

        Key j is visible to a query at position i when i - window < j <= i; ``heads`` query heads share a key head and
        are folded into the query axis.
        """
        if self.full and (window is None or self.kv_length <= window):
            return None
        key = (window, heads, dtype)
        if key not in self._masks:
            index = torch.arange(self.kv_length, device=self.tokens.device)
            seen = index <= self.positions[..., None]  # [b, q, L]
            if window is not None:
                seen &= index > self.positions[..., None] - window
            hidden = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)
            folded = hidden[:, None].expand(-1, heads, -1, -1).flatten(1, 2)  # [b, heads * q, L]
            self._masks[key] = folded[:, None]
        return self._masks[key]


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """The attention structure of one flat batch of T tokens: the rows as groups, or as a table for kernels."""

    positions: Tensor  # [T] int64
    write_slots: Tensor  # [T] int64, page * PAGE + offset
    groups: tuple[RowGroup, ...]  # none where there is a table
    num_tokens: int
    table: RowTable | None = None  # for kernels that read it

    @classmethod
    def build(cls, rows: Sequence[RowSpan], device: torch.device) -> BatchLayout:
        """Lay out ``rows``, given in flat order without gaps."""
        positions: list[int] = []
        slots: list[int] = []
        for row in rows:
            first = row.length - row.count
            positions.extend(range(first, row.length))
            slots.extend(row.pages[p // PAGE] * PAGE + p % PAGE for p in range(first, row.length))
        host = torch.tensor([positions, slots], dtype=torch.int64)
        both = host.to(device, non_blocking=True)
        if uses_triton(both):
            return cls(both[0], both[1], (), len(positions), RowTable.build(rows, device))
        short = [r for r in rows if r.count <= _LONG]
        long = [r for r in rows if r.count > _LONG]
        groups = [_group(g, device) for g in (_split(short, device) if short else []) + [[r] for r in long]]
        return cls(both[0], both[1], tuple(groups), len(positions))


def _split(rows: list[RowSpan], device: torch.device) -> list[list[RowSpan]]:
    """Neighbours in a group where all contexts can be read in place and little is padding; else groups by length."""
    longest = max(r.length for r in rows)
    if len(rows) * longest <= _PADDED * sum(r.length for r in rows) and _run(rows, -(-longest // PAGE)) is not None:
        return _neighbours(rows) if device.type == "cpu" else [rows]
    return _by_length(rows, most=_CACHED if device.type == "cpu" else None)


def _neighbours(rows: list[RowSpan]) -> list[list[RowSpan]]:
    """Rows cut into stretches where padding the shorter ones to the widest would cost more than another group.

    The cuts with the least of padded queries times keys; a stretch stays readable in place.
    """
    if len({row.count for row in rows}) == 1:
        return [rows]
    least, start = [0.0], [0]
    for end in range(1, len(rows) + 1):
        width = length = 0
        best = (float("inf"), 0)
        for first in range(end - 1, max(end - _REACH, 0) - 1, -1):
            width, length = max(width, rows[first].count), max(length, rows[first].length)
            best = min(best, (least[first] + (end - first) * width * length + _STRETCH, first))
        least.append(best[0])
        start.append(best[1])
    groups, end = list[list[RowSpan]](), len(rows)
    while end:
        groups.append(rows[start[end] : end])
        end = start[end]
    return groups[::-1]


def _by_length(rows: list[RowSpan], *, most: int | None) -> list[list[RowSpan]]:
    """Groups of rows, split where padding the shorter contexts to the longest would cost more than another group.

    Also where they hold more than ``most`` keys, which would leave the cache between the gathering and the reading.
    """
    order = sorted(range(len(rows)), key=lambda i: rows[i].length)
    lengths = [rows[i].length for i in order]
    saved, cut = max(((i * (lengths[-1] - lengths[i - 1]), i) for i in range(1, len(rows))), default=(0, 0))
    if saved < _SPLIT:
        if most is None or len(rows) * lengths[-1] <= most or len(rows) == 1:
            return [rows]
        cut = len(rows) // 2
    return [g for part in (order[:cut], order[cut:]) for g in _by_length([rows[i] for i in sorted(part)], most=most)]


def _group(rows: Sequence[RowSpan], device: torch.device) -> RowGroup:
    width = max(r.count for r in rows)
    kv_length = max(r.length for r in rows)
    num_pages = -(-kv_length // PAGE)
    offsets = [[min(i, r.count - 1) for i in range(width)] for r in rows]
    tokens = [[r.start + i for i in o] for r, o in zip(rows, offsets, strict=True)]
    positions = [[r.length - r.count + i for i in o] for r, o in zip(rows, offsets, strict=True)]
    pages = [[*r.pages[:num_pages], *[0] * (num_pages - len(r.pages))] for r in rows]
    padded = any(r.count < width for r in rows)
    valid = [b * width + i for b, r in enumerate(rows) for i in range(r.count)] if padded else None
    adjacent = all(a.start + a.count == b.start for a, b in pairwise(rows))
    only = rows[0] if len(rows) == 1 else None
    return RowGroup(
        tokens=torch.tensor(tokens, dtype=torch.int64).to(device, non_blocking=True),
        positions=torch.tensor(positions, dtype=torch.int64).to(device, non_blocking=True),
        lengths=torch.tensor([r.length for r in rows], dtype=torch.int64).to(device, non_blocking=True),
        pages=torch.tensor(pages, dtype=torch.int64).to(device, non_blocking=True),
        span=(rows[0].start, rows[-1].start + rows[-1].count) if adjacent else None,
        run=_run(rows, num_pages),
        kv_length=kv_length,
        valid=None if valid is None else torch.tensor(valid, dtype=torch.int64).to(device, non_blocking=True),
        full=only is not None and only.count == 1,
    )


def _run(rows: Sequence[RowSpan], num_pages: int) -> tuple[int, int] | None:
    """First page of the first row and the distance to the next row's, where every row's pages are one run."""
    first = [r.pages[0] for r in rows]
    apart = first[1] - first[0] if len(rows) > 1 else num_pages
    regular = apart >= num_pages and all(b - a == apart for a, b in pairwise(first))
    if regular and all(list(r.pages) == list(range(r.pages[0], r.pages[0] + len(r.pages))) for r in rows):
        return first[0], apart
    return None
