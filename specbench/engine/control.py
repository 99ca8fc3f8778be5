"""The control pair of the losslessness verdict at temperature 0: how much batch shape alone moves the logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.engine.target import Target
from specbench.modeling.layout import BatchLayout, RowSpan
from specbench.modeling.pool import KVPool, pages_for
from specbench.types import Taps

_KEPT = 1024  # texts whose top-2 logits are kept: a kilobyte each


@dataclass(frozen=True, slots=True)
class Control:
    """``noise_floor``: twice the largest difference; a smaller top-2 gap than this is a tie. ``positions`` compared."""

    noise_floor: float
    largest_difference: float
    positions: int


@torch.inference_mode()
def noise_floor(target: Target, sequences: Sequence[tuple[Sequence[int], Sequence[int]]], *, gamma: int) -> Control:
    """Teacher-force control texts in two shapes and compare the logits of the top-2 tokens (metrics.md).

    Shape (a) is one row, one token a step; shape (b) all rows together, gamma + 1 tokens a row and step. Shape (a) of a
    text does not depend on the arm, takes longest, and is kept with the target for the other arms and repeats.

    Args:
        sequences: (prompt ids, output ids) of plain decoding.
        gamma: drafts a round of the arm that is judged.
    """
    texts = [(list(prompt), list(prompt) + list(output)) for prompt, output in sequences if len(output) > 1]
    if not texts:
        return Control(0.0, 0.0, 0)
    target.lm.set_taps(Taps())
    single = [_alone(target, text) for text in texts]
    batched = _forced(target, texts, width=gamma + 1)
    largest, positions = 0.0, 0
    for (top, values), many in zip(single, batched, strict=True):
        largest = max(largest, float((values - many.gather(1, top)).abs().max()))
        positions += top.shape[0]
    return Control(2.0 * largest, largest, positions)


def _alone(target: Target, text: tuple[list[int], list[int]]) -> tuple[Tensor, Tensor]:
    """Ids and logits [n, 2] of the top-2 tokens, one row and one token a step."""
    key = (tuple(text[0]), tuple(text[1]))
    if key not in target.controls:
        logits = _forced(target, [text], width=1)[0]
        top = logits.topk(2, dim=-1)
        if len(target.controls) >= _KEPT:
            del target.controls[next(iter(target.controls))]
        target.controls[key] = (top.indices, top.values)
    return target.controls[key]


def _forced(target: Target, texts: list[tuple[list[int], list[int]]], *, width: int) -> list[Tensor]:
    """Logits [n, V] float32 that predict each output token but the first, fed ``width`` tokens a row and step."""
    lm = target.lm
    needed = [pages_for(len(tokens)) for _, tokens in texts]
    pool = KVPool(lm.layer_shapes, num_pages=sum(needed), dtype=lm.dtype, device=lm.device)
    pages = [pool.take(n) or [] for n in needed]
    done = [0] * len(texts)
    for row, (prompt, tokens) in enumerate(texts):
        span = RowSpan(0, len(prompt), len(prompt), pages[row])
        lm.forward(
            torch.tensor(tokens[: len(prompt)], device=lm.device),
            layout=BatchLayout.build([span], lm.device),
            pool=pool,
            logits_at=torch.tensor([len(prompt) - 1], device=lm.device),
        )
        done[row] = len(prompt)
    parts: list[list[Tensor]] = [[] for _ in texts]
    while True:
        spans: list[RowSpan] = []
        owners: list[int] = []
        flat: list[int] = []
        for row, (_, tokens) in enumerate(texts):
            count = min(width, len(tokens) - 1 - done[row])
            if count > 0:
                spans.append(RowSpan(len(flat), count, done[row] + count, pages[row]))
                owners.append(row)
                flat += tokens[done[row] : done[row] + count]
                done[row] += count
        if not spans:
            return [torch.cat(p) for p in parts]
        layout = BatchLayout.build(spans, lm.device)
        ids = torch.tensor(flat, device=lm.device)
        logits = lm.forward(ids, layout=layout, pool=pool, logits_at=None).logits.float()
        for row, span in zip(owners, spans, strict=True):
            parts[row].append(logits[span.start : span.start + span.count])
