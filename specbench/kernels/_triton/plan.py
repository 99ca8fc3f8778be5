"""Verification planning in five small launches: survival, curve look-up, ranking, capacity, admission.

Ranks are counted instead of sorted: a candidate's place is the number of candidates before it, so all places are found
at once and ties fall as in a stable sort. Survivals are multiplied position by position, bit for bit as the definition
does. Expected tokens are summed as whole numbers of 2^-48: such a sum is the same in any order, so candidates of equal
score tie exactly, and one of score 0 adds nothing. Two capacities whose throughputs differ by less than about 2^-48
relatively may be told apart otherwise than by the definition.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench.kernels._triton.variant import Variant
from specbench.kernels.plan import Choice, Ranking

_OWN, _OTHERS = 32, 64  # candidates that a program ranks, and that it compares them with at a time
_BLOCK = 1024
_BITS = 48  # of a fraction of a token: room for 8192 candidates, and one compiled kernel for all batches


@triton.jit(do_not_specialize=["rows"])
def survival_kernel(confidence_ptr, stride, count_ptr, out_ptr, rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """The running product of each row's confidences, 0 from its count on."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = row < rows
    count = tl.load(count_ptr + row, mask=real, other=0)
    product = tl.full([BLOCK], 1.0, tl.float64)
    for k in range(WIDTH):
        x = tl.load(confidence_ptr + row * stride + k, mask=real, other=0.0).to(tl.float64)
        x = tl.where(x != x, 0.0, tl.minimum(tl.maximum(x, 0.0), 1.0))
        product = tl.where(k < count, product * x, 0.0)
        tl.store(out_ptr + row * WIDTH + k, product, mask=real)


