"""What `make kernels` says of a launch: the bytes that the programs ask for, counted one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import support_twins  # noqa: F401  (kernels are interpreted)
import torch

from specbench.kernels._triton import attention_variants as variants
from specbench.kernels._triton.attention import blocks

LAYERS = {
    "shared heads": replace(variants._QWEN, tile=8),
    "several pieces": replace(variants._QWEN, tile=64),
    "window": replace(variants._GEMMA, tile=16),
    "unequal widths": replace(variants._DEEPSEEK, dtype=torch.float32),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize(("count", "length"), [(1, 1), (7, 40), (70, 5000), (5000, 5000)])
def test_keys_read_are_those_that_the_programs_load(name: str, count: int, length: int) -> None:
    layer = LAYERS[name]
    sizes, window = blocks(layer), variants._WINDOW if layer.windowed else length
    read, needed = 0, set()
    for tile in range(0, count, layer.tile):
        for piece in range(sizes.pieces):
            folded = range(piece * sizes.m, (piece + 1) * sizes.m)
            tokens = {f // layer.shared for f in folded if f // layer.shared < layer.tile}
            at = [length - count + tile + t for t in tokens if tile + t < count]
            if at:
                seen = range(max(min(at) - window + 1, 0), max(at) + 1)
                read += len(seen)
                needed.update(seen)
    batch = variants._Batch("any", layer, 3, count, length)
    assert batch.keys_read() == read
    assert batch.keys_needed() == len(needed)


def test_bytes_of_a_verification_step() -> None:
    made = variants._Batch("verify", LAYERS["shared heads"], 64, 8, 4096).attend()
    context = 64 * 8 * 4096 * (128 + 128) * 2  # rows, key heads, keys, widths, bytes
    queries = 64 * 8 * 32 * 128 * 2  # as many go in as come out
    assert made.fewest == context + 2 * queries
    assert made.moved == made.fewest + 64 * 8 * 4096 * 4  # and a page id for every key


def test_splitting_adds_partial_results() -> None:
    batch = variants._Batch("decode", replace(LAYERS["shared heads"], tile=1), 1, 1, 4096)
    assert batch.shares == 32
    written = 32 * 32 * (128 + 1) * 4  # heads, shares, a value and its weight
    whole = batch.attend()
    assert whole.moved - whole.fewest == 8 * 4096 * 4 + written - 32 * 128 * 2
    assert batch.merge().moved == written + 32 * 32 * 4 + 32 * 128 * 2  # weights are read twice
