"""Drawing drafts: point masses, mixed rows, truncation, reduced vocabularies."""

from __future__ import annotations

import pytest
import torch
from support_drafting import make_rows

from specbench.drafting.sampling import draw, is_greedy, join
from specbench.errors import ConfigError


def logits(batch: int, drafts: int, width: int) -> torch.Tensor:
    return torch.randn(batch, drafts, width, generator=torch.Generator().manual_seed(3)) * 2


def test_greedy_rows_carry_no_distribution() -> None:
    rows = make_rows([0, 1], [4, 4], [1, 1])
    scores = logits(2, 3, 7)
    tokens, draft = draw(scores, rows, uniforms=None)
    assert draft is None
    assert tokens.equal(scores.argmax(-1))


def test_option_greedy_makes_point_masses_at_any_temperature() -> None:
    rows = make_rows([0], [4], [1], temperature=1.0)
    scores = logits(1, 3, 7)
    tokens, draft = draw(scores, rows, uniforms=None, greedy=True)
    assert draft is None
    assert tokens.equal(scores.argmax(-1))
    assert is_greedy("greedy")
    assert not is_greedy("probabilistic")
    with pytest.raises(ConfigError, match="draft_sampling"):
        is_greedy("gready")


def test_mixed_rows_each_by_their_own_temperature() -> None:
    rows = make_rows([0, 1], [4, 4], [1, 1], temperature=[0.0, 0.5])
    scores = logits(2, 3, 7)
    tokens, draft = draw(scores, rows, uniforms=torch.full((2, 3), 0.999999, dtype=torch.float64))
    assert tokens[0].equal(scores[0].argmax(-1))
    assert tokens[1].tolist() == [6, 6, 6]  # the last token of every cumulative sum
    assert draft is not None
    q = (draft.logits - draft.log_normaliser[..., None]).exp()
    torch.testing.assert_close(q[1], torch.softmax(scores[1] / 0.5, -1))


def test_truncation_is_the_targets() -> None:
    rows = make_rows([0], [4], [1], temperature=1.0, top_k=2)
    scores = logits(1, 4, 7)
    _, draft = draw(scores, rows, uniforms=torch.zeros(1, 4, dtype=torch.float64))
    assert draft is not None
    assert torch.isfinite(draft.logits).sum(-1).tolist() == [[2, 2, 2, 2]]


def test_draws_follow_the_kept_distribution() -> None:
    rows = make_rows([0], [4], [1], temperature=0.7, top_p=0.9)
    scores = logits(1, 1, 6).expand(1, 20_000, 6)
    uniforms = torch.rand(1, 20_000, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    tokens, draft = draw(scores, rows, uniforms=uniforms)
    assert draft is not None
    q = (draft.logits[0, 0] - draft.log_normaliser[0, 0]).exp()
    seen = torch.bincount(tokens[0], minlength=6) / 20_000
    assert (seen - q).abs().max() < 0.015
    assert seen[q == 0].sum() == 0


def test_ids_of_a_reduced_vocabulary_are_the_targets() -> None:
    ids = torch.tensor([2, 5, 11])
    scores = logits(2, 3, 3)
    greedy, _ = draw(scores, make_rows([0, 1], [1, 1], [1, 1]), uniforms=None, id_map=ids)
    assert greedy.equal(ids[scores.argmax(-1)])
    rows = make_rows([0, 1], [1, 1], [1, 1], temperature=1.0)
    tokens, draft = draw(scores, rows, uniforms=torch.rand(2, 3, dtype=torch.float64), id_map=ids)
    assert torch.isin(tokens, ids).all()
    assert draft is not None
    assert draft.id_map is ids


@pytest.mark.parametrize("ids", [None, torch.tensor([1, 4, 6, 9])])
def test_ids_beyond_the_width_are_never_drawn(ids: torch.Tensor | None) -> None:
    scores, noise = logits(2, 50, 4), torch.rand(2, 50, dtype=torch.float64)
    scores[..., 3] = 10.0  # the likeliest by far
    kept = torch.arange(3) if ids is None else ids[:3]
    greedy, _ = draw(scores, make_rows([0, 1], [1, 1], [1, 1]), uniforms=None, id_map=ids, width=3)
    assert greedy.equal(kept[scores[..., :3].argmax(-1)])
    rows = make_rows([0, 1], [1, 1], [1, 1], temperature=[1.0, 0.0], top_k=4)
    tokens, draft = draw(scores, rows, uniforms=noise, id_map=ids, width=3)
    assert draft is not None
    assert set(tokens[0].tolist()) == set(kept.tolist())
    assert tokens[1].equal(greedy[1])
    q = (draft.logits - draft.log_normaliser[..., None]).exp()
    torch.testing.assert_close(q[0], torch.softmax(scores[0, :, :3], -1))
    assert draft.id_map is None if ids is None else draft.id_map.equal(kept)


def test_joined_positions_equal_one_draw() -> None:
    rows = make_rows([0, 1], [1, 1], [1, 1], temperature=1.0, top_p=0.8)
    scores, noise = logits(2, 3, 9), torch.rand(2, 3, dtype=torch.float64)
    whole_tokens, whole = draw(scores, rows, uniforms=noise)
    steps = [draw(scores[:, k : k + 1], rows, uniforms=noise[:, k : k + 1]) for k in range(3)]
    tokens, draft = join(steps)
    assert tokens.equal(whole_tokens)
    assert draft is not None
    assert whole is not None
    assert draft.logits.equal(whole.logits)
    assert draft.log_normaliser.equal(whole.log_normaliser)
    assert join([draw(scores[:, :1], make_rows([0, 1], [1, 1], [1, 1]), uniforms=None)])[1] is None
