"""Muon: its update against torch's own, and which parameters it takes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from specbench.train.muon import Muon, orthogonalise
from specbench.train.optim import make_optimiser
from specbench.train.recipe import OptimiserSpec


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 0.02), (torch.bfloat16, 0.1)])
@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 40), columns=st.integers(1, 40), seed=st.integers(0, 99), size=st.floats(1e-4, 1e4))
def test_directions_are_kept_and_their_lengths_evened_out(
    dtype: torch.dtype, tolerance: float, rows: int, columns: int, seed: int, size: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    rank = min(rows, columns)
    left = torch.linalg.qr(torch.randn(rows, rank, generator=generator)).Q
    right = torch.linalg.qr(torch.randn(columns, rank, generator=generator)).Q
    lengths = torch.linspace(0.05, 1.0, rank)
    found = orthogonalise(size * left @ lengths.diag() @ right.T, dtype=dtype)
    assert found.shape == (rows, columns)
    seen = left.T @ found @ right  # diagonal: the same singular vectors
    assert seen.diagonal().min() > 0.62 - tolerance
    assert seen.diagonal().max() < 1.23 + tolerance
    assert (seen - seen.diagonal().diag()).abs().max() < tolerance
    assert float((found - left @ seen @ right.T).abs().max()) < tolerance  # and nothing beside them


def test_a_matrix_of_zeros_stays_one() -> None:
    assert not orthogonalise(torch.zeros(4, 6), dtype=torch.float32).any()


def test_updates_are_those_of_torch_within_its_rounding() -> None:
    torch.manual_seed(0)
    mine, theirs = (nn.Parameter(torch.zeros(24, 40)) for _ in range(2))
    start = torch.randn(24, 40)
    mine.data.copy_(start)
    theirs.data.copy_(start)
    ours = Muon([mine], lr=0.02, momentum=0.9, weight_decay=0.1)
    other = torch.optim.Muon([theirs], lr=0.02, momentum=0.9, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for _ in range(4):
        gradient = torch.randn(24, 40)
        mine.grad, theirs.grad = gradient.clone(), gradient.clone()
        ours.step()
        other.step()
    moved = (theirs.data - start).norm()
    assert float((mine.data - theirs.data).norm() / moved) < 0.02  # torch computes in bfloat16
    assert float((mine.data - start).square().mean().sqrt()) > 0.005


class _Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.between = nn.Linear(6, 5)
        self.embedding = nn.Embedding(32, 4)
        self.lm_head = nn.Linear(4, 16, bias=False)
        self.confidence = nn.Linear(6, 1)
        self.norm = nn.RMSNorm(6)
        self.frozen = nn.Parameter(torch.ones(3, 3), requires_grad=False)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_every_parameter_is_updated_by_one_optimiser(kind: str) -> None:
    module = _Parts()
    made = make_optimiser(module, OptimiserSpec(kind=kind, lr=1e-3, weight_decay=0.1))
    held = [id(p) for group in made.param_groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in module.parameters() if p.requires_grad)
    muon = [p for group in made.param_groups if "momentum" in group for p in group["params"]]
    assert [tuple(p.shape) for p in muon] == ([(5, 6)] if kind == "muon" else [])
    assert {p.dim() for g in made.param_groups if g["weight_decay"] == 0 for p in g["params"]} == {1}
    made.set_rate(0.5)
    assert {group["lr"] for group in made.param_groups} == {0.5}
