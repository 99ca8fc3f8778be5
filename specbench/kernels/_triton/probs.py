"""Logits to a distribution in three passes over the vocabulary, and a few more for rows that truncate; no sort.

What temperature, top-k and top-p leave of a row is told by two numbers: a token stays when its scaled logit is above
the threshold, or equal to it and at an index up to ``last`` (`Cut`).

Where this differs from the definition: probabilities are summed in float64 and compared unrounded, where the definition
compares float32 sums. The token at which top-p is reached may be a neighbour in rank when the sum up to it is within a
float32 rounding of top-p. Ties with the k-th value all stay, and of ties where top-p ends the lowest indices, as there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench.kernels._triton.threshold import scaled, truncate
from specbench.kernels._triton.variant import Variant

_SPLIT = (
    4096  # tokens of one program of `stats_kernel` and `apply_kernel`, whatever the batch: sums do not depend on it
)
_ROWS, _COLUMNS = 512, 4  # a tile of the search: columns are summed first, within a thread
_LOWEST_BIT = {torch.bfloat16: 16, torch.float16: 13, torch.float32: 0}  # of a float32 that holds such a number
_WARPS = 8


@dataclass(frozen=True, slots=True)
class Cut:
    """What stays of each row, and the log-normaliser of that."""

    threshold: Tensor  # [N] float32
    last: Tensor  # [N] int32
    log_normaliser: Tensor  # [N] float32


@triton.jit
def stats_kernel(logits_ptr, stride, temperature_ptr, top_ptr, sum_ptr, best_ptr, width, splits, SPLIT: tl.constexpr):
    """Of each split of a row: the largest scaled logit, the sum of exp(x - largest), the first index of the largest."""
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    at = split * SPLIT + tl.arange(0, SPLIT)
    x = tl.load(logits_ptr + row * stride + at, mask=at < width, other=-float("inf"))
    x = scaled(x, tl.load(temperature_ptr + row))
    top = tl.max(x, axis=0)
    shift = tl.where(top == -float("inf"), 0.0, top)
    out = row * splits + split
    tl.store(top_ptr + out, top)
    tl.store(sum_ptr + out, tl.sum(tl.exp(x - shift), axis=0))
    tl.store(best_ptr + out, tl.minimum(tl.min(tl.where(x == top, at, width), axis=0), width - 1))


# Settings may be rows of one table, which begin where the batch says: no reason to compile again in a run.
@triton.jit(do_not_specialize_on_alignment=["temperature_ptr", "top_p_ptr", "top_k_ptr"])
def cut_kernel(
    logits_ptr,
    stride,
    temperature_ptr,
    top_p_ptr,
    top_k_ptr,
    top_ptr,
    sum_ptr,
    best_ptr,
    threshold_ptr,
    last_ptr,
    normaliser_ptr,
    width,
    splits,
    TRUNCATE: tl.constexpr,
    LOWEST: tl.constexpr,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """What stays of a row, from what `stats_kernel` found; a row that truncates is read again and again."""
    row = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, SPLITS)
    inside = split < splits
    tops = tl.load(top_ptr + row * splits + split, mask=inside, other=-float("inf"))
    sums = tl.load(sum_ptr + row * splits + split, mask=inside, other=0.0)
    bests = tl.load(best_ptr + row * splits + split, mask=inside, other=width - 1)
    temperature = tl.load(temperature_ptr + row)
    top = tl.max(tops, axis=0)
    best = tl.min(tl.where(tops == top, bests, width - 1), axis=0)
    shift = tl.where(top == -float("inf"), 0.0, top)
    mass = tl.sum(sums.to(tl.float64) * tl.exp(tops - shift).to(tl.float64), axis=0)
    threshold = -float("inf")
    last = width
    if temperature == 0.0:
        threshold = top
        last = best
        mass = tl.full([], 1.0, tl.float64)
    elif TRUNCATE:
        top_p = tl.load(top_p_ptr + row)
        top_k = tl.load(top_k_ptr + row).to(tl.int32)
        if (top_p < 1.0) | (top_k < width):
            row_ptr = logits_ptr + row * stride
            highest = tl.load(row_ptr + best)
            threshold, last, mass = truncate(
                row_ptr, width, highest, tops, top, temperature, top_p, top_k, LOWEST, ROWS, COLUMNS
            )
    tl.store(threshold_ptr + row, threshold)
    tl.store(last_ptr + row, last)
    tl.store(normaliser_ptr + row, (shift.to(tl.float64) + tl.log(mass)).to(tl.float32))


@triton.jit
def cut(y, at, threshold, last):
    """Scaled logits ``y`` at indices ``at``, -inf where the row's cut takes them away."""
    return tl.where((y > threshold) | ((y == threshold) & (at <= last)), y, -float("inf"))


