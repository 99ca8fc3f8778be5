"""Acceptance over ragged rows: one kernel judges the drafts, two draw the next token; no tensor [B, G, V] is made.

The drafts are judged from single entries of the logits. The next token comes from one row of logits a request, by sums
over tiles of the vocabulary (`specbench.kernels._triton.residual`). The logits are either those that `process_logits`
gave, or raw ones with the `Cut` of their rows, which are then scaled and cut as they are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench.kernels._triton.probs import Cut, find_cuts
from specbench.kernels._triton.residual import DENSE, MAPPED, POINT, next_kernel, read, residual_kernel
from specbench.kernels._triton.sample import TILE
from specbench.kernels._triton.variant import Variant
from specbench.kernels.accept import Acceptance
from specbench.types import DraftLogits

_MIN_MASS = 1e-12  # as in the definition
_WARPS = 8


@triton.jit
def greedy_kernel(
    best_ptr, start_ptr, length_ptr, draft_ptr, draft_stride, accepted_ptr, next_ptr, DRAFTS: tl.constexpr
):
    """Leading drafts that are the target's argmax, and the argmax behind them."""
    row = tl.program_id(0)
    start = tl.load(start_ptr + row)
    length = tl.load(length_ptr + row)
    k = tl.arange(0, DRAFTS)
    inside = k < length
    best = tl.load(best_ptr + start + k, mask=inside, other=0)
    draft = tl.load(draft_ptr + row * draft_stride + k, mask=inside, other=0)
    accepted = tl.min(tl.where(inside & (best == draft), DRAFTS, k), axis=0)
    accepted = tl.minimum(accepted.to(tl.int64), length)
    tl.store(accepted_ptr + row, accepted)
    tl.store(next_ptr + row, tl.load(best_ptr + start + accepted))


@triton.jit
def _place_in_map(map_ptr, tokens, width, STEPS: tl.constexpr):
    """The first place in the increasing ``map`` [width] whose id is not below each of ``tokens``, at most the last."""
    low = tokens * 0
    high = low + width
    for _ in range(STEPS):
        middle = (low + high) // 2
        below = (tl.load(map_ptr + tl.minimum(middle, width - 1)) < tokens) & (middle < high)
        low = tl.where(below, middle + 1, low)
        high = tl.where(below, high, middle)
    return tl.minimum(low, width - 1)


@triton.jit
def judge_kernel(
    logits_ptr,
    stride,
    normaliser_ptr,
    temperature_ptr,
    threshold_ptr,
    last_ptr,
    start_ptr,
    length_ptr,
    draft_ptr,
    draft_stride,
    q_ptr,
    q_row,
    q_position,
    q_normaliser_ptr,
    q_normaliser_row,
    map_ptr,
    map_width,
    u_ptr,
    accepted_ptr,
    log_p_ptr,
    log_q_ptr,
    drafts,
    RAW: tl.constexpr,
    KIND: tl.constexpr,
    STEPS: tl.constexpr,
    DRAFTS: tl.constexpr,
):
    """The ratio test of a request's drafts, log(u) + log q < log p, and the length of the accepted prefix."""
    row = tl.program_id(0).to(tl.int64)
    length = tl.load(length_ptr + row)
    k = tl.arange(0, DRAFTS)
    real = k < drafts
    inside = real & (k < length)
    flat = tl.load(start_ptr + row) + tl.where(inside, k, 0)
    token = tl.load(draft_ptr + row * draft_stride + k, mask=inside, other=0)
    x = read(logits_ptr, flat * stride + token, inside, token, flat, temperature_ptr, threshold_ptr, last_ptr, RAW)
    log_p = x - tl.load(normaliser_ptr + flat).to(tl.float64)
    log_q = tl.zeros([DRAFTS], tl.float64)
    if KIND > 0:
        if KIND == 2:
            token = _place_in_map(map_ptr, token, map_width, STEPS)
        q = tl.load(q_ptr + row * q_row + k * q_position + token, mask=inside, other=0.0).to(tl.float64)
        log_q = q - tl.load(q_normaliser_ptr + row * q_normaliser_row + k, mask=inside, other=0.0).to(tl.float64)
    u = tl.load(u_ptr + row * drafts + k, mask=inside, other=0.5)
    ok = inside & (tl.log(u) + log_q < log_p)
    accepted = tl.minimum(tl.min(tl.where(ok, DRAFTS, k), axis=0).to(tl.int64), length)
    tl.store(accepted_ptr + row, accepted)
    out = row * drafts + k
    tl.store(log_p_ptr + out, tl.where(inside, log_p, -float("inf")).to(tl.float32), mask=real)
    tl.store(log_q_ptr + out, tl.where(inside, log_q, -float("inf")).to(tl.float32), mask=real)


