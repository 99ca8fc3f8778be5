"""Exact acceptance over ragged rows: greedy comparison, and rejection sampling.

Rejection sampling as in Leviathan et al. 2023 and Chen et al. 2023: draft x at position k is accepted with probability
min(1, p(x) / q(x)); after the first rejection the next token comes from norm(max(p - q, 0)), after none from the
target's distribution one position later. Layout: row b's target logits are rows starts[b] .. starts[b] + lengths[b] of
the flat matrix; row starts[b] + k judges draft k, the last one is the bonus position.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.kernels.dispatch import uses_triton
from specbench.kernels.probs import process_logits
from specbench.kernels.sample import sample_weights
from specbench.types import DraftLogits

_CHUNK_WEIGHTS = 1 << 20
_MIN_MASS = 1e-12  # below this the residual is rounding only: p and q agree, and p itself is drawn from


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What the rule decided, and what it saw. ``log_p_target``/``log_p_draft`` are -inf beyond a row's length."""

    accepted: Tensor  # [B] int64
    next_token: Tensor  # [B] int64
    log_p_target: Tensor | None = None  # [B, G] float32
    log_p_draft: Tensor | None = None  # [B, G] float32


def prefix_length(ok: Tensor) -> Tensor:
    """Length of the leading run of True in each row of ``ok`` [B, G]: [B] int64."""
    return ok.to(torch.int64).cumprod(dim=1).sum(dim=1)


def accept_greedy(best: Tensor, *, starts: Tensor, lengths: Tensor, drafts: Tensor) -> Acceptance:
    """Accept while the draft equals the target's argmax.

    Args:
        best: [T] int64, the target's argmax at every packed position.
        starts, lengths: [B] int64, first packed position and number of verified drafts of each row.
        drafts: [B, G] int64; entries beyond a row's length are ignored.
    """
    if uses_triton(best):
        from specbench.kernels._triton import accept as twin

        return twin.accept_greedy(best, starts=starts, lengths=lengths, drafts=drafts)
    offsets = torch.arange(drafts.shape[1], device=drafts.device)[None, :]  # [1, G]
    inside = offsets < lengths[:, None]
    index = starts[:, None] + torch.minimum(offsets, lengths[:, None])
    accepted = prefix_length(inside & (best[index] == drafts))
    return Acceptance(accepted, best[starts + accepted])


