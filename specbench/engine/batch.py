"""Packing: rows of a step as tensors, and all tokens that go to the target as one flat ragged batch."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from specbench.engine.scheduler import Chunk
from specbench.engine.sequence import Sequence
from specbench.modeling.layout import BatchLayout, RowSpan
from specbench.types import DraftLogits, Features, Proposal, Rows


def build_rows(
    sequences: Seq[Sequence],
    *,
    lengths: Seq[int],
    last: Seq[int],
    domains: dict[str, int],
    vocab_size: int,
    device: torch.device,
) -> Rows:
    """Tensors of the rows of a step. ``lengths`` and ``last`` are as `Rows` defines them."""
    sampling = [s.request.sampling for s in sequences]
    slots = [s.slot for s in sequences]
    assert all(s is not None for s in slots), "only running sequences become rows"
    held = tuple(s for s in slots if s is not None)
    whole = torch.tensor(
        [
            held,
            lengths,
            last,
            [domains.setdefault(s.request.domain, len(domains)) for s in sequences],
            [vocab_size if p.top_k is None else p.top_k for p in sampling],
            [s.request.seed for s in sequences],
            [s.request.number for s in sequences],
        ],
        dtype=torch.int64,
    ).to(device, non_blocking=True)
    real = torch.tensor([[p.temperature for p in sampling], [p.top_p for p in sampling]], dtype=torch.float32)
    real = real.to(device, non_blocking=True)
    return Rows(
        slots=whole[0],
        lengths=whole[1],
        last_token=whole[2],
        domain_id=whole[3],
        temperature=real[0],
        top_p=real[1],
        top_k=whole[4],
        seed=whole[5],
        number=whole[6],
        slots_host=held,
        lengths_host=tuple(lengths),
        all_greedy=all(p.temperature == 0 for p in sampling),
        any_truncated=any(p.top_p < 1 or p.top_k is not None for p in sampling),
        any_greedy=any(p.temperature == 0 for p in sampling),
        numbers_host=tuple(s.request.number for s in sequences),
        domains_host=tuple(domains[s.request.domain] for s in sequences),
    )


def only(rows: Rows, chosen: Seq[int], at: Tensor) -> Rows:
    """Some of the rows; ``at`` [b] are those ``chosen``, on the device; what holds of all or of some stays."""
    names = ("slots", "lengths", "last_token", "domain_id", "temperature", "top_p", "top_k", "seed", "number")
    held = ("slots_host", "lengths_host", "numbers_host", "domains_host")
    changed: dict[str, Any] = {name: getattr(rows, name)[at] for name in names}
    for name in held:
        values = getattr(rows, name)
        changed[name] = None if values is None else tuple(values[row] for row in chosen)
    return replace(rows, **changed)


def spread(proposal: Proposal, at: Tensor, *, rows: int) -> Proposal:
    """A proposal of the rows ``at`` as one of all ``rows``, nothing drafted for the others."""

    def placed(values: Tensor) -> Tensor:
        whole = values.new_zeros(rows, *values.shape[1:])
        whole[at] = values
        return whole

    draft, confidence = proposal.draft, proposal.confidence
    return Proposal(
        placed(proposal.tokens),
        placed(proposal.counts),
        None if draft is None else DraftLogits(placed(draft.logits), placed(draft.log_normaliser), draft.id_map),
        None if confidence is None else placed(confidence),
    )


@dataclass(frozen=True, slots=True)
class Batch:
    """One flat batch: first the decode rows (anchor, then drafts), then the prompt chunks.

    ``starts[b]`` is the first row of the logits matrix that belongs to judged row b: decode rows in order, then the
    chunks that emit a token.
    """

    token_ids: Tensor  # [T]
    layout: BatchLayout
    logits_at: Tensor | None  # [N] flat positions, None for all
    starts: Tensor  # [judged]
    row_starts: tuple[int, ...]  # flat start of every decode row and chunk, and T


def pack(
    decode: Seq[Sequence], verified: Seq[int], tokens: Tensor, prefill: Seq[Chunk], rows: Rows, device: torch.device
) -> Batch:
    """Lay the step out flat.

    Args:
        verified: drafts of each decode row that go to the target.
        tokens: [B, G] drafts.
    """
    spans: list[RowSpan] = []
    row_index: list[int] = []
    column: list[int] = []
    at = 0
    for b, (sequence, count) in enumerate(zip(decode, verified, strict=True)):
        spans.append(RowSpan(at, count + 1, sequence.computed + count + 1, sequence.pages))
        row_index += [b] * (count + 1)
        column += range(count + 1)
        at += count + 1
    starts = [s.start for s in spans]
    keep = list(range(at))
    prompt: list[int] = []
    for chunk in prefill:
        done = chunk.sequence.computed
        spans.append(RowSpan(at, chunk.count, done + chunk.count, chunk.sequence.pages))
        prompt += chunk.sequence.tokens(done, done + chunk.count)
        at += chunk.count
        if chunk.emits:
            starts.append(len(keep))
            keep.append(at - 1)
    parts = []
    if decode:
        table = torch.cat([rows.last_token[: len(decode), None], tokens], dim=1)  # [B, 1 + G]
        index = torch.tensor([row_index, column], dtype=torch.int64).to(device, non_blocking=True)
        parts.append(table[index[0], index[1]])
    if prompt:
        parts.append(torch.tensor(prompt, dtype=torch.int64).to(device, non_blocking=True))
    return Batch(
        token_ids=torch.cat(parts) if len(parts) > 1 else parts[0],
        layout=BatchLayout.build(spans, device),
        logits_at=None if not prefill else torch.tensor(keep, dtype=torch.int64).to(device, non_blocking=True),
        starts=torch.tensor(starts, dtype=torch.int64).to(device, non_blocking=True),
        row_starts=(*(s.start for s in spans), at),
    )


def features(
    batch: Batch, hidden: Tensor, *, first: int, counts: Seq[int], next_ids: Seq[int], last_chunk: Seq[bool]
) -> Features:
    """Committed tokens of ``counts[i]`` leading positions of the flat rows ``first``, ``first + 1``, ...

    ``next_ids[i]`` is the token after the last of them.
    """
    device = batch.token_ids.device
    flat: list[int] = []
    owner: list[int] = []
    bounds = [0]
    for i, count in enumerate(counts):
        start = batch.row_starts[first + i]
        flat += range(start, start + count)
        owner += [i] * count
        bounds.append(bounds[-1] + count)
    host = torch.tensor([flat, owner], dtype=torch.int64).to(device, non_blocking=True)
    whole = len(flat) == batch.token_ids.shape[0]
    token_ids = batch.token_ids if whole else batch.token_ids[host[0]]
    shifted = token_ids.roll(-1)
    ends = torch.tensor([[b - 1 for b in bounds[1:]], list(next_ids)], dtype=torch.int64).to(device, non_blocking=True)
    shifted[ends[0]] = ends[1]
    return Features(
        token_ids=token_ids,
        next_ids=shifted,
        positions=batch.layout.positions if whole else batch.layout.positions[host[0]],
        hidden=hidden if whole else hidden[host[0]],
        row_index=host[1],
        row_starts=torch.tensor(bounds, dtype=torch.int64).to(device, non_blocking=True),
        row_starts_host=tuple(bounds),
        last_chunk=torch.tensor(list(last_chunk), dtype=torch.bool).to(device, non_blocking=True),
    )
