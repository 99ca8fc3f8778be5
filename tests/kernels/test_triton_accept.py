"""Triton twins of acceptance against their definitions, interpreted: tokens, probabilities, and the law itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from support_twins import poisoned, small_tiles, with_fault
from torch import Tensor

from specbench.kernels import accept as definition
from specbench.kernels._triton import accept, probs, residual
from specbench.kernels.probs import process_logits
from specbench.types import DraftLogits

KINDS = ("point", "dense", "mapped")


@pytest.fixture(autouse=True, scope="module")
def _surroundings() -> Iterator[None]:
    with poisoned(), small_tiles(probs, accept):
        yield


def case(rows: int, drafts: int, width: int, *, kind: str, seed: int, dtype: torch.dtype = torch.float32) -> Any:
    """Raw logits of ragged rows, how they are processed, and what the drafts were drawn from."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, drafts + 1, (rows,), generator=generator)
    starts = torch.nn.functional.pad((lengths + 1).cumsum(0)[:-1], (1, 0))
    total = int((lengths + 1).sum())
    logits = torch.randn(total, width, generator=generator) * 2
    logits[:, seed % width] = -torch.inf
    heat = torch.rand(rows, generator=generator) + 0.5
    heat[seed % rows] = 0.0
    owner = torch.repeat_interleave(torch.arange(rows), lengths + 1)
    processing = {
        "temperature": heat[owner],
        "top_p": torch.ones(total),
        "top_k": torch.full((total,), width),
        "any_truncated": False,
        "any_greedy": True,
    }
    tokens, draft = torch.randint(0, width, (rows, drafts), generator=generator), None
    if kind != "point":
        ids = None if kind == "dense" else torch.randperm(width, generator=generator)[: width // 2].sort().values
        size = width if ids is None else len(ids)
        q = torch.randn(rows, drafts, size, generator=generator) * 2
        draft = DraftLogits(q, q.logsumexp(-1), ids)
        tokens = torch.multinomial(q.softmax(-1).flatten(0, 1), 1, generator=generator).view(rows, drafts)
        tokens = tokens if ids is None else ids[tokens]
    judged = {
        "starts": starts,
        "lengths": lengths,
        "drafts": tokens,
        "draft": draft,
        "u_accept": torch.rand(rows, drafts, generator=generator, dtype=torch.float64) ** 2,
        "u_next": torch.rand(rows, generator=generator, dtype=torch.float64),
    }
    return logits.to(dtype), processing, judged


def assert_same(found: definition.Acceptance, expected: definition.Acceptance) -> None:
    assert torch.equal(found.accepted, expected.accepted)
    assert torch.equal(found.next_token, expected.next_token)
    if expected.log_p_target is not None:
        torch.testing.assert_close(found.log_p_target, expected.log_p_target, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found.log_p_draft, expected.log_p_draft, atol=1e-5, rtol=1e-5)


SHAPES = [(3, 3, 70, "dense"), (3, 3, 37, "mapped"), (4, 3, 70, "point"), (1, 0, 7, "dense"), (1, 1, 33, "mapped")]


def compare(twin: ModuleType, *, kinds: tuple[str, ...] = KINDS, raw: bool = True) -> None:
    """Processed and raw logits, every kind of draft, odd shapes, no drafts, one row."""
    for seed, (rows, drafts, width, kind) in enumerate(SHAPES):
        if kind not in kinds:
            continue
        logits, processing, judged = case(rows, drafts, width, kind=kind, seed=seed)
        processed = process_logits(logits, **processing)
        assert_same(twin.accept_sampled(*processed, **judged), definition.accept_sampled(*processed, **judged))
        if raw and seed < 3:
            found = twin.accept_logits(logits, **processing, **judged)
            assert_same(found, definition.accept_logits(logits, **processing, **judged))


def test_acceptance_equals_its_definition() -> None:
    compare(accept)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_with_truncation(dtype: torch.dtype) -> None:
    logits, processing, judged = case(3, 3, 70, kind="dense", seed=8, dtype=dtype)
    total = logits.shape[0]
    processing |= {"top_p": torch.full((total,), 0.9), "top_k": torch.full((total,), 11), "any_truncated": True}
    found = accept.accept_logits(logits, **processing, **judged)
    assert_same(found, definition.accept_logits(logits, **processing, **judged))


def compare_greedy(twin: ModuleType) -> None:
    generator = torch.Generator().manual_seed(0)
    for rows, drafts in ((5, 3), (1, 1), (2, 0)):
        lengths = torch.randint(0, drafts + 1, (rows,), generator=generator)
        lengths[0] = drafts
        starts = torch.nn.functional.pad((lengths + 1).cumsum(0)[:-1], (1, 0))
        best = torch.randint(0, 2, (int((lengths + 1).sum()),), generator=generator)
        judged = {
            "starts": starts,
            "lengths": lengths,
            "drafts": torch.randint(0, 2, (rows, drafts), generator=generator),
        }
        if drafts == 3:
            judged["drafts"][0] = best[:3]
        assert_same(twin.accept_greedy(best, **judged), definition.accept_greedy(best, **judged))


def test_greedy_acceptance_equals_its_definition() -> None:
    compare_greedy(accept)
    lengths = torch.arange(257) % 3
    starts = torch.nn.functional.pad((lengths + 1).cumsum(0)[:-1], (1, 0))
    best = torch.arange(int((lengths + 1).sum())) % 2
    judged = {"starts": starts, "lengths": lengths, "drafts": torch.arange(514).view(257, 2) % 2}
    assert_same(accept.accept_greedy(best, **judged), definition.accept_greedy(best, **judged))


def one_position(twin: ModuleType, p: Tensor, q: Tensor, token: int, u_accept: Tensor, u_next: Tensor) -> Any:
    """One draft judged once per entry of the uniforms [n]."""
    n, width = len(u_next), len(p)
    return twin.accept_sampled(
        p.log().expand(2 * n, width),
        torch.zeros(2 * n),
        starts=torch.arange(n) * 2,
        lengths=torch.ones(n, dtype=torch.int64),
        drafts=torch.full((n, 1), token),
        draft=DraftLogits(q.log().expand(n, 1, width), torch.zeros(n, 1)),
        u_accept=u_accept[:, None],
        u_next=u_next,
    )


def compare_law(twin: ModuleType) -> None:
    """Every draft is accepted up to min(1, p/q); the correction changes token where the residual's sum does.

    With both shown, enumerating all drafts and all next tokens gives p: sum of q * accepted plus what the rejected
    mass is drawn from.
    """
    p = torch.tensor([0.05, 0.4, 0.0, 0.25, 0.3], dtype=torch.float64)
    q = torch.tensor([0.3, 0.1, 0.1, 0.2, 0.3], dtype=torch.float64)
    ends_of_u = torch.tensor([1e-12, 1 - 1e-12], dtype=torch.float64)
    chance = (p / q).clamp(max=1.0)
    half = torch.full((2,), 0.5, dtype=torch.float64)
    for token in range(5):
        around = torch.stack([chance[token] - 1e-9, chance[token] + 1e-9]).clamp(0, 1 - 1e-12)
        found = one_position(twin, p, q, token, around, half)
        assert found.accepted.tolist() == [int(chance[token] > 0), int(chance[token] == 1)]
    left = (p - q).clamp(min=0)
    left = left / left.sum()
    ends = left.cumsum(0)
    inner = ends[(left > 0) & (ends < 1 - 1e-9)]
    u = torch.cat([ends_of_u, inner - 1e-9, inner + 1e-9])
    expected = torch.searchsorted(ends, u, right=True)
    rejected = one_position(twin, p, q, 0, torch.ones_like(u) - 1e-12, u)
    assert rejected.accepted.tolist() == [0] * len(u)
    assert rejected.next_token.tolist() == expected.tolist()
    law = q * chance + (1 - (q * chance).sum()) * left
    torch.testing.assert_close(law, p, atol=1e-12, rtol=0)


def test_the_law_of_one_position_is_the_targets() -> None:
    compare_law(accept)


def test_equal_distributions_leave_no_residual_and_p_itself_is_drawn_from() -> None:
    p = torch.tensor([0.25, 0.5, 0.25], dtype=torch.float64)
    u = torch.tensor([0.1, 0.6, 0.9], dtype=torch.float64)
    found = one_position(accept, p, p, 1, torch.full((3,), 1.0, dtype=torch.float64), u)
    assert found.accepted.tolist() == [0, 0, 0]
    assert found.next_token.tolist() == [0, 1, 2]


def compare_rejected(twin: ModuleType, kind: str) -> None:
    """The correction after a rejected first draft, at many points; the last rows accept all and draw a bonus."""
    n, width = 8, 6
    p = torch.tensor([0.3, 0.1, 0.25, 0.05, 0.2, 0.1]).log()
    ids = torch.tensor([0, 2, 5]) if kind == "mapped" else None
    q = torch.tensor([0.6, 0.3, 0.1] if kind == "mapped" else [0.5, 0.05, 0.3, 0.05, 0.05, 0.05]).log()
    draft = None if kind == "point" else DraftLogits(q.expand(n, 1, -1), torch.zeros(n, 1), ids)
    judged: dict[str, Any] = {
        "starts": torch.arange(n) * 2,
        "lengths": torch.ones(n, dtype=torch.int64),
        "drafts": torch.zeros(n, 1, dtype=torch.int64),
        "draft": draft,
        "u_accept": torch.tensor([0.99] * 6 + [0.01] * 2, dtype=torch.float64)[:, None],
        "u_next": torch.tensor([0.02, 0.2, 0.4, 0.6, 0.8, 0.98, 0.2, 0.6], dtype=torch.float64),
    }
    logits, norm = p.expand(2 * n, width), torch.zeros(2 * n)
    found = twin.accept_sampled(logits, norm, **judged)
    expected = definition.accept_sampled(logits, norm, **judged)
    assert expected.accepted.tolist() == [0] * 6 + [1] * 2
    assert_same(found, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_corrections_equal_the_definitions(kind: str) -> None:
    compare_rejected(accept, kind)


_PREFIX = "tl.where(ok, DRAFTS, k), axis=0).to"
_BEFORE = "logits_ptr + tl.maximum(at - 1, 0), mask"
_LEFT = "tl.maximum(p - tl.exp(log_q), 0.0)"
_OUT = "tl.where(at == token, 0.0, p)"
# A fault may change what is read and written, but never address memory that is not the tensors'.
FAULTS = {
    "a prefix that goes on": (accept, "point", _PREFIX, _PREFIX.replace("ok,", "ok | (k == 0),")),
    "a draft beyond the length": (accept, "point", "inside = real & (k < length)", "inside = real & (k <= length)"),
    "q forgotten in the ratio": (accept, "dense", "tl.log(u) + log_q < log_p", "tl.log(u) < log_p"),
    "map searched one short": (accept, "mapped", "tl.where(below, middle + 1, low)", "tl.where(below, middle, low)"),
    "residual not cut at zero": (residual, "dense", _LEFT, _LEFT.replace("0.0", "-1.0")),
    "the draft stays possible": (residual, "point", _OUT, _OUT.replace("token", "token + 1")),
    "no residual at all": (residual, "dense", "use_left = rejected &", "use_left = (accepted < 0) &"),
    "mapped tokens without q": (residual, "mapped", "known = index >= 0", "known = index >= 1"),
    "logits of the token before": (residual, "dense", "logits_ptr + at, mask", _BEFORE),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_caught(name: str, tmp_path: Path) -> None:
    module, kind, old, new = FAULTS[name]
    broken = with_fault(module, old, new, folder=tmp_path)
    if module is residual:
        parts = {part: getattr(broken, part) for part in ("residual_kernel", "next_kernel", "read")}
        broken = with_fault(accept, "Acceptance over ragged rows", "Acceptance", folder=tmp_path, **parts)
    with pytest.raises(AssertionError):
        _compare_all(broken, kind)


def _compare_all(twin: ModuleType, kind: str) -> None:
    compare_rejected(twin, kind)
    compare(twin, kinds=(kind,), raw=False)
