"""The launches of paged attention that `make kernels` compiles: real layers at the shapes of decoding and prefill."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import triton

from specbench.kernels._triton.attention import (
    Layer,
    attend_kernel,
    blocks,
    constants,
    merge_constants,
    merge_kernel,
    merge_warps,
    shares_for,
)
from specbench.kernels._triton.variant import Variant

_PROCESSORS = 132  # of an H200
_WINDOW = 4096  # of the layers that have one
_QWEN = Layer(heads=32, key_heads=8, key_width=128, value_width=128, tile=8, page=16, dtype=torch.bfloat16)
_DEEPSEEK = replace(_QWEN, heads=128, key_heads=128, key_width=192)
_GEMMA = replace(_QWEN, heads=16, key_width=256, value_width=256, windowed=True, capped=True)
_STRIDES = ("q_token", "q_head", "k_page", "k_slot", "k_head", "v_page", "v_slot", "v_head")


@dataclass(frozen=True, slots=True)
class _Batch:
    """``rows`` rows of ``count`` query tokens at the end of ``length`` tokens."""

    name: str
    layer: Layer
    rows: int
    count: int
    length: int

    @property
    def shares(self) -> int:
        tiles = self.rows * triton.cdiv(self.count, self.layer.tile)
        window = _WINDOW if self.layer.windowed else None
        return shares_for(self.layer, tiles=tiles, longest=self.length, window=window, processors=_PROCESSORS)

    @property
    def shape(self) -> str:
        layer = self.layer
        widths = "/".join(dict.fromkeys((str(layer.key_width), str(layer.value_width))))
        heads = f"heads {layer.heads}/{layer.key_heads} x {widths}"
        shares = f"{self.shares} shares" if self.shares > 1 else "not split"
        return f"{self.name}: {self.rows} x {self.count} of {self.length}, {heads}, {shares}"

    def keys_read(self) -> int:
        """Keys that the programs of one row and key head read, each with its value and page id."""
        layer, sizes, before, read = self.layer, blocks(self.layer), self.length - self.count, 0
        for first in range(0, self.count, layer.tile):
            for piece in range(sizes.pieces):
                low = first + piece * sizes.m // layer.shared
                high = min(first + min(((piece + 1) * sizes.m - 1) // layer.shared, layer.tile - 1), self.count - 1)
                begin = max(before + low - _WINDOW + 1, 0) if layer.windowed else 0
                read += before + high + 1 - begin if low < self.count else 0
        return read

    def keys_needed(self) -> int:
        """Keys that at least one query token of a row sees."""
        return min(self.length, _WINDOW + self.count - 1) if self.layer.windowed else self.length

    def bytes(self, *, keys: int) -> tuple[int, int]:
        """Bytes of ``keys`` keys and values a row and key head, and of all queries (whose output is as many values)."""
        layer, size = self.layer, self.layer.dtype.itemsize
        held = self.rows * layer.key_heads * keys * (layer.key_width + layer.value_width) * size
        return held, self.rows * self.count * layer.heads * layer.key_width * size

    def attend(self) -> Variant:
        layer, sizes, shares = self.layer, blocks(self.layer), self.shares
        dtype = _name(layer.dtype)
        outputs = self.rows * self.count * layer.heads * layer.value_width
        written = outputs * layer.dtype.itemsize
        if shares > 1:
            written = shares * 4 * (outputs + outputs // layer.value_width)
        held, queries = self.bytes(keys=self.keys_read())
        ids = 4 * self.rows * layer.key_heads * self.keys_read()
        least, _ = self.bytes(keys=self.keys_needed())
        pointers = ("query", "keys", "values", "out", "weights")
        tables = ("tiles", "starts", "counts", "lengths", "pages")
        return Variant(
            kernel=attend_kernel,
            dtype=dtype,
            shape=self.shape,
            types=dict.fromkeys(pointers[:3], f"*{dtype}")
            | {"out": "*fp32" if shares > 1 else f"*{dtype}", "weights": "*fp32" if shares > 1 else f"*{dtype}"}
            | dict.fromkeys(tables, "*i32")
            | dict.fromkeys((*_STRIDES, "pages_row", "window", "shares"), "i32")
            | {"scale": "fp32", "softcap": "fp32"},
            constants={**constants(layer, split=shares > 1), "q_dim": 1, "k_dim": 1, "v_dim": 1},
            moved=held + ids + queries + written,
            fewest=least + queries + outputs * layer.dtype.itemsize,
            aligned=(*pointers, *_STRIDES),
            num_warps=sizes.num_warps,
            num_stages=sizes.num_stages,
        )

    def merge(self) -> Variant:
        layer, dtype = self.layer, _name(self.layer.dtype)
        outputs = self.rows * self.count * layer.heads
        partial, weights = 4 * self.shares * outputs * layer.value_width, 4 * self.shares * outputs
        written = outputs * layer.value_width * layer.dtype.itemsize
        return Variant(
            kernel=merge_kernel,
            dtype=dtype,
            shape=self.shape,
            types={"partial": "*fp32", "weights": "*fp32", "out": f"*{dtype}", "shares": "i32"}
            | dict.fromkeys(("tiles", "starts", "counts"), "*i32"),
            constants=merge_constants(layer),
            moved=partial + 2 * weights + written,
            fewest=partial + weights + written,
            aligned=("partial", "weights", "out"),
            num_warps=merge_warps(layer),
        )


def _name(dtype: torch.dtype) -> str:
    return {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}[dtype]


def _batches() -> Iterator[_Batch]:
    for dtype in (torch.bfloat16, torch.float32):
        qwen, deepseek, gemma = (replace(layer, dtype=dtype) for layer in (_QWEN, _DEEPSEEK, _GEMMA))
        yield _Batch("verify", qwen, 64, 8, 4096)
        yield _Batch("verify", replace(qwen, tile=16), 1, 16, 4096)
        yield _Batch("decode", replace(qwen, tile=1), 1, 1, 4096)
        yield _Batch("prefill", replace(qwen, tile=64), 1, 2048, 2048)
        yield _Batch("verify", deepseek, 8, 8, 4096)
        yield _Batch("windowed", gemma, 64, 8, 8192)


def _variants() -> list[Variant]:
    batches = list(_batches())
    return [batch.attend() for batch in batches] + [batch.merge() for batch in batches if batch.shares > 1]


VARIANTS = _variants()
