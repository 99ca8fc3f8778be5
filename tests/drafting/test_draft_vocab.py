"""Reduced vocabularies: what is refused, and what the map does."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support_contestants import counted_tokenizer
from support_drafting import fixture_view

from specbench.drafting.vocab import checked_map, coverage, from_offsets, nameable, scatter_logits
from specbench.errors import CheckpointError


@pytest.mark.parametrize(
    ("ids", "draft_size", "says"),
    [
        (None, 3, "no d2t map"),
        ([0, 0, 0], 3, "all zero"),
        ([0, 2, 2], 3, "strictly increasing"),
        ([4, 2, 1], 3, "strictly increasing"),
        ([1, 2, 10], 3, "outside 0..9"),
        ([-1, 2, 3], 3, "outside 0..9"),
        ([1, 2, 3], 4, "shape"),
    ],
)
def test_bad_maps_are_refused(ids: list[int] | None, draft_size: int, says: str) -> None:
    given_ids = None if ids is None else torch.tensor(ids)
    with pytest.raises(CheckpointError, match=says) as error:
        checked_map(given_ids, draft_size=draft_size, vocab_size=10)
    assert "\n" not in str(error.value)


def test_full_vocabulary_has_no_map() -> None:
    assert checked_map(None, draft_size=10, vocab_size=10) is None
    assert checked_map(torch.arange(10), draft_size=10, vocab_size=10) is None


@given(st.sets(st.integers(0, 49), min_size=2, max_size=49))
def test_offsets_and_scatter_agree_with_the_definition(chosen: set[int]) -> None:
    ids = torch.tensor(sorted(chosen))
    offsets = ids - torch.arange(len(ids))
    absolute = from_offsets(offsets)
    assert absolute.equal(ids)
    found = checked_map(absolute, draft_size=len(ids), vocab_size=50)
    assert found is not None
    logits = torch.randn(2, len(ids))
    full = scatter_logits(logits, id_map=found, vocab_size=50)
    for target_id in range(50):
        if target_id in chosen:
            assert full[:, target_id].equal(logits[:, sorted(chosen).index(target_id)])
        else:
            assert full[:, target_id].eq(-torch.inf).all()
    text = torch.tensor([0, 1, 2, 3, 49])
    assert coverage(text, id_map=found) == pytest.approx(sum(t in chosen for t in text.tolist()) / 5)


def test_no_map_covers_everything() -> None:
    logits = torch.randn(1, 5)
    assert scatter_logits(logits, id_map=None, vocab_size=5) is logits
    assert coverage(torch.tensor([1, 2]), id_map=None) == 1.0


def test_what_the_tokenizer_can_name_may_be_proposed() -> None:
    known, unknown = fixture_view(vocab_size=40, tokenizer=counted_tokenizer(30)), fixture_view(vocab_size=40)
    ids = torch.tensor([2, 5, 29, 30, 39])
    assert nameable(unknown, id_map=None) == 40
    assert nameable(unknown, id_map=ids) == 5
    assert nameable(known, id_map=None) == 30
    assert nameable(known, id_map=ids) == 3
    taller = fixture_view(vocab_size=20, tokenizer=counted_tokenizer(30))
    assert nameable(taller, id_map=None) == 20
    with pytest.raises(CheckpointError, match="no token") as error:
        nameable(known, id_map=ids[3:])
    assert "\n" not in str(error.value)