def accept_sampled(
    logits: Tensor,
    log_normaliser: Tensor,
    *,
    starts: Tensor,
    lengths: Tensor,
    drafts: Tensor,
    draft: DraftLogits | None,
    u_accept: Tensor,
    u_next: Tensor,
) -> Acceptance:
    """Rejection sampling against the drafts' own distribution (None: point masses).

    Args:
        logits, log_normaliser: [T, V] and [T] float32 from `process_logits` on the target's logits.
        starts, lengths: [B] int64, as in `accept_greedy`.
        drafts: [B, G] int64.
        draft: what the drafts were sampled from.
        u_accept: [B, G] float64 in [0, 1).
        u_next: [B] float64 in [0, 1).
    """
    if uses_triton(logits):
        from specbench.kernels._triton import accept as twin

        return twin.accept_sampled(
            logits,
            log_normaliser,
            starts=starts,
            lengths=lengths,
            drafts=drafts,
            draft=draft,
            u_accept=u_accept,
            u_next=u_next,
        )
    offsets = torch.arange(drafts.shape[1], device=drafts.device)[None, :]  # [1, G]
    inside = offsets < lengths[:, None]  # [B, G]
    index = starts[:, None] + torch.minimum(offsets, lengths[:, None])  # [B, G]
    safe = drafts.where(inside, torch.zeros_like(drafts))
    log_p = logits[index, safe].double() - log_normaliser[index].double()  # [B, G]
    log_q = torch.zeros_like(log_p) if draft is None else _draft_log_prob(draft, safe, inside)
    ok = inside & (u_accept.log() + log_q < log_p)
    accepted = prefix_length(ok)
    # On a CPU a few rows at a time, so that their float64 weights stay in its cache.
    size = max(1, _CHUNK_WEIGHTS // logits.shape[1]) if logits.device.type == "cpu" else max(len(starts), 1)
    parts = []
    for chunk in torch.split(torch.arange(len(starts), device=starts.device), size):
        row = (starts + accepted)[chunk]  # [b]
        weights = logits[row].double().sub_(log_normaliser[row, None].double()).exp_()  # [b, V]
        if drafts.shape[1] > 0:
            weights = _residual(weights, chunk, drafts=drafts, draft=draft, accepted=accepted, lengths=lengths)
        parts.append(sample_weights(weights, u_next[chunk]))
    hidden = torch.full_like(log_p, -torch.inf)
    return Acceptance(
        accepted,
        torch.cat(parts) if parts else accepted,
        torch.where(inside, log_p, hidden).float(),
        torch.where(inside, log_q, hidden).float(),
    )


def accept_logits(
    logits: Tensor,
    *,
    temperature: Tensor,
    top_p: Tensor,
    top_k: Tensor,
    any_truncated: bool,
    any_greedy: bool,
    starts: Tensor,
    lengths: Tensor,
    drafts: Tensor,
    draft: DraftLogits | None,
    u_accept: Tensor,
    u_next: Tensor,
) -> Acceptance:
    """`process_logits` on the target's logits [T, V] of any float dtype, then `accept_sampled`; arguments as there.

    A device need not write the processed logits.
    """
    if uses_triton(logits):
        from specbench.kernels._triton import accept as twin

        return twin.accept_logits(
            logits,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            any_truncated=any_truncated,
            any_greedy=any_greedy,
            starts=starts,
            lengths=lengths,
            drafts=drafts,
            draft=draft,
            u_accept=u_accept,
            u_next=u_next,
        )
    processed, log_normaliser = process_logits(
        logits,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        any_truncated=any_truncated,
        any_greedy=any_greedy,
    )
    return accept_sampled(
        processed,
        log_normaliser,
        starts=starts,
        lengths=lengths,
        drafts=drafts,
        draft=draft,
        u_accept=u_accept,
        u_next=u_next,
    )


def _draft_log_prob(draft: DraftLogits, tokens: Tensor, inside: Tensor) -> Tensor:
    """log q of target ids ``tokens`` [B, G] float64; an id outside the draft vocabulary was never drafted: asserted."""
    ids = tokens
    if draft.id_map is not None:
        ids = torch.searchsorted(draft.id_map, tokens).clamp(max=draft.id_map.numel() - 1)
    width = draft.logits.shape[1]
    picked = draft.logits[:, : tokens.shape[1]].gather(2, ids[:, :width, None]).squeeze(2)  # [B, G]
    return picked.double() - draft.log_normaliser[:, : tokens.shape[1]].double()


def _residual(
    weights: Tensor, rows: Tensor, *, drafts: Tensor, draft: DraftLogits | None, accepted: Tensor, lengths: Tensor
) -> Tensor:
    """[b, V] float64 for ``rows`` [b] of the batch: max(p - q, 0) where a draft was rejected, else ``weights``, p."""
    at = accepted[rows].clamp(max=drafts.shape[1] - 1)  # [b]
    rejected = (accepted < lengths)[rows]
    if draft is None:
        left = weights.clone()
        left.scatter_(1, drafts[rows, at, None].clamp(0, weights.shape[1] - 1), 0.0)
    else:
        q = (draft.logits[rows, at].double() - draft.log_normaliser[rows, at, None].double()).exp()  # [b, Vd]
        if draft.id_map is None and q.shape[1] == weights.shape[1]:
            left = (weights - q).clamp_(min=0.0)
        else:
            ids = torch.arange(q.shape[1], device=q.device) if draft.id_map is None else draft.id_map
            left = weights.index_add(1, ids, -q).clamp_(min=0.0)
    usable = rejected & (left.sum(dim=1) > _MIN_MASS)
    return torch.where(usable[:, None], left, weights)
