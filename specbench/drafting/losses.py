"""Training losses of drafters: block losses of DSpark and DFlash, step losses of EAGLE-3 and MTP.

Block losses (deepseek-ai/DeepSpec): position k of a block weighs exp(-k / decay); each term is
sum(w x) / (sum(w) + 1e-6) over the whole global batch, so numerators and denominators are kept apart and can be added
over chunks and ranks before they are divided.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn import functional

_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class BlockLossWeights:
    """Shares of the terms, and ``decay`` of the position weights (None: all positions weigh alike).

    The defaults are DSpark's. DFlash is cross-entropy alone: ``BlockLossWeights(ce=1, tv=0, confidence=0)``.
    """

    ce: float = 0.1
    tv: float = 0.9
    confidence: float = 1.0
    decay: float | None = 4.0


@dataclass(frozen=True, slots=True)
class BlockSums:
    """Numerators and denominators of the terms, all scalars; `__add__` joins chunks.

    ``accept`` and ``accept_count`` [G] sum the analytic acceptance rate and the supervised positions;
    ``tau`` and ``blocks`` sum the expected tokens a round over blocks with a supervised position. No gradient in these.
    """

    ce: Tensor
    ce_weight: Tensor
    tv: Tensor
    tv_weight: Tensor
    confidence: Tensor
    confidence_weight: Tensor
    accept: Tensor
    accept_count: Tensor
    tau: Tensor
    blocks: Tensor

    def __add__(self, other: BlockSums) -> BlockSums:
        return BlockSums(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def total(self, weights: BlockLossWeights) -> Tensor:
        """The loss: the weighted sum of the averaged terms."""
        return (
            weights.ce * self.ce / (self.ce_weight + _EPS)
            + weights.tv * self.tv / (self.tv_weight + _EPS)
            + weights.confidence * self.confidence / (self.confidence_weight + _EPS)
        )

    def accept_rates(self) -> Tensor:
        """Mean analytic acceptance rate [G] by position; NaN where a position was never supervised."""
        return self.accept / self.accept_count

    def expected_tau(self) -> Tensor:
        """Mean over blocks of 1 + sum over k of the product of acceptance rates up to k."""
        return self.tau / self.blocks


def block_loss_sums(
    logits: Tensor,
    *,
    labels: Tensor,
    supervised: Tensor,
    teacher_logits: Tensor,
    weights: BlockLossWeights,
    confidence_logits: Tensor | None = None,
    id_map: Tensor | None = None,
) -> BlockSums:
    """Sums of the block loss over N blocks of G predictions.

    Args:
        logits: [N, G, Vd] draft logits with the sequential head's bias.
        labels, supervised: [N, G], see `PackedBlocks`.
        teacher_logits: [N, G, V] target logits that predict the labels; no gradient flows into them.
        weights: which terms are computed, and the position weights.
        confidence_logits: [N, G]; needed where its weight is not 0. Trained to the analytic acceptance rate
            1 - 0.5 * ||q - p||_1, which is not differentiated.
        id_map: [Vd] of a reduced vocabulary. The target's mass outside counts fully in the distance; a label outside
            has no cross-entropy and leaves both sums of that term.
    """
    draft_log = torch.log_softmax(logits.to(torch.float32), dim=-1)
    weight = _position_weights(supervised, weights.decay)
    nothing = logits.new_zeros((), dtype=torch.float32)
    ce, ce_weight, tv, tv_weight, conf, conf_weight = (nothing,) * 6
    if weights.ce:
        ce, ce_weight = _cross_entropy(draft_log, labels, weight, id_map)
    distance = _distance(draft_log, teacher_logits.detach(), id_map)  # [N, G]
    if weights.tv:
        tv, tv_weight = (weight * distance).sum(), weight.sum()
    accept = (1 - 0.5 * distance.detach()).clamp(0, 1)
    if weights.confidence:
        assert confidence_logits is not None, "a confidence term needs the head's logits"
        bce = functional.binary_cross_entropy_with_logits(confidence_logits.to(torch.float32), accept, reduction="none")
        conf, conf_weight = (weight * bce).sum(), weight.sum()
    kept = supervised.to(torch.float32)
    used = kept.amax(dim=1)  # [N]
    return BlockSums(
        ce=ce,
        ce_weight=ce_weight,
        tv=tv,
        tv_weight=tv_weight,
        confidence=conf,
        confidence_weight=conf_weight,
        accept=(accept * kept).sum(dim=0),
        accept_count=kept.sum(dim=0),
        tau=(used * (1 + (accept * kept).cumprod(dim=1).sum(dim=1))).sum(),
        blocks=used.sum(),
    )


def _position_weights(supervised: Tensor, decay: float | None) -> Tensor:
    """exp(-k / decay) where supervised: [N, G] float32."""
    weight = supervised.to(torch.float32)
    if decay is None:
        return weight
    return weight * torch.exp(-torch.arange(supervised.shape[1], device=supervised.device) / decay)


def _cross_entropy(draft_log: Tensor, labels: Tensor, weight: Tensor, id_map: Tensor | None) -> tuple[Tensor, Tensor]:
    if id_map is not None:
        slot = torch.searchsorted(id_map, labels).clamp(max=id_map.shape[0] - 1)
        weight = weight * (id_map[slot] == labels)
        labels = slot
    nll = -draft_log.gather(-1, labels[..., None])[..., 0]
    return (weight * nll).sum(), weight.sum()


def _distance(draft_log: Tensor, teacher_logits: Tensor, id_map: Tensor | None) -> Tensor:
    """||q - p||_1 over the target's vocabulary: [N, G]."""
    teacher = torch.softmax(teacher_logits.to(torch.float32), dim=-1)
    if id_map is None:
        return (draft_log.exp() - teacher).abs().sum(dim=-1)
    inside = teacher[..., id_map]
    return (draft_log.exp() - inside).abs().sum(dim=-1) + (1 - inside.sum(dim=-1)).clamp(min=0)


def soft_cross_entropy(logits: Tensor, teacher_logits: Tensor, *, mask: Tensor, normaliser: float) -> Tensor:
    """sum over masked positions of -sum_x p(x) log q(x), divided by ``normaliser``.

    One step of EAGLE-3's training-time test, where the normaliser is batch times length, padding included.
    ``logits`` and ``teacher_logits`` [..., V], ``mask`` [...].
    """
    teacher = torch.softmax(teacher_logits.detach().to(torch.float32), dim=-1)
    each = -(teacher * torch.log_softmax(logits.to(torch.float32), dim=-1)).sum(dim=-1)
    return (each * mask).sum() / normaliser


def decayed_sum(step_losses: Tensor, *, decay: float) -> Tensor:
    """sum over steps s of decay^s * loss[s], for steps trained on their own drafts (EAGLE-3: 0.8)."""
    steps = torch.arange(step_losses.shape[0], device=step_losses.device)
    return (step_losses * decay**steps).sum()
