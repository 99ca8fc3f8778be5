"""Blocks over cached context: what a row drafts depends on nothing but its own tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support_blocks import HIDDEN, TAPS, VOCAB, block_config, block_model
from support_drafting import make_features, make_rows, view_of
from support_targets import tiny_model

from specbench.drafting.block_model import BlockModel
from specbench.drafting.block_state import BlockState
from specbench.drafting.packing import pack_blocks, packed_hidden

RULES: dict[str, dict[str, Any]] = {
    "full": {},
    "causal": {"causal": (True, True)},
    "window": {"window": (3, None), "causal": (True, False)},
    "window-bidirectional": {"window": (4, 4)},
}
VIEW = view_of(tiny_model("llama", vocab_size=VOCAB), max_rows=6, max_context=60)


def state_of(model: BlockModel) -> BlockState:
    return BlockState(model, target=VIEW)


def states(length: int, *, seed: int) -> torch.Tensor:
    return torch.randn(length, TAPS * HIDDEN, generator=torch.Generator().manual_seed(seed))


def feed(state: BlockState, slot: int, hidden: torch.Tensor, start: int = 0) -> None:
    if len(hidden) == 0:
        return
    part = (list(range(len(hidden))), start, hidden, 0)
    state.extend(make_rows([slot], [start], [0]), make_features([part]))


@pytest.mark.parametrize("rule", list(RULES))
def test_a_row_alone_equals_the_row_in_a_ragged_batch(rule: str) -> None:
    model = block_model(block_config(backbone=RULES[rule]))
    lengths, anchors, slots = [1, 17, 9], [5, 6, 7], [4, 1, 2]
    together = state_of(model)
    for slot, length in zip(slots, lengths):
        feed(together, slot, states(length, seed=slot))
    batch = together.block(make_rows(slots, lengths, anchors))
    for row, slot in enumerate(slots):
        alone = state_of(model)
        feed(alone, 0, states(lengths[row], seed=slot))
        single = alone.block(make_rows([0], [lengths[row]], [anchors[row]]))
        torch.testing.assert_close(batch[row], single[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rule", list(RULES))
@pytest.mark.parametrize("shift", [0, 1])
def test_training_in_a_pack_equals_drafting_from_the_cache(rule: str, shift: int) -> None:
    model = block_model(block_config(backbone=RULES[rule], slot_shift=shift))
    lengths, starts = [11, 8], (0, 11, 19)
    tokens = torch.arange(19) % VOCAB
    features = states(19, seed=0)
    anchors = torch.tensor([0, 3, 4, 9, 12, 17])
    packed = pack_blocks(
        tokens,
        torch.ones(19, dtype=torch.bool),
        anchors=anchors,
        sequence_starts=starts,
        drafts=model.config.max_drafts,
    )
    found = packed_hidden(model, features, packed)
    assert lengths == [11, 8]
    for block, anchor in enumerate(anchors.tolist()):
        begin = 0 if anchor < 11 else 11
        state = state_of(model)
        feed(state, 0, features[begin:anchor])
        hidden = state.block(make_rows([0], [anchor - begin], [int(tokens[anchor])]))
        expected = model.predictions(hidden, drafts=model.config.max_drafts)[0]
        torch.testing.assert_close(found[block], expected, atol=1e-5, rtol=1e-5)


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_rollback_and_slot_reuse_leave_no_trace(data: st.DataObject) -> None:
    model = block_model(block_config(backbone={"causal": (False, True)}))
    used = state_of(model)
    feed(used, 2, states(40, seed=99))  # an earlier request in the slot
    used.block(make_rows([2], [40], [7]))
    hidden = states(30, seed=5)
    at = data.draw(st.integers(1, 6))
    feed(used, 2, hidden[:at])
    while at < 20:
        used.block(make_rows([2], [at], [data.draw(st.integers(0, VOCAB - 1))]))  # drafts, some are thrown away
        step = data.draw(st.integers(1, 1 + model.config.max_drafts))
        feed(used, 2, hidden[at : at + step], start=at)
        at += step
    fresh = state_of(model)
    feed(fresh, 0, hidden[:at])
    torch.testing.assert_close(
        used.block(make_rows([2], [at], [1]))[0],
        fresh.block(make_rows([0], [at], [1]))[0],
        atol=1e-5,
        rtol=1e-5,
    )


def test_context_up_to_the_limit_and_a_block_beyond_it() -> None:
    model = block_model(block_config())
    state = state_of(model)
    feed(state, 5, states(VIEW.max_context, seed=1))
    hidden = state.block(make_rows([5], [VIEW.max_context], [1]))
    assert torch.isfinite(hidden).all()
    span = VIEW.max_context + model.config.block_inputs
    assert state.bytes() <= 2 * 2 * VIEW.max_rows * span * 2 * 16 * 4


def test_shared_modules_scales_and_caps() -> None:
    config = block_config(
        stored_embed=False, stored_head=False, embed_scale=2.0, logit_scale=0.5, softcap=3.0, mask_embedding=True
    )
    model = block_model(config)
    embed, head = torch.nn.Embedding(VOCAB, HIDDEN), torch.nn.Linear(HIDDEN, VOCAB)
    model.bind(embed=embed, head=head, id_map=None)
    assert not [n for n in model.state_dict() if n.startswith(("embed", "lm_head"))]
    rows = model.block_embeddings(torch.tensor([4, 9]))
    torch.testing.assert_close(rows[:, 0], 2.0 * embed.weight[[4, 9]])
    assert model.mask_embedding is not None
    assert rows[:, 1:].eq(model.mask_embedding).all()
    x = torch.randn(2, HIDDEN)
    torch.testing.assert_close(model.logits(x), 3.0 * torch.tanh(0.5 * head(x) / 3.0))
    ids = torch.tensor([1, 4, 30])
    small = block_model(block_config(stored_head=False, draft_size=3))
    small.bind(embed=embed, head=head, id_map=ids)
    torch.testing.assert_close(small.logits(x), head(x)[:, ids])
    assert small.bytes() == sum(p.numel() * 4 for p in small.parameters()) + 3 * (HIDDEN + 1) * 4
    before = small.logits(x)
    small.ready(x.device)
    with torch.inference_mode():
        torch.testing.assert_close(small.logits(x), before)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("drafts", [1, 2, 3])
def test_a_shortened_block_goes_to_the_heads_without_gaps(rows: int, shift: int, drafts: int) -> None:
    """A matrix library multiplies rows with gaps one by one: drafting 3 of 7 took seven times as long as drafting 7."""
    model = block_model(block_config(slot_shift=shift))
    hidden = torch.randn(rows, 4, HIDDEN)
    found = model.predictions(hidden, drafts=drafts)
    assert found.stride() == (drafts * HIDDEN, HIDDEN, 1)
    assert torch.equal(found, hidden[:, 1 - shift : 1 - shift + drafts])
