"""Triton twin of `specbench.kernels.scatter`: keys and values of a step in one launch, one token a program."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench.kernels._triton.variant import Variant

_BLOCK = 2048  # elements a program moves at a time


@triton.jit(do_not_specialize_on_alignment=["slots"])
def scatter_kernel(
    key,
    value,
    keys,
    values,
    slots,
    key_token,
    key_head,
    key_dim,
    value_token,
    value_head,
    value_dim,
    k_page,
    k_slot,
    k_head,
    k_dim,
    v_page,
    v_slot,
    v_head,
    v_dim,
    HEADS: tl.constexpr,
    KEY_WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """BLOCK_H heads of one token."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    page = slot // PAGE
    inside = slot % PAGE
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    in_key = tl.arange(0, BLOCK_K)
    mask = (head < HEADS)[:, None] & (in_key < KEY_WIDTH)[None, :]
    read = token * key_token + head[:, None] * key_head + in_key[None, :] * key_dim
    write = page * k_page + inside * k_slot + head.to(tl.int64)[:, None] * k_head + in_key[None, :] * k_dim
    tl.store(keys + write, tl.load(key + read, mask=mask), mask=mask)
    in_value = tl.arange(0, BLOCK_V)
    mask = (head < HEADS)[:, None] & (in_value < VALUE_WIDTH)[None, :]
    read = token * value_token + head[:, None] * value_head + in_value[None, :] * value_dim
    write = page * v_page + inside * v_slot + head.to(tl.int64)[:, None] * v_head + in_value[None, :] * v_dim
    tl.store(values + write, tl.load(value + read, mask=mask), mask=mask)


def constants(*, heads: int, key_width: int, value_width: int, page: int) -> dict[str, int]:
    """The compile-time arguments of `scatter_kernel`."""
    k, v = triton.next_power_of_2(key_width), triton.next_power_of_2(value_width)
    return {
        "HEADS": heads,
        "KEY_WIDTH": key_width,
        "VALUE_WIDTH": value_width,
        "PAGE": page,
        "BLOCK_H": max(1, min(triton.next_power_of_2(heads), _BLOCK // max(k, v))),
        "BLOCK_K": k,
        "BLOCK_V": v,
    }


def scatter_kv(keys: Tensor, values: Tensor, *, slots: Tensor, key: Tensor, value: Tensor) -> None:
    """Twin of `specbench.kernels.scatter.scatter_kv`."""
    assert key.dtype == value.dtype == keys.dtype == values.dtype, "keys, values and pool are of one dtype"
    num_tokens, heads, key_width = key.shape
    if num_tokens == 0:
        return
    sizes = constants(heads=heads, key_width=key_width, value_width=value.shape[2], page=keys.shape[1])
    with torch.cuda.device_of(keys):
        scatter_kernel[num_tokens, triton.cdiv(heads, sizes["BLOCK_H"])](
            *(key, value, keys, values, slots),
            *key.stride(),
            *value.stride(),
            *keys.stride(),
            *values.stride(),
            **sizes,
            num_warps=4,
            enable_fp_fusion=True,
        )


def _variants() -> list[Variant]:
    """A verification step of 32 rows with seven drafts each: Qwen3-4B's heads, and DeepSeek-V3's unequal widths."""
    tokens, found = 32 * 8, []
    for heads, key_width, value_width in ((8, 128, 128), (128, 192, 128)):
        for dtype, size in (("bf16", 2), ("fp32", 4)):
            sizes = constants(heads=heads, key_width=key_width, value_width=value_width, page=16)
            moved = tokens * (2 * heads * (key_width + value_width) * size + 8 * triton.cdiv(heads, sizes["BLOCK_H"]))
            strides = [f"{t}_{s}" for t in ("key", "value") for s in ("token", "head")]
            strides += [f"{t}_{s}" for t in "kv" for s in ("page", "slot", "head")]
            pointers = ("key", "value", "keys", "values")
            found.append(
                Variant(
                    kernel=scatter_kernel,
                    dtype=dtype,
                    shape=f"{tokens} tokens, {heads} heads, widths {key_width} and {value_width}",
                    types=dict.fromkeys(pointers, f"*{dtype}") | {"slots": "*i64"} | dict.fromkeys(strides, "i32"),
                    constants={**sizes, "key_dim": 1, "value_dim": 1, "k_dim": 1, "v_dim": 1},
                    moved=moved,
                    fewest=tokens * (2 * heads * (key_width + value_width) * size + 8),
                    aligned=(*pointers, *strides),
                )
            )
    return found


VARIANTS = _variants()
