"""The trainables' own loss, packing and gradients against the recorded batch of the reference."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from specbench_drafters.dflash import DFlash
from specbench_drafters.dspark import PLUGIN as DSpark
from specbench_drafters.eagle3 import Eagle3
from specbench_drafters.formats.load import load_checkpoint
from specbench_drafters.training._block import TrainedBlock
from specbench_drafters.training._chain import TrainedChain
from support_drafting import FIXTURES, fixture_view
from torch import Tensor

from specbench.api import Objective, TrainBatch, TrainLoss

RECORD = json.loads((FIXTURES / "losses.json").read_text())
TENSORS = load_file(FIXTURES / "losses.safetensors")
LENGTHS, STARTS = (36, 29), (0, 36, 65)
BLOCKS = {case["label"]: case for case in RECORD["dspark"]}
EAGLE = RECORD["eagle3"][0]


def flat(name: str) -> Tensor:
    return torch.cat([TENSORS[name][row, :length] for row, length in enumerate(LENGTHS)])


def batch(anchors: list[int], *, taps: tuple[int, ...], drafts: int) -> TrainBatch:
    last = flat("batch.target_last_hidden_states")
    head = fixture_view().head
    return TrainBatch(
        token_ids=flat("batch.input_ids").long(),
        loss_mask=flat("batch.loss_mask").bool(),
        features=torch.cat([flat(f"batch.layer{i}_hidden_states") for i in taps], dim=-1),
        last_hidden=last,
        log_normaliser=head(last).detach().logsumexp(dim=-1),
        anchors=torch.tensor(anchors),
        sequence_starts_host=STARTS,
        drafts=drafts,
        num_tokens=2 * 36,  # the reference divides by its padded batch
    )


def trainable(kind: Any, drafter: Any, name: str, objective: Objective) -> Any:
    spec = load_checkpoint(FIXTURES / name, target_config=fixture_view().config).spec
    model = drafter.load(FIXTURES / name, target=fixture_view(), options={}).model
    for parameter_name, parameter in model.named_parameters():
        parameter.requires_grad_(not parameter_name.startswith(("embed_tokens", "lm_head")))
    return kind(model, spec=spec, target=fixture_view(), objective=objective, feature_scale=None)


def anchors_of(case: dict[str, Any]) -> list[int]:
    pairs = zip(STARTS, case["anchor_positions"], case["block_keep_mask"])
    return [start + a for start, row, keep in pairs for a, kept in zip(row, keep) if kept]


def block_case(label: str) -> tuple[Any, TrainBatch]:
    case = BLOCKS[label]
    config = case["loss_config"]
    objective = Objective(
        ce=config["ce_loss_alpha"],
        soft_ce=0.0,
        tv=config["l1_loss_alpha"],
        confidence=config["confidence_head_alpha"],
        position_weights=tuple(math.exp(-k / (config["loss_decay_gamma"] or math.inf)) for k in range(5)),
    )
    name = case["drafter"]
    made = trainable(TrainedBlock, DSpark if name.startswith("dspark") else DFlash, name, objective)
    return made, batch(anchors_of(case), taps=(0, 2, 4), drafts=5)


@pytest.mark.parametrize("label", list(BLOCKS))
def test_block_losses_and_gradients_equal_the_reference(label: str) -> None:
    case = BLOCKS[label]
    made, whole = block_case(label)
    found = made.loss(whole, counts=made.counts(whole))
    assert float(found.total.detach()) == pytest.approx(case["total"], abs=1e-5)
    config = case["loss_config"]
    for ours, theirs, share in (
        ("ce", "ce_loss", config["ce_loss_alpha"]),
        ("tv", "l1_loss", config["l1_loss_alpha"]),
        ("confidence", "confidence_loss", config["confidence_head_alpha"]),
    ):
        assert (ours in found.terms) == (share > 0)
        if share:
            assert float(found.terms[ours]) == pytest.approx(share * case[theirs], abs=1e-5)
    found.total.backward()
    norms = {}
    for name, parameter in made.module.named_parameters():
        if parameter.requires_grad:
            norms[name] = float(parameter.grad.norm())
            if f"{label}.grad.{name}" in TENSORS:
                torch.testing.assert_close(parameter.grad, TENSORS[f"{label}.grad.{name}"], atol=1e-5, rtol=0)
    assert norms == pytest.approx(case["parameter_grad_norms"], rel=1e-4)
    rates = [case["metrics"][f"train/accept_rate@{k}"] for k in range(5)]
    kept = found.supervised.float()
    assert ((found.accept * kept).sum(0) / kept.sum(0)).tolist() == pytest.approx(rates, abs=1e-5)


def eagle_case() -> tuple[Any, TrainBatch]:
    """The reference judges pairs whose own token is marked, and may judge one that predicts past the end."""
    masks = torch.tensor(EAGLE["position_masks"]).bool()  # [5, 2, 36]

    class Recorded(TrainedChain):
        def packed(self, whole: TrainBatch) -> Any:
            packed = super().packed(whole)
            row = torch.bucketize(whole.anchors, torch.tensor(STARTS[1:]), right=True)
            place = whole.anchors - 1 - torch.tensor(STARTS)[row]
            return replace(packed, supervised=masks[:, row, place].T)

    weights = tuple(0.8**s for s in range(5))
    objective = Objective(0.0, 1.0, 0.0, 0.0, position_weights=weights, average="tokens")
    made = trainable(Recorded, Eagle3, "eagle3", objective)
    any_step = masks.any(dim=0)
    anchors = [start + i + 1 for start, row in zip(STARTS, any_step) for i in row.nonzero()[:, 0].tolist()]
    return made, batch(anchors, taps=(0, 1, 2, 3, 4), drafts=5)


def test_eagle3_losses_and_gradients_equal_the_reference() -> None:
    made, whole = eagle_case()
    found = made.loss(whole, counts=made.counts(whole))
    assert float(found.total.detach()) == pytest.approx(EAGLE["total"], abs=1e-5)
    found.total.backward()
    seen = {name: p.grad for name, p in made.module.named_parameters() if p.requires_grad}
    assert set(seen) == set(EAGLE["parameter_grad_norms"])
    for name, gradient in seen.items():
        torch.testing.assert_close(gradient, TENSORS[f"eagle3.grad.{name}"], atol=1e-5, rtol=0)
    assert found.supervised.sum(dim=0).tolist() == [EAGLE["metrics"][f"train/valid_tokens@{s}"] for s in range(5)]
    accept = (found.accept * found.supervised).sum(dim=0) / found.supervised.sum(dim=0)
    assert accept.tolist() == pytest.approx([EAGLE["metrics"][f"train/accept_rate@{s}"] for s in range(5)], abs=1e-5)


def parts_of(whole: TrainBatch) -> list[TrainBatch]:
    """Each sequence as a batch of its own."""
    found = []
    for start, end in ((0, 36), (36, 65)):
        inside = (whole.anchors >= start) & (whole.anchors < end)
        found.append(
            replace(
                whole,
                token_ids=whole.token_ids[start:end],
                loss_mask=whole.loss_mask[start:end],
                features=whole.features[start:end],
                last_hidden=whole.last_hidden[start:end],
                log_normaliser=whole.log_normaliser[start:end],
                anchors=whole.anchors[inside] - start,
                sequence_starts_host=(0, end - start),
                num_tokens=36,
            )
        )
    return found


@pytest.mark.parametrize("label", list(BLOCKS)[:2])
def test_losses_add_up_over_batches(label: str) -> None:
    made, whole = block_case(label)
    expected = made.loss(whole, counts=made.counts(whole)).total
    pieces = parts_of(whole)
    counts = sum(made.counts(piece) for piece in pieces)
    torch.testing.assert_close(counts, made.counts(whole))
    losses: list[TrainLoss] = [made.loss(piece, counts=counts) for piece in pieces]
    assert sum(float(loss.total.detach()) for loss in losses) == pytest.approx(float(expected.detach()), abs=1e-5)
