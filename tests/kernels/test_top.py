from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.kernels.top import top_two


@settings(max_examples=80, deadline=None)
@given(
    rows=st.integers(0, 5),
    width=st.sampled_from([2, 90, 255, 256, 257, 512, 1000]),
    levels=st.sampled_from([2, 5, 10**6]),  # few levels: ties inside blocks, across them and in the ragged end
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 999),
)
def test_first_argmax_and_gap_to_the_runner_up(
    rows: int, width: int, levels: int, dtype: torch.dtype, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randint(levels, (rows, width), generator=generator) - levels // 2).to(dtype)
    logits[:, seed % width] = -torch.inf  # a banned token
    before = logits.clone()
    best, gap = top_two(logits)
    assert torch.equal(logits, before)
    for row in range(rows):
        values = logits[row].tolist()
        assert int(best[row]) == max(range(width), key=lambda i: values[i])
        first, second = sorted(values, reverse=True)[:2]
        assert float(gap[row]) == pytest.approx(first - second)


def test_runner_up_in_the_same_block_in_another_and_nowhere() -> None:
    logits = torch.full((3, 600), -torch.inf)
    logits[0, [5, 9]] = torch.tensor([3.0, 1.0])
    logits[1, [599, 9]] = torch.tensor([3.0, 2.5])
    logits[2, 512] = 0.0
    best, gap = top_two(logits)
    assert best.tolist() == [5, 599, 512]
    assert gap.tolist() == [2.0, 0.5, float("inf")]
