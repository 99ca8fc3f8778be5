"""The chunked loss against its definition, reduced vocabularies against the full one, packed chains against `ttt`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specbench_drafters.eagle3 import Eagle3
from support_drafting import FIXTURES, fixture_view
from torch import Tensor

from specbench.drafting import packed_chain, token_loss
from specbench.drafting.packed_chain import chain_hidden
from specbench.drafting.packing import pack_blocks
from specbench.drafting.token_loss import Rows, Teacher, definition, row_losses
from specbench.drafting.ttt import unroll

V, D = 23, 6


def case(rows: int, *, reduced: bool, seed: int, terms: tuple[float, float, float] = (0.4, 1.0, 0.7)) -> Any:
    """Random rows, a teacher and a student head with a bias of its own."""
    noise = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=noise)

    head = draw(V, D)
    ids = torch.arange(0, V, 2) if reduced else None
    hidden = draw(rows, D)
    teacher = Teacher(head if ids is None else head[ids], None, lambda h: h @ head.T, ids, softcap=5.0)
    full = torch.tanh(hidden @ head.T / 5.0) * 5.0
    made = Rows(
        labels=torch.randint(V, (rows,), generator=noise),
        teacher_hidden=hidden,
        log_normaliser=full.logsumexp(dim=-1),
        ce=terms[0] * draw(rows).abs(),
        soft_ce=terms[1] * draw(rows).abs(),
        tv=terms[2] * draw(rows).abs(),
    )
    student = draw(V if ids is None else len(ids), D).requires_grad_()
    return made, teacher, draw(rows, D).requires_grad_(), student, torch.softmax(full, dim=-1)


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 9),
    reduced=st.booleans(),
    renormalise=st.booleans(),
    chunk=st.integers(1, 300),
    seed=st.integers(0, 1000),
    terms=st.sampled_from([(0.4, 1.0, 0.7), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)]),
)
def test_chunked_losses_and_gradients_are_those_of_the_definition(
    rows: int, reduced: bool, renormalise: bool, chunk: int, seed: int, terms: tuple[float, float, float]
) -> None:
    made, teacher, states, student, _ = case(rows, reduced=reduced, seed=seed, terms=terms)
    of = torch.randint(rows, (rows,), generator=torch.Generator().manual_seed(seed))  # rounds share teacher states
    made = replace(made, teacher_hidden=made.teacher_hidden[of], log_normaliser=made.log_normaliser[of])
    wanted, *parts = definition(states @ student.T, rows=made, teacher=teacher, renormalise=renormalise)
    expected = torch.autograd.grad(wanted, (states, student))
    before = dict(token_loss._CHUNK_VALUES)
    token_loss._CHUNK_VALUES["cpu"] = chunk
    try:
        found = row_losses(
            lambda h: h @ student.T, (states,), shared=(student,), rows=replace(made, teacher_rows=7 * of),
            teacher=teacher, renormalise=renormalise,
        )  # fmt: skip
    finally:
        token_loss._CHUNK_VALUES.update(before)
    torch.testing.assert_close(found.total, wanted, atol=1e-4, rtol=1e-4)
    for seen, part in zip((found.ce, found.soft_ce, found.distance), parts, strict=True):
        torch.testing.assert_close(seen, part.detach(), atol=1e-4, rtol=1e-4)
    for seen, gradient in zip(torch.autograd.grad(3.0 * found.total, (states, student)), expected, strict=True):
        torch.testing.assert_close(seen, 3.0 * gradient, atol=1e-4, rtol=1e-3)


def test_mass_outside_the_draft_vocabulary_counts_as_missed() -> None:
    made, teacher, states, student, truth = case(7, reduced=True, seed=3)
    found = row_losses(lambda h: h @ student.T, (states,), rows=made, teacher=teacher, judge=True)
    q = torch.zeros(7, V).index_copy_(1, teacher.id_map, torch.softmax(states @ student.T, dim=-1).detach())
    torch.testing.assert_close(found.distance, (q - truth).abs().sum(dim=-1), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.accept, torch.minimum(q, truth).sum(dim=-1), atol=1e-5, rtol=1e-5)
    assert found.agree is not None
    assert found.named is not None
    assert found.agree.tolist() == (q.argmax(dim=-1) == truth.argmax(dim=-1)).tolist()
    assert found.named.tolist() == (q.argmax(dim=-1) == made.labels).tolist()


def test_the_full_head_decides_only_where_the_stored_mass_cannot() -> None:
    made, teacher, _, _, truth = case(400, reduced=True, seed=5)
    asked: list[int] = []
    full = teacher.full

    def counted(hidden: Tensor) -> Tensor:
        asked.append(len(hidden))
        return full(hidden)

    watched = Teacher(teacher.weight, None, counted, teacher.id_map, softcap=teacher.softcap)
    inside = truth[:, teacher.id_map]
    best = watched.best(made.teacher_hidden, inside)
    argmax = truth.argmax(dim=-1)
    assert [int(teacher.id_map[b]) if b >= 0 else -1 for b in best] == [int(a) if a % 2 == 0 else -1 for a in argmax]
    assert 0 < sum(asked) < 400


def test_without_gradients_the_same_numbers_come_out() -> None:
    made, teacher, states, student, _ = case(5, reduced=True, seed=8)
    with_gradient = row_losses(lambda h: h @ student.T, (states,), rows=made, teacher=teacher)
    with torch.no_grad():
        without = row_losses(lambda h: h @ student.T, (states,), rows=made, teacher=teacher)
    torch.testing.assert_close(with_gradient.total.detach(), without.total)
    assert not without.total.requires_grad


def test_nothing_to_judge_is_zero_and_trains_nothing() -> None:
    made, teacher, states, student, _ = case(1, reduced=False, seed=0)
    none = slice(0, 0)
    rows = Rows(*(getattr(made, name)[none] for name in Rows.__slots__ if name != "teacher_rows"))
    found = row_losses(lambda h: h @ student.T, (states[none],), shared=(student,), rows=rows, teacher=teacher)
    found.total.backward()
    assert float(found.total.detach()) == 0
    assert student.grad is not None
    assert not student.grad.any()


@pytest.mark.parametrize(("every", "kept"), [(1, 1 << 21), (3, 1 << 21), (1, 40)])
def test_packed_chains_are_the_unrolled_ones_at_their_anchors(
    every: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample of anchors of two ragged sequences against each sequence unrolled whole; scores kept or made again."""
    monkeypatch.setattr(packed_chain, "_KEPT_SCORES", kept)
    model = Eagle3.load(FIXTURES / "eagle3", target=fixture_view(), options={}).model
    noise = torch.Generator().manual_seed(0)
    lengths, drafts = (13, 8), 3
    starts = (0, 13, 21)
    width = model.fc.weight.shape[1]
    features = torch.randn(21, width, generator=noise)
    tokens = torch.randint(0, 300, (21,), generator=noise)
    anchors = torch.tensor([a for s, n in zip(starts, lengths) for a in range(s + 1, s + n - 1, every)])
    packed = pack_blocks(tokens, torch.ones(21), anchors=anchors, sequence_starts=starts, drafts=drafts)
    with torch.no_grad():
        found = chain_hidden(model, features, tokens, packed, drafts=drafts)
        for start, length in zip(starts, lengths):
            rows = slice(start, start + length)
            whole = unroll(model, features=features[rows][None], token_ids=tokens[rows][None], steps=drafts)
            inside = ((anchors >= start) & (anchors < start + length)).nonzero()[:, 0]
            for step, (_, normed) in enumerate(whole):
                for index in inside.tolist():
                    place = int(anchors[index]) - start - 1
                    if place + 1 + step < length:  # its inputs are inside the sequence
                        torch.testing.assert_close(found[index, step], normed[0, place], atol=1e-4, rtol=1e-4)


def test_scores_that_are_made_again_give_the_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Eagle3.load(FIXTURES / "eagle3", target=fixture_view(), options={}).model
    model.fc.weight.requires_grad_()
    noise = torch.Generator().manual_seed(1)
    features = torch.randn(12, model.fc.weight.shape[1], generator=noise)
    tokens = torch.randint(0, 300, (12,), generator=noise)
    packed = pack_blocks(tokens, torch.ones(12), anchors=torch.arange(1, 11), sequence_starts=(0, 12), drafts=3)
    found = []
    for kept in (1 << 21, 25):
        monkeypatch.setattr(packed_chain, "_KEPT_SCORES", kept)
        hidden = chain_hidden(model, features, tokens, packed, drafts=3)
        found.append(torch.autograd.grad(hidden.square().sum(), model.fc.weight)[0])
    torch.testing.assert_close(found[0], found[1], atol=1e-4, rtol=1e-4)
