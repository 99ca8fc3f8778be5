"""Heads on top of a drafted block: the sequential (Markov) head and the confidence head of DSpark.

From the DSpark paper (arXiv 2607.05147) and deepseek-ai/DeepSpec. Each position costs one product [B, r] x [r, Vd] and
nothing else of the vocabulary's size: base logits come from the backbone once for the whole block.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from specbench.errors import CheckpointError

MARKOV_KINDS = ("vanilla", "gated", "rnn")


class MarkovHead(nn.Module):
    """A bias on each position's logits that depends on the token before it, or on all drafted before it (rnn).

    ``markov_w1`` [V, r] is indexed by target ids, ``markov_w2`` [Vd, r] gives biases over the draft vocabulary.
    Errors: CheckpointError for an unknown kind.
    """

    def __init__(self, kind: str, *, vocab_size: int, draft_size: int, hidden_size: int, rank: int) -> None:
        super().__init__()
        if kind not in MARKOV_KINDS:
            raise CheckpointError(f"markov_head_type is '{kind}'; supported: {', '.join(MARKOV_KINDS)}")
        self.kind = kind
        self.rank = rank
        self.markov_w1 = nn.Embedding(vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, draft_size, bias=False)
        if kind == "gated":
            self.gate_proj = nn.Linear(hidden_size + rank, rank)
        if kind == "rnn":
            self.joint_proj = nn.Linear(2 * rank + hidden_size, 3 * rank)

    def start(self, like: Tensor) -> Tensor | None:
        """The state before a block's first prediction, for rows shaped as ``like`` [..., hidden]; None: no state."""
        return like.new_zeros(*like.shape[:-1], self.rank) if self.kind == "rnn" else None

    def embed(self, previous: Tensor) -> Tensor:
        """W1 rows [..., r] of the tokens ``previous`` [...] (target ids)."""
        out: Tensor = self.markov_w1(previous)
        return out

    def step(self, hidden: Tensor, embedded: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Bias logits [..., Vd] at one position, and the state for the next.

        ``hidden`` [..., d] is the backbone's output there, ``embedded`` [..., r] the `embed` of the token before it.
        """
        low, state = self._low(hidden, embedded, state)
        bias: Tensor = self.markov_w2(low)
        return bias, state

    def factor(
        self, hidden: Tensor, previous: Tensor, state: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The rows [B, r] that W2 is multiplied with at one position, as a table and an index into it.

        The index is None where the table holds exactly these rows; last comes the state for the next position.
        ``hidden`` [B, d] and ``previous`` [B] as of `step` and `embed`.
        """
        if self.kind == "vanilla":
            return self.markov_w1.weight, previous, None
        low, state = self._low(hidden, self.embed(previous), state)
        return low, None, state

    def _low(self, hidden: Tensor, embedded: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if self.kind == "vanilla":
            return embedded, None
        if self.kind == "gated":
            return torch.sigmoid(self.gate_proj(torch.cat((hidden, embedded), dim=-1))) * embedded, None
        assert state is not None, "the rnn head carries a state"
        joint = self.joint_proj(torch.cat((state, embedded, hidden), dim=-1))
        gate, candidate, output = joint.chunk(3, dim=-1)
        gate = torch.sigmoid(gate)
        return torch.tanh(output), gate * state + (1 - gate) * torch.tanh(candidate)

    def forced(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """Bias logits [..., G, Vd] of whole blocks under given tokens (training): ``hidden`` [..., G, d],
        ``previous`` [..., G] the token before each position."""
        bias: Tensor = self.markov_w2(self.forced_low(hidden, previous))
        return bias

    def forced_low(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """What `forced` multiplies with W2: [..., G, r]."""
        embedded = self.embed(previous)
        if self.kind != "rnn":
            return self._low(hidden, embedded, None)[0]
        state = self.start(hidden[..., 0, :])
        rows = []
        for k in range(hidden.shape[-2]):
            row, state = self._low(hidden[..., k, :], embedded[..., k, :], state)
            rows.append(row)
        return torch.stack(rows, dim=-2)


class ConfidenceHead(nn.Module):
    """Logit of the probability that a draft is accepted given that those before it were.

    A linear map of the hidden state and, with ``rank`` > 0, of the Markov embedding of the token before.
    """

    def __init__(self, *, hidden_size: int, rank: int, bias: bool) -> None:
        super().__init__()
        self.proj = nn.Linear(hidden_size + rank, 1, bias=bias)
        self.rank = rank

    def forward(self, hidden: Tensor, embedded: Tensor | None) -> Tensor:
        """[...] logits from ``hidden`` [..., d] and ``embedded`` [..., r] (None without the Markov part)."""
        assert (embedded is not None) == (self.rank > 0), "confidence head: Markov input and width disagree"
        out: Tensor = self.proj(hidden if embedded is None else torch.cat((hidden, embedded), dim=-1))
        return out.squeeze(-1)
