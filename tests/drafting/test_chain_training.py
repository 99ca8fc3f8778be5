"""Training-time test against the recorded losses and gradients, and the MTP loss against its plain definition."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from specbench_drafters.eagle3 import Eagle3
from support_drafting import FIXTURES, fixture_view
from torch import Tensor

from specbench.drafting.chain_attention import causal_slots
from specbench.drafting.ttt import UnrolledAttend, eagle3_loss, eagle3_masks, mtp_loss, mtp_weights, shift_left, unroll
from specbench.errors import ConfigError


@cache
def batch() -> dict[str, Tensor]:
    found = load_file(FIXTURES / "losses.safetensors")
    hidden = torch.cat([found[f"batch.layer{i}_hidden_states"] for i in range(5)], dim=-1)
    return {
        "features": hidden,
        "token_ids": found["batch.input_ids"].long(),
        "loss_mask": found["batch.loss_mask"],
        "lengths": found["batch.attention_mask"].long().sum(dim=1),
        "teacher_hidden": found["batch.target_last_hidden_states"],
        **{name: tensor for name, tensor in found.items() if name.startswith("eagle3.")},
    }


def inputs(*names: str) -> dict[str, Tensor]:
    return {name: batch()[name] for name in names}


@cache
def record() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FIXTURES / "losses.json").read_text())["eagle3"][0]
    return found


def model() -> Any:
    built = Eagle3.load(FIXTURES / "eagle3", target=fixture_view(), options={}).model
    for name, parameter in built.named_parameters():
        parameter.requires_grad_(name not in record()["frozen"])
    return built


def recorded_loss(drafter: Any) -> Any:
    names = ("features", "token_ids", "loss_mask", "lengths", "teacher_hidden")
    return eagle3_loss(drafter, **inputs(*names), teacher_head=drafter.lm_head, steps=5)  # type: ignore[arg-type]


def test_recorded_masks_and_states() -> None:
    masks = eagle3_masks(batch()["loss_mask"], batch()["lengths"], steps=5)
    assert [m.long().tolist() for m in masks] == record()["position_masks"]
    steps = unroll(model(), **inputs("features", "token_ids"), steps=5)
    for step, (output, _) in enumerate(steps):
        wanted = batch()[f"eagle3.step{step}_hidden_states"]
        torch.testing.assert_close(output[masks[step]], wanted[masks[step]], atol=1e-4, rtol=0)


def test_recorded_losses_and_gradients() -> None:
    drafter = model()
    found = recorded_loss(drafter)
    assert found.steps.tolist() == pytest.approx(record()["step_losses"], abs=1e-5)
    assert found.total.item() == pytest.approx(record()["total"], abs=1e-5)
    metrics = record()["metrics"]
    for step in range(5):
        assert int(found.judged[step]) == metrics[f"train/valid_tokens@{step}"]
        assert float(found.agreement[step]) == pytest.approx(metrics[f"train/accuracy@{step}"], abs=1e-5)
        assert float(found.overlap[step]) == pytest.approx(metrics[f"train/accept_rate@{step}"], abs=1e-5)
    found.total.backward()
    norms = record()["parameter_grad_norms"]
    seen = {name: p.grad for name, p in drafter.named_parameters() if p.requires_grad}
    assert set(seen) == set(norms)
    for name, gradient in seen.items():
        torch.testing.assert_close(gradient, batch()[f"eagle3.grad.{name}"], atol=1e-5, rtol=0)
        assert float(gradient.norm()) == pytest.approx(norms[name], rel=1e-4)
    total = torch.stack([g.norm() for g in seen.values()]).norm()
    assert float(total) == pytest.approx(record()["total_grad_norm"], rel=1e-4)


def test_unrolled_step_is_a_round_of_drafting() -> None:
    """Index i of step s is what a cached round computes after i + 1 committed pairs: same keys, same result."""
    torch.manual_seed(0)
    length, steps, window = 9, 4, 5
    for band in (None, window):
        attend = UnrolledAttend()
        calls = [[torch.randn(1, length, heads, 8) for heads in (4, 2, 2)] for _ in range(steps)]
        outputs = [attend(0, *call, scaling=0.3, window=band) for call in calls]
        for step in range(steps):
            for i in range(length):
                keys = torch.cat([calls[0][1][:, : i + 1], *(c[1][:, i : i + 1] for c in calls[1 : step + 1])], dim=1)
                values = torch.cat([calls[0][2][:, : i + 1], *(c[2][:, i : i + 1] for c in calls[1 : step + 1])], dim=1)
                query = calls[step][0][:, i : i + 1]
                last = torch.tensor([[keys.shape[1] - 1]])
                wanted = causal_slots(query, keys, values, index=last, scaling=0.3, window=band)
                torch.testing.assert_close(outputs[step][:, i : i + 1], wanted, atol=1e-5, rtol=0)


def test_positions_without_loss_do_not_matter() -> None:
    drafter = model()
    wanted = recorded_loss(drafter)
    changed = batch()["token_ids"].clone()
    changed[1, 29:] = 17  # padding of the second row
    names = ("features", "loss_mask", "lengths", "teacher_hidden")
    found = eagle3_loss(drafter, **inputs(*names), token_ids=changed, teacher_head=drafter.lm_head, steps=5)  # type: ignore[arg-type]
    torch.testing.assert_close(found.steps, wanted.steps)


def test_reduced_vocabulary_renormalises_and_skips_what_it_cannot_name() -> None:
    drafter = model()
    ids = torch.arange(0, 320, 2)
    full_head = drafter.lm_head.weight.detach()
    small = torch.nn.Linear(64, 160, bias=False)
    small.weight.data = full_head[ids].clone()
    drafter.lm_head = small
    head = torch.nn.functional.linear
    names = ("features", "token_ids", "loss_mask", "lengths", "teacher_hidden")
    found = eagle3_loss(
        drafter,
        **inputs(*names),
        teacher_head=lambda h: head(h, full_head),
        steps=2,
        id_map=ids,  # type: ignore[arg-type]
    )
    masks = eagle3_masks(batch()["loss_mask"], batch()["lengths"], steps=2)
    for step, (_, normed) in enumerate(unroll(drafter, **inputs("features", "token_ids"), steps=2)):
        total, judged = 0.0, 0
        for n, t in masks[step].nonzero().tolist():
            teacher = head(batch()["teacher_hidden"][n, t + step + 1], full_head)
            if int(teacher.argmax()) % 2:
                continue
            truth = torch.softmax(teacher, -1)[ids]
            truth = truth / truth.sum()
            total -= (truth * torch.log_softmax(drafter.logits(normed[n, t]), -1)).sum().item()
            judged += 1
        assert int(found.judged[step]) == judged < 31
        assert float(found.steps[step]) == pytest.approx(total / 72, abs=1e-5)


@pytest.mark.parametrize("soft", [False, True])
def test_mtp_loss_is_its_definition(soft: bool) -> None:
    drafter = model()
    weights = mtp_weights(3)
    assert weights == pytest.approx([0.5102, 0.3061, 0.1837], abs=1e-4)
    teacher = {"teacher_hidden": batch()["teacher_hidden"], "teacher_head": drafter.lm_head} if soft else {}
    names = ("features", "token_ids", "loss_mask", "lengths")
    found = mtp_loss(drafter, **inputs(*names), weights=weights, **teacher)  # type: ignore[arg-type]
    tokens, mask, lengths = batch()["token_ids"], batch()["loss_mask"], batch()["lengths"]
    total = 0.0
    for step, (_, normed) in enumerate(unroll(drafter, **inputs("features", "token_ids"), steps=3)):
        losses = []
        for n in range(2):
            for t in range(36):
                label = t + 2 + step
                if label >= int(lengths[n]) or not mask[n, label]:
                    continue
                log_draft = torch.log_softmax(drafter.logits(normed[n, t]), dim=-1)
                if soft:
                    truth = torch.softmax(drafter.lm_head(batch()["teacher_hidden"][n, label - 1]), dim=-1)
                    losses.append(-float((truth * log_draft).sum()))
                else:
                    losses.append(-float(log_draft[tokens[n, label]]))
        assert int(found.judged[step]) == len(losses) > 20
        assert float(found.steps[step]) == pytest.approx(sum(losses) / len(losses), abs=1e-5)
        total += weights[step] * sum(losses) / len(losses)
    assert found.total.item() == pytest.approx(total, abs=1e-5)
    assert (found.overlap is not None) == soft
    found.total.backward()
    assert all(p.grad is not None for name, p in drafter.named_parameters() if p.requires_grad)


def test_mtp_loss_with_nothing_to_judge_is_zero() -> None:
    drafter = model()
    names = ("features", "token_ids", "lengths")
    nothing = torch.zeros_like(batch()["loss_mask"])
    found = mtp_loss(drafter, **inputs(*names), loss_mask=nothing, weights=[1.0])  # type: ignore[arg-type]
    assert found.total.item() == 0.0
    assert int(found.judged[0]) == 0


def test_models_whose_layers_take_turns_are_not_unrolled() -> None:
    drafter = model()
    drafter.num_depths = 2
    with pytest.raises(ConfigError, match="2 in turn"):
        list(unroll(drafter, **inputs("features", "token_ids"), steps=1))


def test_shift_left_fills_with_zeros() -> None:
    x = torch.arange(1, 7).view(2, 3)
    assert shift_left(x, 1).tolist() == [[2, 3, 0], [5, 6, 0]]
    assert shift_left(x, 3).tolist() == [[0, 0, 0], [0, 0, 0]]
    assert shift_left(x, 9).tolist() == [[0, 0, 0], [0, 0, 0]]