def accept_greedy(best: Tensor, *, starts: Tensor, lengths: Tensor, drafts: Tensor) -> Acceptance:
    """Twin of `specbench.kernels.accept.accept_greedy`."""
    rows, width = drafts.shape
    accepted = torch.empty(rows, dtype=torch.int64, device=best.device)
    next_token = torch.empty_like(accepted)
    if rows:
        greedy_kernel[(rows,)](
            best.contiguous(),
            starts.contiguous(),
            lengths.contiguous(),
            drafts.contiguous(),
            width,
            accepted,
            next_token,
            DRAFTS=triton.next_power_of_2(max(width, 1)),
            num_warps=1,
        )
    return Acceptance(accepted, next_token)


def accept_sampled(
    logits: Tensor,
    log_normaliser: Tensor,
    *,
    starts: Tensor,
    lengths: Tensor,
    drafts: Tensor,
    draft: DraftLogits | None,
    u_accept: Tensor,
    u_next: Tensor,
) -> Acceptance:
    """Twin of `specbench.kernels.accept.accept_sampled`."""
    source = _source(logits, log_normaliser, temperature=None, found=None)
    return _accept(source, starts=starts, lengths=lengths, drafts=drafts, draft=draft, u_accept=u_accept, u_next=u_next)


def accept_logits(
    logits: Tensor,
    *,
    temperature: Tensor,
    top_p: Tensor,
    top_k: Tensor,
    any_truncated: bool,
    any_greedy: bool,
    starts: Tensor,
    lengths: Tensor,
    drafts: Tensor,
    draft: DraftLogits | None,
    u_accept: Tensor,
    u_next: Tensor,
) -> Acceptance:
    """Twin of `specbench.kernels.accept.accept_logits`: logits are scaled and cut as they are read, never written."""
    del any_greedy
    temperature = temperature.contiguous()
    found = find_cuts(logits, temperature=temperature, top_p=top_p, top_k=top_k, any_truncated=any_truncated)
    source = _source(logits, found.log_normaliser, temperature=temperature, found=found)
    return _accept(source, starts=starts, lengths=lengths, drafts=drafts, draft=draft, u_accept=u_accept, u_next=u_next)


@dataclass(frozen=True, slots=True)
class _Source:
    """Where the target's distribution is read from."""

    logits: Tensor  # [N, V]
    arguments: tuple[Any, ...]  # of the kernels, up to the cut
    raw: bool


def _source(logits: Tensor, log_normaliser: Tensor, *, temperature: Tensor | None, found: Cut | None) -> _Source:
    assert logits.stride(1) == 1 or logits.shape[1] == 1, "a row of logits is contiguous"
    log_normaliser = log_normaliser.contiguous()
    head = (logits, logits.stride(0), log_normaliser)
    if found is None:  # pointers that are not read
        return _Source(logits, (*head, log_normaliser, log_normaliser, log_normaliser), raw=False)
    return _Source(logits, (*head, temperature, found.threshold, found.last), raw=True)


def _accept(
    source: _Source,
    *,
    starts: Tensor,
    lengths: Tensor,
    drafts: Tensor,
    draft: DraftLogits | None,
    u_accept: Tensor,
    u_next: Tensor,
) -> Acceptance:
    rows, width = drafts.shape
    device = drafts.device
    accepted = torch.empty(rows, dtype=torch.int64, device=device)
    next_token = torch.empty_like(accepted)
    log_p = torch.empty(rows, width, dtype=torch.float32, device=device)
    log_q = torch.empty_like(log_p)
    if rows == 0:
        return Acceptance(accepted, next_token, log_p, log_q)
    starts, lengths, drafts = starts.contiguous(), lengths.contiguous(), drafts.contiguous()
    kind, q = _drafted(draft if width else None, like=log_p)
    own_map = draft.id_map if draft is not None and kind == MAPPED else None
    judge_kernel[(rows,)](
        *source.arguments,
        starts,
        lengths,
        drafts,
        width,
        *q,
        lengths if own_map is None else own_map,
        1 if own_map is None else own_map.shape[0],
        u_accept.contiguous(),
        accepted,
        log_p,
        log_q,
        width,
        RAW=source.raw,
        KIND=kind,
        STEPS=0 if own_map is None else own_map.shape[0].bit_length(),
        DRAFTS=triton.next_power_of_2(max(width, 1)),
        num_warps=1,
    )
    inverse = lengths if own_map is None else _inverse(own_map, source.logits.shape[1])
    q_width = draft.logits.shape[2] if draft is not None else 0
    shared = (*source.arguments, drafts, width, *q, inverse, starts, lengths, accepted)
    _draw_next(source, shared, u_next, next_token, q_width=q_width, kind=kind)
    return Acceptance(accepted, next_token, log_p, log_q)


