"""The inputs of padded steps: one place in memory for each, filled anew before every step."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.engine.sequence import Sequence
from specbench.modeling.pool import pages_for
from specbench.types import Rows

_COLUMNS = ("slots", "lengths", "last_token", "domain_id", "top_k", "seed", "number", "room")


class Mode(NamedTuple):
    """What the host knows of the rows' sampling: which parts of drafting and judging run at all (see `Rows`)."""

    all_greedy: bool
    any_truncated: bool
    any_greedy: bool

    @classmethod
    def of(cls, decode: Seq[Sequence]) -> Mode:
        """Of the rows of a step."""
        sampling = [s.request.sampling for s in decode]
        return cls(
            all(p.temperature == 0 for p in sampling),
            any(p.top_p < 1 or p.top_k is not None for p in sampling),
            any(p.temperature == 0 for p in sampling),
        )


@dataclass(frozen=True, slots=True)
class Sizes:
    """``rows`` at most, ``drafts`` a row at most, contexts of at most ``tokens``; ``features`` wide tapped states.

    ``slot`` is that of the padding: no request is ever in it.
    """

    rows: int
    slot: int
    drafts: int
    tokens: int
    features: int


class Buffers:
    """Rows beyond a step's own hold padding: no tokens, a slot of their own, the pool's first spare page.

    What comes from the host is written to pinned memory and sent from there, so that nothing waits; the copy of a
    cycle's outcome to the host comes after, so the pinned memory is free again by the next step.
    """

    def __init__(
        self, sizes: Sizes, *, vocab_size: int, num_pages: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        rows, drafts, width = sizes.rows, sizes.drafts, sizes.drafts + 1
        self.sizes = sizes
        self._pad = {"slots": sizes.slot, "top_k": vocab_size}  # the other columns are 0
        self._vocab_size, self._spare = vocab_size, num_pages
        pinned = device.type == "cuda"

        def both(*shape: int, kind: torch.dtype) -> tuple[Tensor, Tensor]:
            return torch.zeros(*shape, dtype=kind, pin_memory=pinned), torch.zeros(*shape, dtype=kind, device=device)

        self._ints, ints = both(len(_COLUMNS), rows, kind=torch.int64)
        self._reals, reals = both(2, rows, kind=torch.float32)
        self._pages, self.pages = both(rows, pages_for(sizes.tokens), kind=torch.int32)  # [R, P]
        self._sent = ((self._ints, ints), (self._reals, reals))
        self._domains: tuple[int, ...] = ()
        self._held: list[tuple[int, int] | None] = [None] * rows  # whose pages a row holds, and how many
        self.slots, self.lengths, self.last_token, self.domain_id = ints[0], ints[1], ints[2], ints[3]  # [R]
        self.top_k, self.seed, self.number, self.room = ints[4], ints[5], ints[6], ints[7]
        self.temperature, self.top_p = reals[0], reals[1]

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.int64, device=device)

        self.limits, self.planned, self.accepted, self.next_token = zeros(rows), zeros(rows), zeros(rows), zeros(rows)
        self.drafts = zeros(rows, max(drafts, 1))  # [R, G]
        self.hidden = torch.zeros(rows * width, sizes.features, dtype=dtype, device=device)  # [R * W, D]
        self._clear(0)
        self._pages.fill_(self._spare)
        self._send(pages=True)

    def _clear(self, first: int) -> None:
        self._ints[:, first:] = 0
        for name, value in self._pad.items():
            self._ints[_COLUMNS.index(name), first:] = value
        self._reals[:, first:] = 1.0

    def _send(self, *, pages: bool) -> None:
        for host, device in self._sent:
            device.copy_(host, non_blocking=True)
        if pages:
            self.pages.copy_(self._pages, non_blocking=True)

    def fill(self, decode: Seq[Sequence], *, room: Seq[int], domains: dict[str, int]) -> None:
        """Send the decode rows of a step; ``room`` is how many drafts each may take."""
        count = len(decode)
        sampling = [s.request.sampling for s in decode]
        self._domains = tuple(domains.setdefault(s.request.domain, len(domains)) for s in decode)
        columns = [
            [s.slot for s in decode],
            [s.computed for s in decode],
            [s.output[-1] for s in decode],
            self._domains,
            [self._vocab_size if p.top_k is None else p.top_k for p in sampling],
            [s.request.seed for s in decode],
            [s.request.number for s in decode],
            room,
        ]
        self._clear(count)
        self._ints[:, :count] = torch.tensor(columns, dtype=torch.int64)
        self._reals[0, :count] = torch.tensor([p.temperature for p in sampling], dtype=torch.float32)
        self._reals[1, :count] = torch.tensor([p.top_p for p in sampling], dtype=torch.float32)
        self._send(pages=self._fill_pages(decode))

    def _fill_pages(self, decode: Seq[Sequence]) -> bool:
        """Write the pages of rows whose pages are others than before; whether there was one."""
        changed = False
        for row in range(self.sizes.rows):
            sequence = decode[row] if row < len(decode) else None
            held = None if sequence is None else (sequence.admission, len(sequence.pages))
            if held == self._held[row]:
                continue
            self._held[row], changed = held, True
            line = self._pages[row]
            if sequence is None:
                line.fill_(self._spare)
            else:
                line.zero_()
                line[: len(sequence.pages)] = torch.tensor(sequence.pages, dtype=torch.int32)
        return changed

    def put(self, name: str, values: Tensor | int, *, count: int) -> None:
        """Set the first ``count`` rows of the [R] buffer ``name``, and those of the padding to 0."""
        buffer: Tensor = getattr(self, name)
        buffer[:count] = values
        buffer[count:] = 0

    def rows(self, decode: Seq[Sequence]) -> Rows:
        """The decode rows of the step that was sent last, as views."""
        held = tuple(s.slot for s in decode if s.slot is not None)
        rows = self._rows(held, tuple(s.computed for s in decode), Mode.of(decode), drafts=None)
        return replace(rows, numbers_host=tuple(s.request.number for s in decode), domains_host=self._domains)

    def padded_rows(self, size: int, *, longest: int, mode: Mode) -> Rows:
        """The first ``size`` rows, padding included; of their lengths the host says that ``longest`` is the most."""
        return self._rows((self.sizes.slot,) * size, (longest,) * size, mode, drafts=self.sizes.drafts)

    def _rows(self, slots: tuple[int, ...], lengths: tuple[int, ...], mode: Mode, *, drafts: int | None) -> Rows:
        count = len(slots)
        return Rows(
            slots=self.slots[:count],
            lengths=self.lengths[:count],
            last_token=self.last_token[:count],
            domain_id=self.domain_id[:count],
            temperature=self.temperature[:count],
            top_p=self.top_p[:count],
            top_k=self.top_k[:count],
            seed=self.seed[:count],
            number=self.number[:count],
            slots_host=slots,
            lengths_host=lengths,
            all_greedy=mode.all_greedy,
            any_truncated=mode.any_truncated,
            any_greedy=mode.any_greedy,
            drafts=drafts,
        )
