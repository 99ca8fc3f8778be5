"""Triton twins of verification planning against their definitions, interpreted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from support_twins import poisoned, small_tiles, with_fault

from specbench.kernels import plan as definition
from specbench.kernels._triton import plan


@pytest.fixture(autouse=True, scope="module")
def _surroundings() -> Iterator[None]:
    with poisoned(), small_tiles(plan):
        yield


def compare(twin: ModuleType, *, shapes: tuple[tuple[int, int], ...] = ((9, 7), (1, 1), (3, 0))) -> None:
    """Survivals and ranks bit for bit, the same capacity, lengths that follow; ties wherever scores allow."""
    for seed, (rows, width) in enumerate(shapes):
        generator = torch.Generator().manual_seed(seed)
        confidence = torch.rand(rows, width, generator=generator)
        if rows > 1 and width > 1:
            confidence = (confidence * 4).ceil() / 4
            confidence[0, 1], confidence[-1, 0] = torch.nan, torch.inf
        counts = torch.randint(0, width + 1, (rows,), generator=generator)
        scores = definition.survival(confidence, counts)
        assert torch.equal(twin.survival(confidence, counts), scores)
        ranking, expected = twin.rank(scores, counts), definition.rank(scores, counts)
        for name in ("scores", "place", "inside", "row"):
            assert torch.equal(getattr(ranking, name), getattr(expected, name)), name
        steps = torch.arange(rows * width + 1, dtype=torch.float64)
        for rates in (100 / (1 + steps // 4 * 0.3), torch.full_like(steps, 7.0)):
            choice, best = twin.best_capacity(scores, rates), definition.best_capacity(scores, rates)
            assert int(choice.admitted) == int(best.admitted)
            assert float(choice.theta) == pytest.approx(float(best.theta), rel=1e-12)
            assert torch.equal(twin.admit(expected, best.admitted), definition.admit(expected, best.admitted))


def test_planning_equals_its_definition() -> None:
    compare(plan)


def test_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_OWN", "_OTHERS", "_BLOCK"):
        monkeypatch.setattr(plan, name, 128)
    compare(plan, shapes=((257, 1),))


def compare_lookup(twin: ModuleType) -> None:
    tokens = torch.arange(30).view(3, 10)
    for points in (1, 2, 7):
        at = torch.randint(1, 5, (points,), generator=torch.Generator().manual_seed(points)).cumsum(0)
        values = torch.rand(points, dtype=torch.float64, generator=torch.Generator().manual_seed(points))
        for linear in (False, True):
            curve = {"at": at, "values": values, "linear": linear}
            assert torch.equal(twin.lookup(tokens, **curve), definition.lookup(tokens, **curve))


def test_curves_are_read_alike() -> None:
    compare_lookup(plan)


# A fault may change what is read and written, but never address memory that is not the tensors'.
FAULTS = {
    "a draft beyond the count": ("tl.where(k < count, product * x, 0.0)", "tl.where(k <= count, product * x, 0.0)"),
    "NaN survives": ("tl.where(x != x, 0.0, tl.minimum", "tl.where(x > 2.0, 0.0, tl.minimum"),
    "ties the other way round": ("(other[None, :] < own[:, None])", "(other[None, :] > own[:, None])"),
    "the least likely first": ("tl.where(inside, -score, float", "tl.where(inside, score, float"),
    "sums forgotten between tiles": ("gained += tl.sum(units, axis=0)", "gained += 0"),
    "the last of equal capacities": ("if top > best:", "if top >= best:"),
    "one admitted too many": ("(place < tl.load(admitted_ptr))", "(place <= tl.load(admitted_ptr))"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_caught(name: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        compare(with_fault(plan, *FAULTS[name], folder=tmp_path), shapes=((9, 7),))


def test_a_curve_read_one_point_too_far_is_caught(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        compare_lookup(with_fault(plan, "tl.maximum(low - 1, 0)", "tl.maximum(low - 2, 0)", folder=tmp_path))
