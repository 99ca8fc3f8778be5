"""Training of sequential drafters: the round is unrolled over a whole sequence at once (training-time test).

Step s of every position continues from that position's own output of step s - 1, so the drafter learns from the states
that it will feed itself (EAGLE-3, arXiv 2503.01840, section 3.2; for multi-token prediction FastMTP, arXiv 2509.18362).
The attention of step s is that of a round: the pairs of step 0 causally, then the position's own later pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from specbench.drafting.chain import ChainModel
from specbench.errors import ConfigError

Head = Callable[[Tensor], Tensor]  # [M, d] to [M, V]


@dataclass(frozen=True, slots=True)
class ChainLoss:
    """``total`` to minimise, and per step: the loss, judged positions, and how often and how far both agree.

    ``agreement[s]``: share of judged positions whose draft argmax is the label (soft targets: the teacher's argmax).
    ``overlap[s]``: mean over them of sum min(p, q), the chance that a sampled draft is accepted; None with hard labels.
    """

    total: Tensor  # []
    steps: Tensor  # [S]
    judged: Tensor  # [S] int64
    agreement: Tensor  # [S]
    overlap: Tensor | None  # [S]


class UnrolledAttend:
    """Attention over whole sequences [N, T], step after step; differentiable (see `chain_attention.Attend`).

    The first call of a layer is step 0. Padding belongs on the right, where no earlier query sees it.
    """

    def __init__(self) -> None:
        self._kept: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def __call__(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scaling: float,
        window: int | None = None,
        only: Tensor | None = None,
    ) -> Tensor:
        """[N, T, H, dv]."""
        assert only is None, "training needs the output of every position"
        kept = self._kept.setdefault(layer, [])
        kept.append((key, value))
        keys, values = kept[0]
        length = query.shape[1]
        visible = torch.ones(length, length, dtype=torch.bool, device=query.device).tril()
        if window is not None:
            # Step s stands s positions further on, so its window has moved by as much.
            visible = visible.triu(len(kept) - window)
        if len(kept) == 1:
            return scaled_dot_product_attention(
                query.transpose(1, 2),
                keys.transpose(1, 2),
                values.transpose(1, 2),
                attn_mask=visible,
                scale=scaling,
                enable_gqa=True,
            ).transpose(1, 2)
        grouped = query.reshape(*query.shape[:2], keys.shape[2], -1, query.shape[-1])  # [N, T, Hkv, g, dk]
        first = torch.einsum("nikgd,njkd->nkgij", grouped, keys).masked_fill(~visible, -torch.inf)
        own = torch.stack([torch.einsum("nikgd,nikd->nkgi", grouped, k) for k, _ in kept[1:]], dim=-1)
        scores = torch.cat((first, own), dim=-1).to(torch.float32) * scaling  # [N, Hkv, g, T, T + s]
        shares = torch.softmax(scores, dim=-1).to(query.dtype)
        out = torch.einsum("nkgij,njkd->nikgd", shares[..., :length], values)
        for step, (_, later) in enumerate(kept[1:]):
            out = out + torch.einsum("nkgi,nikd->nikgd", shares[..., length + step], later)
        return out.flatten(2, 3)


def unroll(model: ChainModel, *, features: Tensor, token_ids: Tensor, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Layer outputs and what the head reads, both [N, T, d], step by step.

    Args:
        features: [N, T, D] tapped states of the target. token_ids: [N, T], right-padded.

    Index i of step s predicts token i + 2 + s. Errors: ConfigError for a model whose layers take turns.
    """
    check_one_depth(model)
    attend = UnrolledAttend()
    hidden = model.start(features)
    positions = torch.arange(token_ids.shape[1], device=token_ids.device).expand_as(token_ids)
    for step in range(steps):
        tokens = shift_left(token_ids, step + 1)
        output = model.step(hidden, tokens, positions + step, attend=attend)
        normed, hidden = model.finish(output)
        yield output, normed


def check_one_depth(model: ChainModel) -> None:
    """Errors: ConfigError for a model whose layers take turns over the steps, which training does not unroll."""
    if model.num_depths != 1:
        raise ConfigError(f"training unrolls one layer over all steps; this drafter has {model.num_depths} in turn")


def shift_left(x: Tensor, by: int) -> Tensor:
    """``x`` [N, T] moved ``by`` places to the left, zeros (False) coming in from the right."""
    moved = torch.zeros_like(x)
    if by < x.shape[1]:
        moved[:, : x.shape[1] - by] = x[:, by:]
    return moved


def eagle3_masks(loss_mask: Tensor, lengths: Tensor, *, steps: int) -> list[Tensor]:
    """Which positions each step is judged at, [N, T] bool a step, as DeepSpec counts them.

    ``loss_mask`` [N, T] marks the tokens to learn, ``lengths`` [N] the real ones. The last real token has no
    teacher row after it; each further step needs one row more.
    """
    index = torch.arange(loss_mask.shape[1], device=loss_mask.device)
    first = loss_mask.bool() & (index < lengths[:, None] - 1)
    return [shift_left(first, step) for step in range(steps)]


def eagle3_loss(
    model: ChainModel,
    *,
    features: Tensor,
    token_ids: Tensor,
    loss_mask: Tensor,
    lengths: Tensor,
    teacher_hidden: Tensor,
    teacher_head: Head,
    steps: int = 7,
    decay: float = 0.8,
    id_map: Tensor | None = None,
) -> ChainLoss:
    """sum_s decay^s * (soft cross entropy of step s summed over its judged positions) / (N * T).

    The divisor counts prompt and padding too, which is the reference's choice (deepseek-ai/DeepSpec) and makes learning
    rates comparable. With a reduced draft vocabulary ``id_map`` [Vd] the teacher is restricted to it and renormalised,
    and positions whose teacher argmax lies outside are not judged (SafeAILab/EAGLE).

    Args:
        features: [N, T, D]; token_ids, loss_mask: [N, T]; lengths: [N].
        teacher_hidden: [N, T, d_t] the target's states after its final norm; teacher_head gives their logits.
    """
    masks = eagle3_masks(loss_mask, lengths, steps=steps)
    parts = []
    for step, (_, normed) in enumerate(unroll(model, features=features, token_ids=token_ids, steps=steps)):
        row, index = masks[step].nonzero(as_tuple=True)
        soft = _teacher_rows(teacher_hidden, teacher_head, row, index + step + 1)
        if id_map is not None:
            nameable = torch.isin(soft.argmax(dim=-1), id_map)
            row, index, soft = row[nameable], index[nameable], soft[nameable][:, id_map]
        parts.append(_soft_part(model.logits(normed[row, index]), soft))
    sums, judged, agreement, overlap = (torch.stack(column) for column in zip(*parts, strict=True))
    losses = sums / token_ids.numel()
    weights = decay ** torch.arange(steps, device=losses.device, dtype=losses.dtype)
    return ChainLoss((weights * losses).sum(), losses, judged, agreement, overlap)


def mtp_weights(steps: int, *, beta: float = 0.6) -> list[float]:
    """Step weights beta^s / sum_j beta^j (FastMTP, arXiv 2509.18362: beta 0.6 and three steps give .51 .31 .18)."""
    raw = [beta**step for step in range(steps)]
    return [weight / sum(raw) for weight in raw]


def mtp_loss(
    model: ChainModel,
    *,
    features: Tensor,
    token_ids: Tensor,
    loss_mask: Tensor,
    lengths: Tensor,
    weights: Sequence[float],
    teacher_hidden: Tensor | None = None,
    teacher_head: Head | None = None,
    id_map: Tensor | None = None,
) -> ChainLoss:
    """sum_s weights[s] * (mean cross entropy of step s over its judged positions).

    Index i of step s is judged where token i + 2 + s is real and marked in ``loss_mask`` [N, T]. The label is that
    token, or with a teacher its distribution for that token (row i + 1 + s of ``teacher_hidden`` [N, T, d_t]).
    With ``id_map`` [Vd] only labels that the draft vocabulary can name are judged. A step with nothing to judge is 0.
    """
    steps = len(weights)
    index = torch.arange(token_ids.shape[1], device=token_ids.device)
    learn = loss_mask.bool() & (index < lengths[:, None])
    parts = []
    for step, (_, normed) in enumerate(unroll(model, features=features, token_ids=token_ids, steps=steps)):
        row, at = shift_left(learn, step + 2).nonzero(as_tuple=True)
        if teacher_hidden is None or teacher_head is None:
            labels = token_ids[row, at + step + 2]
            soft = None
        else:
            soft = _teacher_rows(teacher_hidden, teacher_head, row, at + step + 1)
            labels = soft.argmax(dim=-1)
        if id_map is not None:
            nameable = torch.isin(labels, id_map)
            row, at, labels = row[nameable], at[nameable], torch.searchsorted(id_map, labels[nameable])
            soft = None if soft is None else soft[nameable][:, id_map]
        logits = model.logits(normed[row, at])
        parts.append(_hard_part(logits, labels) if soft is None else _soft_part(logits, soft))
    sums, judged, agreement, overlap = (torch.stack(column) for column in zip(*parts, strict=True))
    losses = sums / judged.clamp(min=1)
    total = (losses * torch.tensor(weights, device=losses.device, dtype=losses.dtype)).sum()
    return ChainLoss(total, losses, judged, agreement, None if teacher_hidden is None else overlap)


def _teacher_rows(hidden: Tensor, head: Head, row: Tensor, index: Tensor) -> Tensor:
    """Teacher logits [M, V] float32, without gradient, of the positions that are judged and no others."""
    with torch.no_grad():
        return head(hidden[row, index]).to(torch.float32)


def _soft_part(logits: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Summed cross entropy against the teacher's distribution, count, agreement and overlap."""
    logits = logits.to(torch.float32)
    truth = torch.softmax(teacher, dim=-1)  # [M, Vd]
    log_draft = torch.log_softmax(logits, dim=-1)
    loss = -(truth * log_draft).sum()
    with torch.no_grad():
        count = loss.new_tensor(logits.shape[0], dtype=torch.int64)
        agreement = (logits.argmax(dim=-1) == teacher.argmax(dim=-1)).float().sum() / count.clamp(min=1)
        overlap = torch.minimum(truth, log_draft.exp()).sum() / count.clamp(min=1)
    return loss, count, agreement, overlap


def _hard_part(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Summed cross entropy against labels [M], count, agreement; the overlap is not known."""
    logits = logits.to(torch.float32)
    loss = cross_entropy(logits, labels, reduction="sum")
    with torch.no_grad():
        count = loss.new_tensor(logits.shape[0], dtype=torch.int64)
        agreement = (logits.argmax(dim=-1) == labels).float().sum() / count.clamp(min=1)
    return loss, count, agreement, torch.full_like(agreement, torch.nan)