@triton.jit
def _key(score_ptr, count_ptr, at, total, WIDTH: tl.constexpr, COUNTED: tl.constexpr):
    """What candidates at ``at`` are ranked by, smallest first, and whether they were drafted; NaN beyond ``total``."""
    real = at < total
    score = tl.load(score_ptr + at, mask=real, other=float("nan")).to(tl.float64)
    inside = real
    if COUNTED:
        inside = real & (at % WIDTH < tl.load(count_ptr + at // WIDTH, mask=real, other=0))
    return tl.where(real, tl.where(inside, -score, float("inf")), score), inside


@triton.jit(do_not_specialize=["total"])
def rank_kernel(
    score_ptr,
    count_ptr,
    ordered_ptr,
    place_ptr,
    inside_ptr,
    row_ptr,
    total,
    WIDTH: tl.constexpr,
    COUNTED: tl.constexpr,
    OWN: tl.constexpr,
    OTHERS: tl.constexpr,
):
    """The place of each candidate by falling score; COUNTED: all that `Ranking` holds, else the ordered scores."""
    own = tl.program_id(0) * OWN + tl.arange(0, OWN)
    key, inside = _key(score_ptr, count_ptr, own, total, WIDTH, COUNTED)
    place = tl.zeros([OWN], tl.int32)
    for start in range(0, total, OTHERS):
        other = start + tl.arange(0, OTHERS)
        against, _ = _key(score_ptr, count_ptr, other, total, WIDTH, COUNTED)
        before = against[None, :] < key[:, None]
        before = before | ((against[None, :] == key[:, None]) & (other[None, :] < own[:, None]))
        place += tl.sum(before.to(tl.int32), axis=1)
    real = own < total
    tl.store(ordered_ptr + place, tl.where(inside, -key, 0.0), mask=real)
    if COUNTED:
        tl.store(place_ptr + own, place.to(tl.int64), mask=real)
        tl.store(inside_ptr + own, inside, mask=real)
        tl.store(row_ptr + place, (own // WIDTH).to(tl.int64), mask=real)


@triton.jit(do_not_specialize=["rows", "total"])
def capacity_kernel(
    ordered_ptr, rate_ptr, admitted_ptr, theta_ptr, rows, total, BITS: tl.constexpr, BLOCK: tl.constexpr
):
    """The first number of candidates with the highest (rows + their scores) * rate, and that throughput."""
    unit = tl.full([], 1 << BITS, tl.int64).to(tl.float64)
    gained = tl.zeros([], tl.int64)
    best = rows * tl.load(rate_ptr)
    admitted = tl.zeros([], tl.int64)
    for start in range(0, total, BLOCK):
        at = start + tl.arange(0, BLOCK)
        real = at < total
        score = tl.load(ordered_ptr + at, mask=real, other=0.0)
        units = (score * unit + 0.5).to(tl.int64)
        running = gained + tl.cumsum(units, axis=0)
        tokens = rows + running.to(tl.float64) / unit
        theta = tokens * tl.load(rate_ptr + 1 + at, mask=real, other=0.0)
        theta = tl.where(real, theta, -float("inf"))
        top = tl.max(theta, axis=0)
        if top > best:
            best = top
            admitted = tl.min(tl.where(theta == top, at, total), axis=0).to(tl.int64) + 1
        gained += tl.sum(units, axis=0)
    tl.store(admitted_ptr, admitted)
    tl.store(theta_ptr, best)


@triton.jit(do_not_specialize=["rows"])
def admit_kernel(
    place_ptr, inside_ptr, admitted_ptr, length_ptr, rows, width, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):
    """How many of each row's drafts are among the first ``admitted`` candidates."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    k = tl.arange(0, WIDTH)
    real = (row < rows)[:, None] & (k < width)[None, :]
    at = row[:, None] * width + k[None, :]
    place = tl.load(place_ptr + at, mask=real, other=0)
    inside = tl.load(inside_ptr + at, mask=real, other=0) != 0
    chosen = real & inside & (place < tl.load(admitted_ptr))
    tl.store(length_ptr + row, tl.sum(chosen.to(tl.int64), axis=1), mask=row < rows)


@triton.jit(do_not_specialize=["count"])
def lookup_kernel(
    token_ptr, at_ptr, value_ptr, out_ptr, count, points, STEPS: tl.constexpr, LINEAR: tl.constexpr, BLOCK: tl.constexpr
):
    """A curve's value at the measured point that is not beyond each token count, or on the line to the next one."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = i < count
    token = tl.load(token_ptr + i, mask=real, other=0)
    low = tl.zeros([BLOCK], tl.int32)
    high = low + points
    for _ in range(STEPS):
        middle = (low + high) // 2
        reached = (middle < high) & (tl.load(at_ptr + tl.minimum(middle, points - 1)) <= token)
        low = tl.where(reached, middle + 1, low)
        high = tl.where(reached, high, middle)
    left = tl.maximum(low - 1, 0)
    if LINEAR:
        left = tl.minimum(left, points - 2)
        from_at = tl.load(at_ptr + left)
        span = (tl.load(at_ptr + left + 1) - from_at).to(tl.float64)
        share = (token - from_at).to(tl.float64) / span
        share = tl.minimum(tl.maximum(share, 0.0), 1.0)
        value = tl.load(value_ptr + left)
        value = value + share * (tl.load(value_ptr + left + 1) - value)
    else:
        value = tl.load(value_ptr + left)
    tl.store(out_ptr + i, value, mask=real)


def survival(confidence: Tensor, counts: Tensor) -> Tensor:
    """Twin of `specbench.kernels.plan.survival`."""
    rows, width = confidence.shape
    assert confidence.stride(1) == 1 or width <= 1, "a row of confidences is contiguous"
    out = torch.empty(rows, width, dtype=torch.float64, device=confidence.device)
    if out.numel():
        survival_kernel[(triton.cdiv(rows, 64),)](
            confidence, confidence.stride(0), counts.contiguous(), out, rows, WIDTH=width, BLOCK=64, num_warps=2
        )
    return out


def rank(scores: Tensor, counts: Tensor) -> Ranking:
    """Twin of `specbench.kernels.plan.rank`."""
    rows, width = scores.shape
    total, device = rows * width, scores.device
    found = Ranking(
        torch.empty(total, dtype=torch.float64, device=device),
        torch.empty(rows, width, dtype=torch.int64, device=device),
        torch.empty(rows, width, dtype=torch.bool, device=device),
        torch.empty(total, dtype=torch.int64, device=device),
    )
    if total:
        rank_kernel[(triton.cdiv(total, _OWN),)](
            scores.contiguous(),
            counts.contiguous(),
            found.scores,
            found.place,
            found.inside,
            found.row,
            total,
            WIDTH=width,
            COUNTED=True,
            OWN=_OWN,
            OTHERS=_OTHERS,
        )
    return found


def best_capacity(scores: Tensor, rates: Tensor) -> Choice:
    """Twin of `specbench.kernels.plan.best_capacity`."""
    rows, width = scores.shape
    total, device = rows * width, scores.device
    ordered = torch.empty(total, dtype=torch.float64, device=device)
    choice = Choice(
        torch.empty((), dtype=torch.int64, device=device), torch.empty((), dtype=torch.float64, device=device)
    )
    if total:
        scores = scores.contiguous()
        rank_kernel[(triton.cdiv(total, _OWN),)](
            scores,
            scores,
            ordered,
            scores,
            scores,
            scores,
            total,
            WIDTH=width,
            COUNTED=False,
            OWN=_OWN,
            OTHERS=_OTHERS,
        )
    capacity_kernel[(1,)](
        ordered,
        rates.contiguous(),
        choice.admitted,
        choice.theta,
        rows,
        total,
        BITS=min(_BITS, 61 - total.bit_length()),  # scores up to 2 and one sign bit
        BLOCK=_BLOCK,
        enable_fp_fusion=False,
    )
    return choice


def admit(ranking: Ranking, admitted: Tensor) -> Tensor:
    """Twin of `specbench.kernels.plan.admit`."""
    rows, width = ranking.place.shape
    lengths = torch.empty(rows, dtype=torch.int64, device=ranking.place.device)
    if rows:
        admit_kernel[(triton.cdiv(rows, 16),)](
            ranking.place,
            ranking.inside,
            admitted,
            lengths,
            rows,
            width,
            WIDTH=triton.next_power_of_2(max(width, 1)),
            BLOCK=16,
            num_warps=1,
        )
    return lengths


def lookup(tokens: Tensor, *, at: Tensor, values: Tensor, linear: bool) -> Tensor:
    """Twin of `specbench.kernels.plan.lookup`."""
    out = torch.empty(tokens.shape, dtype=torch.float64, device=tokens.device)
    points = at.shape[0]
    if out.numel():
        lookup_kernel[(triton.cdiv(out.numel(), 256),)](
            tokens.contiguous(),
            at.contiguous(),
            values.contiguous(),
            out,
            out.numel(),
            points,
            STEPS=points.bit_length(),
            LINEAR=linear and points > 1,
            BLOCK=256,
            enable_fp_fusion=False,
        )
    return out


def _variants() -> list[Variant]:
    """256 rows with 15 drafts each, a curve of 64 points."""
    rows, width = 256, 15
    total = rows * width
    shape = f"[{rows}, {width}]"
    ranked = dict.fromkeys(("score_ptr", "ordered_ptr"), "*fp64") | dict.fromkeys(("count_ptr", "row_ptr"), "*i64")
    ranked |= {"place_ptr": "*i64", "inside_ptr": "*i1", "total": "i32"}
    own = {"WIDTH": width, "COUNTED": True, "OWN": _OWN, "OTHERS": _OTHERS}
    results = total * (8 + 8 + 1 + 8)
    out = [
        Variant(
            survival_kernel,
            "fp32",
            shape,
            types={"confidence_ptr": "*fp32", "stride": "i32", "count_ptr": "*i64", "out_ptr": "*fp64", "rows": "i32"},
            constants={"WIDTH": width, "BLOCK": 64},
            moved=total * 12 + rows * 8,
            fewest=total * 12 + rows * 8,
            num_warps=2,
        ),
        Variant(
            rank_kernel,
            "fp64",
            shape,
            types=ranked,
            constants=own,
            moved=(total // _OWN + 1) * total * 16 + results,
            fewest=total * 8 + rows * 8 + results,
        ),
        Variant(
            capacity_kernel,
            "fp64",
            shape,
            types={"ordered_ptr": "*fp64", "rate_ptr": "*fp64", "admitted_ptr": "*i64", "theta_ptr": "*fp64"}
            | {"rows": "i32", "total": "i32"},
            constants={"BITS": _BITS, "BLOCK": _BLOCK},
            moved=total * 16 + 24,
            fewest=total * 16 + 24,
        ),
        Variant(
            admit_kernel,
            "i64",
            shape,
            types={"place_ptr": "*i64", "inside_ptr": "*i1", "admitted_ptr": "*i64", "length_ptr": "*i64"}
            | {"rows": "i32", "width": "i32"},
            constants={"WIDTH": 16, "BLOCK": 16},
            moved=total * 9 + rows * 8 + rows // 16 * 8,
            fewest=total * 9 + rows * 8 + 8,
            num_warps=1,
        ),
    ]
    types = {"token_ptr": "*i64", "at_ptr": "*i64", "value_ptr": "*fp64", "out_ptr": "*fp64"}
    out.append(
        Variant(
            lookup_kernel,
            "fp64",
            f"{total + 1} counts on a curve of 64 points",
            types=types | {"count": "i32", "points": "i32"},
            constants={"STEPS": 7, "LINEAR": True, "BLOCK": 256},
            moved=(total + 1) * (16 + 7 * 8 + 32),
            fewest=(total + 1) * 16 + 64 * 16,
        )
    )
    return out


VARIANTS = _variants()
