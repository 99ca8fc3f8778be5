"""Triton twins of random numbers, processing, sampling and the top two against their definitions, interpreted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support_twins import poisoned, small_tiles, with_fault
from torch import Tensor

from specbench.kernels import probs as probs_definition
from specbench.kernels import rng as rng_definition
from specbench.kernels import sample as sample_definition
from specbench.kernels import top as top_definition
from specbench.kernels._triton import probs, rng, sample, threshold, top

TYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture(autouse=True, scope="module")
def _surroundings() -> Iterator[None]:
    with poisoned(), small_tiles(probs, sample, top):
        yield


def scores(rows: int, width: int, *, seed: int = 0, levels: int | None = None) -> Tensor:
    """[rows, width] logits, a banned token among them; ``levels`` a unit: many ties."""
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * 3
    x = x if levels is None else (x * levels).round() / levels
    x[:, seed % width] = -torch.inf
    return x


# ------------------------------------------------------------------------------------------------ random numbers


def compare_uniforms(twin: ModuleType) -> None:
    generator = torch.Generator().manual_seed(0)
    seed = torch.randint(-(2**63), 2**63 - 1, (257,), generator=generator)
    number = torch.randint(0, 2**56, (257,), generator=generator)
    anchor = torch.randint(0, 2**33, (257,), generator=generator)
    for offsets, purpose, rows in ((1, 2, 1), (7, 0, 3), (3, 1, 257)):
        keys = seed[:rows], number[:rows], anchor[:rows]
        found = twin.uniform(*keys, offsets=offsets, purpose=purpose)
        assert torch.equal(found, rng_definition.uniform(*keys, offsets=offsets, purpose=purpose))


def test_draws_are_those_of_the_cpu_bit_for_bit() -> None:
    compare_uniforms(rng)
    assert rng.uniform(torch.zeros(0, dtype=torch.int64), *[torch.zeros(0)] * 2, offsets=3, purpose=0).shape == (0, 3)


# ----------------------------------------------------------------------------------------------------- top two


def compare_top(twin: ModuleType) -> None:
    for rows, width, levels in ((1, 2, None), (3, 149, 1), (2, 64, 2)):
        for dtype in TYPES:
            logits = scores(rows, width, seed=width - 1, levels=levels).to(dtype)
            for found, expected in zip(twin.top_two(logits), top_definition.top_two(logits), strict=True):
                assert torch.equal(found, expected)


def test_top_two_equals_its_definition() -> None:
    compare_top(top)
    assert top.top_two(torch.zeros(0, 9))[0].shape == (0,)


# ---------------------------------------------------------------------------------------------------- sampling


def compare_sample(twin: ModuleType) -> None:
    """Just below and just above every boundary between two tokens: the law itself, up to 1e-12."""
    for width in (7, 70):
        logits = scores(1, width, seed=width - 1)
        norm = torch.logsumexp(logits, dim=-1)
        ends = (logits.double() - norm.double()[:, None]).exp().cumsum(1)[0]
        ends = (ends / ends[-1])[torch.isfinite(logits[0])][:: 1 + width // 16]
        u = torch.cat([ends[:-1] - 1e-12, ends[:-1] + 1e-12, torch.tensor([0.0, 1 - 2.0**-53])]).clamp(min=0)
        many, norms = logits.expand(len(u), -1), norm.expand(len(u))
        assert torch.equal(twin.sample(many, norms, u), sample_definition.sample(many, norms, u))


def test_samples_change_token_where_the_definition_does() -> None:
    compare_sample(sample)


def test_rows_of_a_large_batch_are_sampled_alone() -> None:
    logits = scores(257, 19)
    norm = torch.logsumexp(logits, dim=-1)
    u = torch.rand(257, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert torch.equal(sample.sample(logits, norm, u), sample_definition.sample(logits, norm, u))
    assert sample.sample(logits[:0], norm[:0], u[:0]).shape == (0,)


# -------------------------------------------------------------------------------------------------- processing


def compare_processed(
    twin: ModuleType, logits: Tensor, *, heat: list[float], top_p: list[float], top_k: list[int], truncated: bool = True
) -> None:
    """Equal but where the sum of probabilities comes within float32 rounding of top-p: there one token may differ."""
    arguments = {
        "temperature": torch.tensor(heat),
        "top_p": torch.tensor(top_p),
        "top_k": torch.tensor(top_k),
        "any_truncated": truncated,
    }
    before = logits.clone()
    found, norm = twin.process_logits(logits, **arguments)
    expected, expected_norm = probs_definition.process_logits(logits, **arguments)
    assert torch.equal(logits, before)
    for row in range(len(heat)):
        if not torch.equal(found[row], expected[row]):
            differs = (found[row] != expected[row]).nonzero().flatten()
            p = torch.softmax(logits[row].double() / heat[row], 0)
            kept = p[torch.isfinite(expected[row])].sum()
            whole = p[p >= p.sort(descending=True).values[min(top_k[row], len(p)) - 1]].sum()
            near = min(abs(float(kept / whole) - top_p[row]), abs(float((kept - p[differs[0]]) / whole) - top_p[row]))
            assert len(differs) == 1, f"row {row}: {len(differs)} tokens differ"
            assert near < 1e-6, f"row {row}: a token differs and the sum is {near:g} from top-p"
        else:
            assert abs(float(norm[row] - expected_norm[row])) < 2e-6 * max(1, abs(float(norm[row])))


def compare_probs(twin: ModuleType) -> None:
    for dtype, seed in zip(TYPES, (3, 4, 5), strict=True):
        logits = scores(4, 101, seed=seed, levels=(None, 2, 1)[seed % 3]).to(dtype)
        compare_processed(twin, logits, heat=[1.0, 0.0, 0.7, 1.9], top_p=[1.0, 0.9, 0.8, 0.35], top_k=[5, 101, 101, 20])
    tied = torch.tensor([[0.0, 1.0, 1.0, -0.0, 1.0, 0.0, -torch.inf, 0.0]] * 3)
    compare_processed(twin, tied, heat=[1.0] * 3, top_p=[1.0, 0.75, 0.4], top_k=[5, 8, 4])


def test_processing_equals_its_definition() -> None:
    compare_probs(probs)


def test_processing_without_truncation_and_of_many_rows() -> None:
    for dtype, rows, width in ((torch.float32, 33, 5), (torch.bfloat16, 1, 129)):
        heat = [(0.0, 0.5, 1.0, 1.7)[row % 4] for row in range(rows)]
        every = {"top_p": [1.0] * rows, "top_k": [width] * rows, "truncated": False}
        compare_processed(probs, scores(rows, width).to(dtype), heat=heat, **every)
    empty, norm = probs.process_logits(
        torch.zeros(0, 9),
        temperature=torch.zeros(0),
        top_p=torch.zeros(0),
        top_k=torch.zeros(0, dtype=torch.int64),
        any_truncated=True,
    )
    assert (empty.shape, norm.shape) == ((0, 9), (0,))


@settings(max_examples=6, deadline=None)
@given(
    width=st.sampled_from([1, 5, 64, 100]),
    heat=st.sampled_from([0.31, 1.0, 2.5]),
    top_p=st.one_of(st.sampled_from([0.0, 1.0, 0.5]), st.floats(0.0625, 0.9375, width=32)),
    top_k=st.sampled_from([1, 2, 7, 100]),
    scale=st.sampled_from([0.0, 1.0, 30.0]),  # 0: all tokens tie
    seed=st.integers(0, 10**6),
)
def test_thresholds_are_found_at_any_scale(
    width: int, heat: float, top_p: float, top_k: int, scale: float, seed: int
) -> None:
    logits = torch.randn(1, width, generator=torch.Generator().manual_seed(seed)) * scale
    compare_processed(probs, logits, heat=[heat], top_p=[top_p], top_k=[min(top_k, width)])


def test_ties_at_both_thresholds() -> None:
    """k-th values that tie all stay; where top-p ends among equals the lowest indices stay."""
    logits = torch.tensor([[0.0, 1.0, 1.0, -0.0, 1.0, 0.0, -torch.inf, 0.0]])
    assert (probs.process_logits(
        logits,
        temperature=torch.ones(1),
        top_p=torch.ones(1),
        top_k=torch.tensor([5]),
        any_truncated=True,
    )[0] > -torch.inf).sum() == 7  # fmt: skip


# ---------------------------------------------------------------------------------------------- planted faults

_FIRST = "tl.min(tl.where(x == top, at, width), axis=0)"
_MASKED = 'mask=at < width, other=-float("inf")).to(tl.float64)'
_CUT = "cut(y, at, threshold, last), mask"
FAULTS = {
    "nine rounds": (rng, "static_range(10)", "static_range(9)", compare_uniforms),
    "an offset too many": (rng, "(at % OFFSETS).to", "(at % OFFSETS + 1).to", compare_uniforms),
    "the last of equals": (top, _FIRST, "tl.max(tl.where(x == top, at, 0), axis=0)", compare_top),
    "the best as runner-up": (top, "tl.where(split == holder, seconds, tops)", "tops", compare_top),
    "one place too far": (sample, "running - weights, 0.0), axis=0)", "running, 0.0), axis=0)", compare_sample),
    "a missing mask": (sample, _MASKED, "mask=at < width, other=0.0).to(tl.float64)", compare_sample),
    "the tiles before forgotten": (sample, "point - before, in_tile", "point, in_tile", compare_sample),
    "ties cut one early": (probs, "(at <= last)", "(at < last)", compare_probs),
    "temperature forgotten": (probs, _CUT, "cut(x.to(tl.float32), at, threshold, last), mask", compare_probs),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_caught(name: str, tmp_path: Path) -> None:
    module, old, new, compare = FAULTS[name]
    with pytest.raises(AssertionError):
        compare(with_fault(module, old, new, folder=tmp_path))


THRESHOLD_FAULTS = {
    "one more than k": ("tl.maximum(top_k, 1).to", "tl.maximum(top_k + 1, 1).to"),
    "ties with the last index counted wrongly": ("place == kept", "place == kept + 1"),
    "masses without the floor of top-k": ("& (y >= floor)", "& (y >= -1e30)"),
}


@pytest.mark.parametrize("name", THRESHOLD_FAULTS)
def test_planted_faults_of_the_search_are_caught(name: str, tmp_path: Path) -> None:
    broken = with_fault(threshold, *THRESHOLD_FAULTS[name], folder=tmp_path)
    twin = with_fault(probs, "Logits to a distribution", "Logits", folder=tmp_path, truncate=broken.truncate)
    with pytest.raises(AssertionError):
        compare_probs(twin)
