"""The sequential head's step: the operation on a CPU, and its Triton twin against it, interpreted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from support_drafting import make_rows
from support_twins import poisoned, small_tiles, with_fault
from torch import nn

from specbench.kernels import markov as definition
from specbench.kernels._triton import markov, probs
from specbench.kernels._triton.sample import sample
from specbench.types import DraftLogits, Rows

HALF = (torch.bfloat16, torch.float16)


@pytest.fixture(autouse=True, scope="module")
def _surroundings() -> Iterator[None]:
    with poisoned(), small_tiles(markov, probs):
        yield


def rows_of(count: int, heat: list[float], *, top_p: float = 1.0) -> Rows:
    """``count`` rows whose temperatures go around ``heat``."""
    every = [heat[row % len(heat)] for row in range(count)]
    return make_rows(list(range(count)), [3] * count, [1] * count, temperature=every, top_p=top_p)


def step(
    module: ModuleType,
    rows: Rows,
    *,
    width: int,
    rank: int = 20,
    dtype: torch.dtype = torch.float32,
    sampled: bool = True,
    indexed: bool = True,
    mapped: bool = False,
    named: int | None = None,
) -> tuple[torch.Tensor, DraftLogits | None]:
    """The second of three positions, with inputs that follow from the shape alone."""
    generator = torch.Generator().manual_seed(width)
    batch = len(rows)
    base = (torch.randn(batch, 3, width, generator=generator) * 2).to(dtype)
    table = torch.randn(50 if indexed else batch, rank, generator=generator).to(dtype)
    product = nn.Linear(rank, width, bias=False).requires_grad_(False)
    product.weight.copy_(torch.randn(width, rank, generator=generator) / 4)
    product.to(dtype)
    id_map = torch.arange(width) * 2 + 1 if mapped else None
    kept = definition.kept_for(base, id_map=id_map, width=named) if sampled else None
    index = torch.randint(0, 50, (batch,), generator=generator)
    tokens = module.markov_step(
        base[:, 1],
        table=table,
        index=index if indexed else None,
        product=product,
        rows=rows,
        uniforms=torch.rand(batch, 3, generator=generator, dtype=torch.float64)[:, 1] if sampled else None,
        id_map=id_map,
        width=named,
        kept=kept,
        position=1,
    )
    return tokens, kept


def compare(module: ModuleType, rows: Rows, **case: object) -> None:
    """Tokens alike, distributions to rounding; the other positions' room is left alone."""
    found, kept = step(module, rows, **case)  # type: ignore[arg-type]
    expected, reference = step(definition, rows, **case)  # type: ignore[arg-type]
    assert torch.equal(found, expected)
    assert (kept is None) == (reference is None)
    if kept is None or reference is None:
        return
    half = case.get("dtype") in HALF  # sums of products in another order may be rounded to the next half number
    close = {"atol": 0.05, "rtol": 0.02} if half else {"atol": 1e-4, "rtol": 1e-5}
    assert torch.equal(kept.logits[:, 1].isfinite(), reference.logits[:, 1].isfinite())
    torch.testing.assert_close(kept.logits[:, 1], reference.logits[:, 1], **close)
    torch.testing.assert_close(kept.log_normaliser[:, 1], reference.log_normaliser[:, 1], **close)
    for position in (0, 2):
        assert bool(kept.logits[:, position].isnan().all())
        assert bool(kept.log_normaliser[:, position].isnan().all())


CASES = {
    "sampled and greedy rows": (5, [1.0, 0.0, 0.6], {"width": 101}),
    "one row": (1, [0.8], {"width": 7, "rank": 3}),
    "257 rows": (257, [0.0], {"width": 9, "rank": 16, "sampled": False}),
    "argmax alone": (3, [0.0], {"width": 70, "sampled": False, "mapped": True}),
    "a map, and ids without names": (4, [1.0, 0.0], {"width": 70, "mapped": True, "named": 45}),
    "rows given in order": (3, [1.0], {"width": 33, "indexed": False}),
    "no rows": (0, [1.0], {"width": 33, "sampled": False}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_step_equals_its_definition(name: str) -> None:
    count, heat, case = CASES[name]
    compare(markov, rows_of(count, heat), **case)


def test_a_step_with_truncation() -> None:
    compare(markov, rows_of(3, [1.0, 0.7, 0.0], top_p=0.8), width=37)


@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_is_rounded_as_the_definition_does(dtype: torch.dtype) -> None:
    compare(markov, rows_of(3, [1.0, 0.0, 0.5]), width=70, dtype=dtype)


def test_the_draw_is_that_of_the_sampler_on_what_is_kept() -> None:
    """The verifier judges the distribution that is kept, so the token must be a draw from exactly that one."""
    rows = rows_of(4, [1.0, 0.5])
    found, kept = step(markov, rows, width=101)
    assert kept is not None
    generator = torch.Generator().manual_seed(101)
    _skip_inputs(generator, 4, 101, 20)
    uniforms = torch.rand(4, 3, generator=generator, dtype=torch.float64)
    assert torch.equal(found, sample(kept.logits[:, 1], kept.log_normaliser[:, 1], uniforms[:, 1]))


def _skip_inputs(generator: torch.Generator, batch: int, width: int, rank: int) -> None:
    """Bring the generator to where `step` draws its uniforms."""
    for shape in ((batch, 3, width), (50, rank), (width, rank)):
        torch.randn(*shape, generator=generator)
    torch.randint(0, 50, (batch,), generator=generator)


_ROOM = "out = tops if kept is None else kept.logits[:, position]"
_LOOP = "for start in range(0, RANK, BLOCK_K)"
_BEYOND = 'x = tl.where(named[None, :], x, -float("inf"))'
_GREEDY = "token = tl.where(greedy, token, tile * TILE + place)"
# A fault may change what is read and written, but never address memory that is not the tensors'.
FAULTS = {
    "rank cut short": (_LOOP, _LOOP.replace("RANK,", "RANK - BLOCK_K,")),
    "one row of W1 for all": ("index_ptr + m, mask=real", "index_ptr + m * 0, mask=real"),
    "tokens beyond the row": (_BEYOND, "x = x + 0.0"),
    "tiles in units of their own": ("tops.to(tl.float64) - shift", "tops.to(tl.float64) - tops.to(tl.float64)"),
    "greedy rows sampled": (_GREEDY, "token = tile * TILE + place + tl.where(greedy, 1, 0)"),
    "the next position's room": (_ROOM, _ROOM.replace("position]", "position + 1]")),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_caught(name: str, tmp_path: Path) -> None:
    broken = with_fault(markov, *FAULTS[name], folder=tmp_path)
    with pytest.raises(AssertionError):
        compare(broken, rows_of(5, [1.0, 0.0, 0.6]), width=70)
