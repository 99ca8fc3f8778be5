"""Block losses, gradients and packing against the recorded batch, and reduced vocabularies against the definition."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from specbench_drafters.dflash import DFlash
from specbench_drafters.dspark import PLUGIN as DSpark
from support_drafting import FIXTURES, fixture_view
from torch import Tensor

from specbench.drafting.block_model import BlockModel
from specbench.drafting.losses import (
    BlockLossWeights,
    BlockSums,
    block_loss_sums,
    decayed_sum,
    soft_cross_entropy,
)
from specbench.drafting.packing import PackedBlocks, pack_blocks, packed_hidden, sample_anchors
from specbench.drafting.vocab import scatter_logits

RECORD = json.loads((FIXTURES / "losses.json").read_text())
TENSORS = load_file(FIXTURES / "losses.safetensors")
LENGTHS, STARTS = (36, 29), (0, 36, 65)
CASES = {case["label"]: case for case in RECORD["dspark"]}


def flat(name: str) -> Tensor:
    """A recorded batch tensor without its padding."""
    return torch.cat([TENSORS[name][row, :length] for row, length in enumerate(LENGTHS)])


def model_of(name: str) -> BlockModel:
    drafter = (DSpark if name.startswith("dspark") else DFlash).load(FIXTURES / name, target=fixture_view(), options={})
    for parameter_name, parameter in drafter.model.named_parameters():
        parameter.requires_grad_(not parameter_name.startswith(("embed_tokens", "lm_head")))
    return drafter.model


def pack(case: dict[str, Any]) -> PackedBlocks:
    pairs = zip(STARTS, case["anchor_positions"], case["block_keep_mask"])
    anchors = [start + a for start, row, keep in pairs for a, kept in zip(row, keep) if kept]
    return pack_blocks(
        flat("batch.input_ids").long(),
        flat("batch.loss_mask").bool(),
        anchors=torch.tensor(anchors),
        sequence_starts=STARTS,
        drafts=5,
    )


def kept_rows(case: dict[str, Any], name: str) -> Tensor:
    """A recorded [2, 16, ...] tensor at its real anchors."""
    return TENSORS[name][torch.tensor(case["block_keep_mask"]).bool()]


def forward(model: BlockModel, packed: PackedBlocks) -> tuple[Tensor, Tensor | None]:
    features = torch.cat([flat(f"batch.layer{i}_hidden_states") for i in (0, 2, 4)], dim=-1)
    hidden = packed_hidden(model, features, packed)
    logits, markov = model.logits(hidden), model.markov_head
    if markov is None:
        return logits, None
    assert model.confidence_head is not None
    confidence = model.confidence_head(hidden, markov.embed(packed.previous))
    return logits + markov.forced(hidden, packed.previous), confidence


def weights_of(case: dict[str, Any]) -> BlockLossWeights:
    config = case["loss_config"]
    return BlockLossWeights(
        ce=config["ce_loss_alpha"],
        tv=config["l1_loss_alpha"],
        confidence=config["confidence_head_alpha"],
        decay=config["loss_decay_gamma"],
    )


def sums_of(case: dict[str, Any], model: BlockModel, packed: PackedBlocks, rows: slice = slice(None)) -> BlockSums:
    logits, confidence = forward(model, packed)
    with torch.no_grad():
        teacher = model.logits(flat("batch.target_last_hidden_states")[packed.teacher_rows])
    return block_loss_sums(
        logits[rows],
        labels=packed.labels[rows],
        supervised=packed.supervised[rows],
        teacher_logits=teacher[rows],
        weights=weights_of(case),
        confidence_logits=None if confidence is None else confidence[rows],
    )


@pytest.mark.parametrize("label", list(CASES))
def test_losses_and_gradients(label: str) -> None:
    case = CASES[label]
    model, packed = model_of(case["drafter"]), pack(case)
    sums = sums_of(case, model, packed)
    terms = case["terms"]
    for ours, theirs in (("ce", "ce_loss"), ("tv", "l1_loss"), ("confidence", "confidence_loss")):
        denominator = getattr(sums, f"{ours}_weight")
        assert float(denominator) == pytest.approx(terms[f"{theirs}_den"], rel=1e-6)
        average = float(getattr(sums, ours).detach() / (denominator + 1e-6))
        assert average == pytest.approx(case[theirs], abs=1e-5)
    total = sums.total(weights_of(case))
    assert float(total.detach()) == pytest.approx(case["total"], abs=1e-5)
    total.backward()
    norms = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            norms[name] = float(parameter.grad.norm())
            if f"{label}.grad.{name}" in TENSORS:
                torch.testing.assert_close(parameter.grad, TENSORS[f"{label}.grad.{name}"], atol=1e-5, rtol=0)
    assert norms.keys() == case["parameter_grad_norms"].keys()
    assert norms == pytest.approx(case["parameter_grad_norms"], rel=1e-4)
    rates = [case["metrics"][f"train/accept_rate@{k}"] for k in range(5)]
    assert sums.accept_rates().tolist() == pytest.approx(rates, abs=1e-5)
    assert float(sums.expected_tau()) == pytest.approx(case["metrics"]["train/tau_probabilistic"], abs=1e-5)


@pytest.mark.parametrize("name", ["dspark_markov", "dspark_gated", "dspark_rnn", "dflash"])
def test_teacher_forced_tensors(name: str) -> None:
    case = CASES[name]
    model, packed = model_of(name), pack(case)
    seen = packed.supervised
    assert seen.equal(kept_rows(case, f"{name}.eval_mask").bool())
    assert packed.labels[seen].equal(kept_rows(case, f"{name}.target_ids").long()[seen])
    logits, confidence = forward(model, packed)
    torch.testing.assert_close(logits[seen], kept_rows(case, f"{name}.draft_logits")[seen], atol=1e-4, rtol=0)
    if confidence is not None:
        found = kept_rows(case, f"{name}.confidence_pred")[seen]
        torch.testing.assert_close(confidence[seen], found, atol=1e-4, rtol=0)
    if name == "dspark_markov":
        teacher = model.logits(flat("batch.target_last_hidden_states")[packed.teacher_rows])
        found = kept_rows(case, f"{name}.aligned_target_logits")[seen]
        torch.testing.assert_close(teacher[seen], found, atol=1e-4, rtol=0)


def test_chunks_add_up_to_the_whole() -> None:
    case = CASES["dspark_markov"]
    model, packed = model_of("dspark_markov"), pack(case)
    with torch.no_grad():
        parts = [sums_of(case, model, packed, rows) for rows in (slice(0, 7), slice(7, 20), slice(20, None))]
    joined = parts[0] + parts[1] + parts[2]
    assert float(joined.total(weights_of(case))) == pytest.approx(case["total"], abs=1e-5)


def test_reduced_vocabulary_counts_the_mass_outside() -> None:
    noise = torch.Generator().manual_seed(0)
    ids = torch.tensor([0, 3, 4, 8])
    draft, teacher = torch.randn(2, 3, 4, generator=noise), torch.randn(2, 3, 10, generator=noise)
    labels = torch.tensor([[3, 5, 8], [1, 0, 4]])
    supervised = torch.tensor([[True, True, False], [True, True, True]])
    weights = BlockLossWeights(ce=0.3, tv=0.7, confidence=0.0, decay=2.0)
    sums = block_loss_sums(
        draft, labels=labels, supervised=supervised, teacher_logits=teacher, weights=weights, id_map=ids
    )
    q = torch.softmax(scatter_logits(draft, id_map=ids, vocab_size=10), -1)
    p = torch.softmax(teacher, -1)
    w = supervised * torch.exp(-torch.arange(3) / 2.0)
    assert float(sums.tv) == pytest.approx(float((w * (q - p).abs().sum(-1)).sum()), rel=1e-5)
    named = torch.isin(labels, ids)
    likelihood = q.gather(-1, labels[..., None])[..., 0]
    expected = sum(-float(w[i, k]) * float(likelihood[i, k].log()) for i in range(2) for k in range(3) if named[i, k])
    assert float(sums.ce) == pytest.approx(expected, rel=1e-5)
    assert float(sums.ce_weight) == pytest.approx(float((w * named).sum()))
    assert float(sums.accept[0]) == pytest.approx(float(torch.minimum(p, q)[:, 0].sum()), rel=1e-5)


def test_soft_cross_entropy_is_the_sum_over_the_vocabulary() -> None:
    noise = torch.Generator().manual_seed(1)
    logits, teacher = torch.randn(2, 4, 6, generator=noise), torch.randn(2, 4, 6, generator=noise)
    mask = torch.tensor([[1, 1, 0, 1], [0, 0, 1, 0]])
    p, q = torch.softmax(teacher.double(), -1), torch.softmax(logits.double(), -1)
    expected = sum(-float(p[i, j, x]) * float(q[i, j, x].log()) for i, j in mask.nonzero().tolist() for x in range(6))
    found = soft_cross_entropy(logits, teacher, mask=mask, normaliser=8)
    assert float(found) == pytest.approx(expected / 8, rel=1e-5)
    assert float(decayed_sum(torch.tensor([1.0, 2.0, 4.0]), decay=0.5)) == pytest.approx(1 + 1 + 1)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_anchors_and_labels_stay_in_their_sequence(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    starts = [0]
    for length in lengths:
        starts.append(starts[-1] + length)
    total, drafts, limit = starts[-1], data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    mask = torch.tensor(data.draw(st.lists(st.booleans(), min_size=total, max_size=total)))
    anchors = sample_anchors(
        mask, sequence_starts=starts, limit=limit, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 9)))
    )
    tokens = torch.arange(total) * 3
    packed = pack_blocks(tokens, mask, anchors=anchors, sequence_starts=starts, drafts=drafts)
    for index, (start, end) in enumerate(pairwise(starts)):
        possible = [t for t in range(start, end - 1) if mask[t] and mask[t + 1]]
        chosen = [a for a in anchors.tolist() if start <= a < end]
        assert chosen == sorted(set(chosen))
        assert len(chosen) == min(limit, len(possible))
        assert set(chosen) <= set(possible)
        assert packed.context_ends_host[index] == (chosen[-1] if chosen else start)
    for row, anchor in enumerate(anchors.tolist()):
        end = next(e for e in starts[1:] if anchor < e)
        alive = True
        for k in range(drafts):
            at = anchor + k + 1
            alive = alive and at < end and bool(mask[at])
            assert bool(packed.supervised[row, k]) == alive
            if alive:
                assert int(packed.labels[row, k]) == 3 * at
                assert int(packed.previous[row, k]) == 3 * (at - 1)
                assert int(packed.teacher_rows[row, k]) == at - 1