def _draw_next(
    source: _Source, arguments: tuple[Any, ...], u_next: Tensor, next_token: Tensor, *, q_width: int, kind: int
) -> None:
    """Write the tokens [B] behind the accepted drafts; ``arguments`` of both kernels up to the sums."""
    rows, vocabulary, device = next_token.shape[0], source.logits.shape[1], next_token.device
    tiles = triton.cdiv(vocabulary, TILE)
    # Two tensors: the second half of one would be aligned or not as the batch is, and kernels compiled anew for it.
    masses = torch.empty(rows, tiles, dtype=torch.float64, device=device)
    left = torch.empty_like(masses)
    shared = (*arguments, masses, left)
    residual_kernel[rows, tiles](
        *shared, vocabulary, q_width, tiles, RAW=source.raw, KIND=kind, TILE=TILE, num_warps=_WARPS
    )
    next_kernel[(rows,)](
        *shared,
        u_next.contiguous(),
        next_token,
        vocabulary,
        q_width,
        tiles,
        RAW=source.raw,
        KIND=kind,
        MIN_MASS=_MIN_MASS,
        TILE=TILE,
        TILES=triton.next_power_of_2(tiles),
        num_warps=_WARPS,
    )


def _drafted(draft: DraftLogits | None, *, like: Tensor) -> tuple[int, tuple[Any, ...]]:
    """What kind of distribution the drafts have, and the kernels' arguments for it."""
    if draft is None:
        return POINT, (like, 0, 0, like, 0)  # pointers that are not read
    logits, normaliser = draft.logits, draft.log_normaliser
    assert logits.stride(2) == 1 or logits.shape[2] == 1, "a row of draft logits is contiguous"
    assert normaliser.stride(1) == 1 or normaliser.shape[1] == 1, "a row of normalisers is contiguous"
    arguments = (logits, logits.stride(0), logits.stride(1), normaliser, normaliser.stride(0))
    return DENSE if draft.id_map is None else MAPPED, arguments


def _inverse(id_map: Tensor, vocabulary: int) -> Tensor:
    """[V] int32: the draft id of each target id, -1 where it has none."""
    places = torch.arange(id_map.shape[0], dtype=torch.int32, device=id_map.device)
    return torch.full((vocabulary,), -1, dtype=torch.int32, device=id_map.device).index_copy_(0, id_map, places)


def _variants() -> list[Variant]:
    """128 requests with 7 drafts each."""
    rows, drafts = 128, 7
    out = [
        Variant(
            greedy_kernel,
            "i64",
            f"[{rows}, {drafts}]",
            types={"draft_stride": "i32"}
            | dict.fromkeys(("best_ptr", "start_ptr", "length_ptr", "draft_ptr", "accepted_ptr", "next_ptr"), "*i64"),
            constants={"DRAFTS": 8},
            moved=rows * (2 * drafts + 5) * 8,
            fewest=rows * (2 * drafts + 5) * 8,
            num_warps=1,
        )
    ]
    floats = (
        "normaliser_ptr",
        "temperature_ptr",
        "threshold_ptr",
        "q_ptr",
        "q_normaliser_ptr",
        "log_p_ptr",
        "log_q_ptr",
    )
    types = dict.fromkeys(floats, "*fp32") | {"last_ptr": "*i32", "u_ptr": "*fp64"}
    types |= dict.fromkeys(("start_ptr", "length_ptr", "draft_ptr", "map_ptr", "accepted_ptr"), "*i64")
    numbers = ("stride", "draft_stride", "q_row", "q_position", "q_normaliser_row", "map_width", "drafts")
    types |= dict.fromkeys(numbers, "i32")
    for dtype, size in (("bf16", 2), ("fp16", 2), ("fp32", 4)):
        for kind, name in ((POINT, "point masses"), (MAPPED, "32000 mapped ids")):
            steps = 15 if kind == MAPPED else 0
            each = 8 + size + 4 + 8 + 8 + (8 if kind else 0)  # draft, logit, normaliser, uniform, results, q's two
            out.append(
                Variant(
                    judge_kernel,
                    dtype,
                    f"[{rows}, {drafts}], {name}",
                    types={"logits_ptr": f"*{dtype}"} | types,
                    constants={"RAW": True, "KIND": kind, "STEPS": steps, "DRAFTS": 8},
                    moved=rows * (drafts * (each + 8 * steps) + 36),
                    fewest=rows * (drafts * (each + 8 * steps) + 36),
                    num_warps=1,
                )
            )
    return out


VARIANTS = _variants()
