"""Hand-made drafters for tests: perfect with a chosen probability, always wrong, silent, or from a fixed table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from specbench.drafting.sampling import draw, join
from specbench.types import DraftLogits, Proposal, Rows, Taps


class StatelessDrafter:
    """Everything but `propose`."""

    taps = Taps()
    trained_length = 3
    max_context: int | None = None
    options: ClassVar[Mapping[str, str]] = {}

    def begin(self, rows: Rows) -> None: ...
    def prefill(self, rows: Rows, features: Any) -> None: ...
    def commit(self, rows: Rows, *, verdict: Any, features: Any) -> None: ...
    def release(self, slots: Sequence[int]) -> None: ...
    def state_bytes(self) -> int:
        return 0


class ScriptDrafter(StatelessDrafter):
    """Knows the text of every request and drafts from it; with probability 1 - a a position is made wrong.

    ``texts[number]`` is prompt + output. ``wrong_at``: offsets that are always wrong. Positions beyond the text are 3.
    """

    def __init__(
        self, texts: Mapping[int, Sequence[int]], *, a: float = 1.0, wrong_at: Sequence[int] = (), seed: int = 0
    ) -> None:
        self.texts, self.a, self.wrong_at = texts, a, set(wrong_at)
        self.generator = torch.Generator().manual_seed(seed)

    def propose(self, rows: Rows, *, limits: Tensor, rng: Any) -> Proposal:
        width = int(limits.max())
        out = torch.full((len(rows), width), 3, dtype=torch.int64)
        for b, (number, length) in enumerate(zip(rows.number.tolist(), rows.lengths_host, strict=True)):
            text = self.texts[number]
            for k in range(width):
                at = length + 1 + k
                token = text[at] if at < len(text) else 3
                wrong = k in self.wrong_at or float(torch.rand((), generator=self.generator)) >= self.a
                out[b, k] = (token + 1) % 90 + 3 if wrong else token
        return Proposal(out, limits)


class SilentDrafter(StatelessDrafter):
    """Proposes nothing although it may."""

    def propose(self, rows: Rows, *, limits: Tensor, rng: Any) -> Proposal:
        return Proposal(limits.new_zeros(len(rows), 0), torch.zeros_like(limits))


class TableDrafter(StatelessDrafter):
    """Draft logits looked up by the previous token: table [V, Vd]; sampled like any drafter's."""

    def __init__(self, table: Tensor, *, id_map: Tensor | None = None, greedy: bool = False) -> None:
        self.table, self.id_map, self.greedy = table, id_map, greedy

    def propose(self, rows: Rows, *, limits: Tensor, rng: Any) -> Proposal:
        width = int(limits.max())
        uniforms = rng.draft(rows, width)
        previous = rows.last_token
        parts: list[tuple[Tensor, DraftLogits | None]] = []
        for k in range(width):
            part = draw(
                self.table[previous][:, None],
                rows,
                uniforms=uniforms[:, k : k + 1],
                id_map=self.id_map,
                greedy=self.greedy,
            )
            parts.append(part)
            previous = part[0][:, 0]
        tokens, draft = join(parts)
        return Proposal(tokens, limits, draft)
