"""The exact verifier: one ragged pass over all judged rows of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.engine.random import StepRandom
from specbench.engine.upload import upload
from specbench.kernels.accept import Acceptance, accept_greedy, accept_logits, prefix_length
from specbench.kernels.top import top_two
from specbench.types import DraftLogits, Proposal, Rows


@dataclass(frozen=True, slots=True)
class Judged:
    """Outcome on the host: the cycle's one device-to-host copy."""

    accepted: list[int]  # [B]
    next_token: list[int]  # [B]
    acceptance: Acceptance
    top2_gap: list[list[float]] | None  # per row, at the positions of its committed tokens; greedy steps only
    log_p_target: list[list[float]] | None
    log_p_draft: list[list[float]] | None


class Verifier:
    """Judges drafts against the target's logits.

    ``synthetic`` rates replace the rule (never the cost): draft k is accepted with probability ``synthetic[k]`` given
    that all before it were. Rows measured so are marked and never rank.
    """

    def __init__(self, rng: StepRandom, *, synthetic: Sequence[float] | None = None) -> None:
        self.rng = rng
        self.synthetic = None if synthetic is None else tuple(synthetic)

    def judge(self, logits: Tensor, rows: Rows, *, starts: Tensor, proposal: Proposal, lengths: Tensor) -> Judged:
        """Apply the acceptance rule.

        Args:
            logits: [N, V] of every judged position; row b owns starts[b] .. starts[b] + lengths[b].
            rows: the B judged rows (decode rows, then rows whose prefill just ended, with no drafts).
            proposal: drafts [B, G] of all judged rows (prefill rows hold padding).
            lengths: [B] verified drafts.
        """
        found, gap = self.decide(logits, rows, starts=starts, proposal=proposal, lengths=lengths)
        host = torch.stack([found.accepted, found.next_token]).tolist()
        accepted, next_token = host[0], host[1]
        gaps = None if gap is None else _gaps(gap, starts=starts, accepted=found.accepted, counts=accepted)
        return Judged(accepted, next_token, found, gaps, _listed(found.log_p_target), _listed(found.log_p_draft))

    def decide(
        self,
        logits: Tensor,
        rows: Rows,
        *,
        starts: Tensor,
        proposal: Proposal,
        lengths: Tensor,
        owner: Tensor | None = None,
    ) -> tuple[Acceptance, Tensor | None]:
        """The rule's outcome, and in a greedy step the top-2 gap [N] of every position; nothing comes to the host.

        Arguments as of `judge`. ``owner`` [N] gives the row of each position where some belong to none, and may then
        name any.
        """
        gap = None
        if rows.all_greedy:
            best, gap = top_two(logits)  # [N] each
            found = accept_greedy(best, starts=starts, lengths=lengths, drafts=proposal.tokens)
        else:
            if owner is None:
                owner = _owner(starts, lengths, logits.shape[0])
            found = self._sampled(logits, rows, starts=starts, proposal=proposal, lengths=lengths, owner=owner)
        if self.synthetic is not None:
            found = self._forced(found, logits, rows, starts=starts, lengths=lengths, proposal=proposal)
        return found, gap

    def _sampled(
        self, logits: Tensor, rows: Rows, *, starts: Tensor, proposal: Proposal, lengths: Tensor, owner: Tensor
    ) -> Acceptance:
        return accept_logits(
            logits,
            temperature=rows.temperature[owner],
            top_p=rows.top_p[owner],
            top_k=rows.top_k[owner],
            any_truncated=rows.any_truncated,
            any_greedy=rows.any_greedy,
            starts=starts,
            lengths=lengths,
            drafts=proposal.tokens,
            draft=proposal.draft,
            u_accept=self.rng.accept(rows, proposal.tokens.shape[1]),
            u_next=self.rng.next(rows),
        )

    def _forced(
        self, found: Acceptance, logits: Tensor, rows: Rows, *, starts: Tensor, lengths: Tensor, proposal: Proposal
    ) -> Acceptance:
        """The outcome with forced acceptance; the next token is the target's argmax after the forced prefix."""
        assert self.synthetic is not None
        width = proposal.tokens.shape[1]
        rates = upload(self.synthetic[:width], dtype=torch.float64, device=logits.device)
        rates = torch.nn.functional.pad(rates, (0, width - rates.numel()))
        inside = torch.arange(width, device=logits.device)[None, :] < lengths[:, None]
        accepted = prefix_length(inside & (self.rng.accept(rows, width) < rates))
        next_token = logits[starts + accepted].argmax(dim=-1)
        return Acceptance(accepted, next_token, found.log_p_target, found.log_p_draft)


def pad_proposal(proposal: Proposal | None, *, extra: int, like: Tensor) -> Proposal:
    """``proposal`` with ``extra`` rows without drafts appended (None: no drafts at all; ``like`` [B] gives B)."""
    if proposal is None:
        rows = like.shape[0] + extra
        return Proposal(like.new_zeros(rows, 0), like.new_zeros(rows))
    if extra == 0:
        return proposal
    draft = proposal.draft
    if draft is not None:
        draft = DraftLogits(_extend(draft.logits, extra), _extend(draft.log_normaliser, extra), draft.id_map)
    return Proposal(_extend(proposal.tokens, extra), _extend(proposal.counts, extra), draft, None)


def _extend(tensor: Tensor, extra: int) -> Tensor:
    return torch.cat([tensor, tensor.new_zeros(extra, *tensor.shape[1:])])


def _owner(starts: Tensor, lengths: Tensor, count: int) -> Tensor:
    """[N] int64: which judged row each row of logits belongs to."""
    rows = torch.arange(starts.shape[0], device=starts.device)
    return torch.repeat_interleave(rows, lengths + 1, output_size=count)


def _gaps(gap: Tensor, *, starts: Tensor, accepted: Tensor, counts: list[int]) -> list[list[float]]:
    """Top-2 logit gap at each position that gave a token: positions starts[b] .. starts[b] + accepted[b]."""
    total = sum(counts) + len(counts)
    owner = _owner(starts * 0, accepted, total)
    ends = (accepted + 1).cumsum(0)
    index = starts[owner] + torch.arange(total, device=gap.device) - (ends - accepted - 1)[owner]
    flat = gap[index].tolist()
    out, at = [], 0
    for count in counts:
        out.append(flat[at : at + count + 1])
        at += count + 1
    return out


def _listed(values: Tensor | None) -> list[list[float]] | None:
    found: list[list[float]] | None = None if values is None else values.tolist()
    return found
