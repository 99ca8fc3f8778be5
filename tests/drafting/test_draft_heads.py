"""Sequential and confidence heads: formulas written out, whole blocks against steps, and what a step costs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support_blocks import spread
from torch.utils._python_dispatch import TorchDispatchMode

from specbench.drafting.heads import ConfidenceHead, MarkovHead
from specbench.errors import CheckpointError

V, VD, R, D = 40, 23, 6, 10


def head(kind: str) -> MarkovHead:
    made = MarkovHead(kind, vocab_size=V, draft_size=VD, hidden_size=D, rank=R)
    spread(made)
    return made.requires_grad_(False)


def written_out(made: MarkovHead, hidden: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
    """Bias logits [B, G, VD] from the definitions, position by position."""
    state, rows = torch.zeros(hidden.shape[0], R), []
    for k in range(hidden.shape[1]):
        e, h = made.markov_w1.weight[previous[:, k]], hidden[:, k]
        low = e
        if made.kind == "gated":
            low = e * torch.sigmoid(torch.cat((h, e), -1) @ made.gate_proj.weight.T + made.gate_proj.bias)
        if made.kind == "rnn":
            joint = torch.cat((state, e, h), -1) @ made.joint_proj.weight.T + made.joint_proj.bias
            gate = torch.sigmoid(joint[:, :R])
            state = gate * state + (1 - gate) * torch.tanh(joint[:, R : 2 * R])
            low = torch.tanh(joint[:, 2 * R :])
        rows.append(low @ made.markov_w2.weight.T)
    return torch.stack(rows, 1)


@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn"])
def test_steps_and_whole_blocks_follow_the_formula(kind: str) -> None:
    made, hidden, previous = head(kind), torch.randn(3, 5, D), torch.randint(0, V, (3, 5))
    expected = written_out(made, hidden, previous)
    torch.testing.assert_close(made.forced(hidden, previous), expected)
    state = made.start(hidden[:, 0])
    for k in range(5):
        bias, state = made.step(hidden[:, k], made.embed(previous[:, k]), state)
        torch.testing.assert_close(bias, expected[:, k])


class _Wide(TorchDispatchMode):
    """Counts operations whose result is as wide as the draft vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.dim() and out.shape[-1] == VD:
            self.names.append(func.name().split("::")[1])
        return out


@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn"])
def test_a_step_makes_one_product_of_the_vocabularys_size(kind: str) -> None:
    made, hidden = head(kind), torch.randn(3, D)
    state = made.start(hidden)
    with _Wide() as wide:
        made.step(hidden, made.embed(torch.tensor([1, 2, 3])), state)
    assert [name for name in wide.names if name != "t"] == ["mm"]  # "t" is a view of the weight


def test_confidence_reads_hidden_then_markov() -> None:
    made = ConfidenceHead(hidden_size=D, rank=R, bias=True)
    spread(made)
    hidden, embedded = torch.randn(2, 3, D), torch.randn(2, 3, R)
    found = made(hidden, embedded)
    weight, bias = made.proj.weight[0], made.proj.bias[0]
    torch.testing.assert_close(found, hidden @ weight[:D] + embedded @ weight[D:] + bias)
    plain = ConfidenceHead(hidden_size=D, rank=0, bias=False)
    torch.testing.assert_close(plain(hidden, None), hidden @ plain.proj.weight[0])


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(CheckpointError, match="markov_head_type is 'lstm'"):
        MarkovHead("lstm", vocab_size=V, draft_size=VD, hidden_size=D, rank=R)
