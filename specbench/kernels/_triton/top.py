"""The most likely token of each row and the gap to the runner-up: parts of the vocabulary, then the parts."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench.kernels._triton.variant import Variant

_SPLIT = 4096
_WARPS = 8


@triton.jit
def top_two_kernel(logits_ptr, stride, top_ptr, best_ptr, second_ptr, width, splits, SPLIT: tl.constexpr):
    """Of each split: its largest entry, the first index of it, and the largest of the others."""
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    at = split * SPLIT + tl.arange(0, SPLIT)
    x = tl.load(logits_ptr + row * stride + at, mask=at < width, other=-float("inf")).to(tl.float32)
    top = tl.max(x, axis=0)
    best = tl.minimum(tl.min(tl.where(x == top, at, width), axis=0), width - 1)
    out = row * splits + split
    tl.store(top_ptr + out, top)
    tl.store(best_ptr + out, best)
    tl.store(second_ptr + out, tl.max(tl.where(at == best, -float("inf"), x), axis=0))


@triton.jit
def merge_top_two_kernel(top_ptr, best_ptr, second_ptr, token_ptr, gap_ptr, splits, SPLITS: tl.constexpr):
    """Argmax and gap of each row from its splits."""
    row = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, SPLITS)
    inside = split < splits
    tops = tl.load(top_ptr + row * splits + split, mask=inside, other=-float("inf"))
    bests = tl.load(best_ptr + row * splits + split, mask=inside, other=0)
    seconds = tl.load(second_ptr + row * splits + split, mask=inside, other=-float("inf"))
    top = tl.max(tops, axis=0)
    holder = tl.min(tl.where((tops == top) & inside, split, SPLITS), axis=0)
    others = tl.max(tl.where(split == holder, seconds, tops), axis=0)
    tl.store(token_ptr + row, tl.sum(tl.where(split == holder, bests, 0), axis=0).to(tl.int64))
    tl.store(gap_ptr + row, top - others)


def top_two(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Twin of `specbench.kernels.top.top_two`."""
    rows, width = logits.shape
    assert logits.stride(1) == 1, "a row of logits is contiguous"
    splits = triton.cdiv(width, _SPLIT)
    device = logits.device
    tops = torch.empty(rows, splits, dtype=torch.float32, device=device)
    seconds = torch.empty_like(tops)
    bests = torch.empty(rows, splits, dtype=torch.int32, device=device)
    tokens = torch.empty(rows, dtype=torch.int64, device=device)
    gaps = torch.empty(rows, dtype=torch.float32, device=device)
    if rows == 0:
        return tokens, gaps
    top_two_kernel[rows, splits](
        logits, logits.stride(0), tops, bests, seconds, width, splits, SPLIT=_SPLIT, num_warps=_WARPS
    )
    merge_top_two_kernel[(rows,)](
        tops, bests, seconds, tokens, gaps, splits, SPLITS=triton.next_power_of_2(splits), num_warps=1
    )
    return tokens, gaps


def _variants() -> list[Variant]:
    """128 rows of 8 positions over Qwen3's vocabulary."""
    rows, width = 128 * 8, 151_936
    splits = triton.cdiv(width, _SPLIT)
    parts = {"top_ptr": "*fp32", "best_ptr": "*i32", "second_ptr": "*fp32", "splits": "i32"}
    out = []
    for dtype, size in (("bf16", 2), ("fp16", 2), ("fp32", 4)):
        moved = rows * width * size + rows * splits * 12
        out.append(
            Variant(
                top_two_kernel,
                dtype,
                f"[{rows}, {width}]",
                types={"logits_ptr": f"*{dtype}", "stride": "i32", "width": "i32"} | parts,
                constants={"SPLIT": _SPLIT},
                moved=moved,
                fewest=moved,
                aligned=("logits_ptr", "stride", "width"),
                num_warps=_WARPS,
            )
        )
    moved = rows * (splits * 12 + 12)
    out.append(
        Variant(
            merge_top_two_kernel,
            "fp32",
            f"[{rows}] from {splits} splits",
            types={"token_ptr": "*i64", "gap_ptr": "*fp32"} | parts,
            constants={"SPLITS": triton.next_power_of_2(splits)},
            moved=moved,
            fewest=moved,
            num_warps=1,
        )
    )
    return out


VARIANTS = _variants()