@triton.jit
def apply_kernel(
    logits_ptr,
    stride,
    temperature_ptr,
    threshold_ptr,
    last_ptr,
    out_ptr,
    out_stride,
    width,
    IN_PLACE: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """Scaled logits with -inf where cut; IN_PLACE: they are scaled and rows that keep everything are left alone."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * SPLIT + tl.arange(0, SPLIT)
    threshold = tl.load(threshold_ptr + row)
    last = tl.load(last_ptr + row)
    if IN_PLACE:
        if threshold > -float("inf"):
            x = tl.load(logits_ptr + row * stride + at, mask=at < width, other=-float("inf"))
            tl.store(out_ptr + row * out_stride + at, cut(x, at, threshold, last), mask=at < width)
    else:
        x = tl.load(logits_ptr + row * stride + at, mask=at < width, other=-float("inf"))
        y = scaled(x, tl.load(temperature_ptr + row))
        tl.store(out_ptr + row * out_stride + at, cut(y, at, threshold, last), mask=at < width)


def find_cuts(logits: Tensor, *, temperature: Tensor, top_p: Tensor, top_k: Tensor, any_truncated: bool) -> Cut:
    """What `process_logits` would leave of each row of ``logits`` [N, V], without writing it."""
    rows, width = logits.shape
    assert logits.stride(1) == 1 or width == 1, "a row of logits is contiguous"
    splits = triton.cdiv(width, _SPLIT)
    device = logits.device
    tops = torch.empty(rows, splits, dtype=torch.float32, device=device)
    sums = torch.empty_like(tops)
    bests = torch.empty(rows, splits, dtype=torch.int32, device=device)
    found = Cut(
        torch.empty(rows, dtype=torch.float32, device=device),
        torch.empty(rows, dtype=torch.int32, device=device),
        torch.empty(rows, dtype=torch.float32, device=device),
    )
    if rows == 0:
        return found
    temperature = temperature.contiguous()
    stats_kernel[rows, splits](
        logits, logits.stride(0), temperature, tops, sums, bests, width, splits, SPLIT=_SPLIT, num_warps=_WARPS
    )
    cut_kernel[(rows,)](
        logits,
        logits.stride(0),
        temperature,
        top_p.contiguous(),
        top_k.contiguous(),
        tops,
        sums,
        bests,
        found.threshold,
        found.last,
        found.log_normaliser,
        width,
        splits,
        TRUNCATE=any_truncated,
        LOWEST=_LOWEST_BIT[logits.dtype],
        SPLITS=triton.next_power_of_2(splits),
        ROWS=_ROWS,
        COLUMNS=_COLUMNS,
        num_warps=_WARPS,
    )
    return found


def apply_cuts(logits: Tensor, found: Cut, *, temperature: Tensor, out: Tensor) -> None:
    """Write what stays of ``logits`` [N, V] to ``out`` [N, V] float32, -inf elsewhere.

    Where both are the same tensor it holds scaled logits already.
    """
    rows, width = logits.shape
    assert out.stride(1) == 1 or width == 1, "a row of the result is contiguous"
    if rows == 0:
        return
    apply_kernel[rows, triton.cdiv(width, _SPLIT)](
        logits,
        logits.stride(0),
        temperature.contiguous(),
        found.threshold,
        found.last,
        out,
        out.stride(0),
        width,
        IN_PLACE=out is logits,
        SPLIT=_SPLIT,
        num_warps=_WARPS,
    )


def process_logits(
    logits: Tensor,
    *,
    temperature: Tensor,
    top_p: Tensor,
    top_k: Tensor,
    any_truncated: bool,
    any_greedy: bool = True,
) -> tuple[Tensor, Tensor]:
    """Twin of `specbench.kernels.probs.process_logits`; whether a row is greedy is read on the device."""
    del any_greedy
    found = find_cuts(logits, temperature=temperature, top_p=top_p, top_k=top_k, any_truncated=any_truncated)
    out = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    apply_cuts(logits, found, temperature=temperature, out=out)
    return out, found.log_normaliser


def _variants() -> list[Variant]:
    """128 rows of 8 positions over Qwen3's vocabulary."""
    rows, width = 128 * 8, 151_936
    splits = triton.cdiv(width, _SPLIT)
    shape = f"[{rows}, {width}]"
    common = {"stride": "i32", "temperature_ptr": "*fp32", "width": "i32"}
    per_split = {"top_ptr": "*fp32", "sum_ptr": "*fp32", "best_ptr": "*i32", "splits": "i32"}
    per_row = {"threshold_ptr": "*fp32", "last_ptr": "*i32"}
    out = []
    for dtype, size, lowest in (("bf16", 2, 16), ("fp16", 2, 13), ("fp32", 4, 0)):
        logits = rows * width * size
        found = rows * splits * 12
        source = {"logits_ptr": f"*{dtype}"}
        out.append(
            Variant(
                stats_kernel,
                dtype,
                shape,
                types=source | common | per_split,
                constants={"SPLIT": _SPLIT},
                moved=logits + found,
                fewest=logits + found,
                aligned=("logits_ptr", "stride", "width"),
                num_warps=_WARPS,
            )
        )
        passes = {0: 1, 13: 1, 16: 1}[lowest] + 8 + 1 + 8 + 2  # of a row with both; intervals are narrowed fourfold
        out.append(
            Variant(
                cut_kernel,
                dtype,
                f"{shape}, every row with top-k and top-p",
                types=source
                | common
                | per_split
                | per_row
                | {"top_p_ptr": "*fp32", "top_k_ptr": "*i64", "normaliser_ptr": "*fp32"},
                constants={
                    "TRUNCATE": True,
                    "LOWEST": lowest,
                    "SPLITS": triton.next_power_of_2(splits),
                    "ROWS": _ROWS,
                    "COLUMNS": _COLUMNS,
                },
                moved=passes * logits + found,
                fewest=logits + found,
                aligned=("logits_ptr", "stride", "width"),
                num_warps=_WARPS,
            )
        )
        out.append(
            Variant(
                apply_kernel,
                dtype,
                shape,
                types=source | common | per_row | {"out_ptr": "*fp32", "out_stride": "i32"},
                constants={"SPLIT": _SPLIT, "IN_PLACE": False},
                moved=logits + rows * width * 4,
                fewest=logits + rows * width * 4,
                aligned=("logits_ptr", "stride", "width", "out_ptr", "out_stride"),
                num_warps=_WARPS,
            )
        )
    return out


VARIANTS = _variants()
