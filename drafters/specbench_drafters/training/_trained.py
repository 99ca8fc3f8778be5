"""What all trainable drafters share: from packed predictions to the loss, and from weights to a checkpoint."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from specbench.api import Objective, TrainBatch, TrainLoss
from specbench.drafting.packing import PackedBlocks, pack_blocks
from specbench.drafting.token_loss import RowLosses, Rows, Teacher, draft_ids, row_losses
from specbench.types import Taps, TargetView
from specbench_drafters.formats.export import export
from specbench_drafters.formats.record import DrafterSpec, LoadedCheckpoint

_EPS = 1e-6  # as deepseek-ai/DeepSpec has it in its divisors


@dataclass(frozen=True, slots=True)
class Drafted:
    """Predictions of N rounds under given tokens. ``inputs`` [N, G, ...] are what ``logits_of`` makes logits from."""

    inputs: tuple[Tensor, ...]
    logits_of: Callable[..., Tensor]
    shared: tuple[Tensor, ...] = ()
    confidence: Tensor | None = None  # [N, G] logits


class Trained:
    """A `specbench.api.Trainable` around a module whose parameter names are a checkpoint's."""

    def __init__(
        self,
        module: nn.Module,
        *,
        spec: DrafterSpec,
        target: TargetView,
        objective: Objective,
        feature_scale: Tensor | None,
    ) -> None:
        self.module = module
        self.spec = spec
        self.taps = Taps(boundaries=spec.taps, final_norm=spec.tap_final_norm)
        self.drafts = spec.gamma
        self.objective = objective
        self._target_config = target.config
        self._device = target.device
        self._teacher = teacher_of(target, spec.d2t)
        self._scale = feature_scale

    @abstractmethod
    def forward(self, batch: TrainBatch, packed: PackedBlocks, features: Tensor) -> Drafted:
        """Predictions after each anchor; ``features`` [T, D] are float32 and scaled."""

    def packed(self, batch: TrainBatch) -> PackedBlocks:
        """Index tensors of the batch's rounds."""
        return pack_blocks(
            batch.token_ids,
            batch.loss_mask,
            anchors=batch.anchors,
            sequence_starts=batch.sequence_starts_host,
            drafts=batch.drafts,
        )

    def counts(self, batch: TrainBatch) -> Tensor:
        """See `specbench.api.Trainable`."""
        packed = self.packed(batch)
        weights = torch.tensor(self.objective.position_weights[: batch.drafts], dtype=torch.float64)
        known = packed.supervised & (draft_ids(packed.labels, self._teacher.id_map) >= 0)
        judged = torch.stack([m.sum(dim=0).to("cpu", torch.float64) for m in (packed.supervised, known)])  # [2, G]
        if self.objective.average == "steps":
            return judged
        if self.objective.average == "tokens":
            return torch.full_like(judged, float(batch.num_tokens))
        return (judged @ weights)[:, None].expand_as(judged).clone()

    def loss(self, batch: TrainBatch, *, counts: Tensor, judge: bool = False) -> TrainLoss:
        """See `specbench.api.Trainable`."""
        packed = self.packed(batch)
        features = batch.features.to(torch.float32)
        drafted = self.forward(batch, packed, features if self._scale is None else features / self._scale)
        at = packed.supervised.nonzero(as_tuple=True)  # M predictions
        weights = torch.tensor(self.objective.position_weights[: batch.drafts], dtype=torch.float64)
        soft, hard = (weights / (row + _EPS) for row in counts)  # [G]
        soft, hard = (part.to(batch.features.device, torch.float32)[at[1]] for part in (soft, hard))  # [M]
        teacher_rows = packed.teacher_rows[at]
        rows = Rows(
            labels=packed.labels[at],
            teacher_hidden=batch.last_hidden[teacher_rows],
            log_normaliser=batch.log_normaliser[teacher_rows],
            ce=self.objective.ce * hard,
            soft_ce=self.objective.soft_ce * soft,
            tv=self.objective.tv * soft,
            teacher_rows=teacher_rows,
        )
        found = row_losses(
            drafted.logits_of,
            tuple(part[at] for part in drafted.inputs),
            shared=drafted.shared,
            rows=rows,
            teacher=self._teacher,
            renormalise=self.objective.renormalise,
            judge=judge,
        )
        return self._outcome(found, rows, packed, at, drafted.confidence, soft)

    def _outcome(
        self,
        found: RowLosses,
        rows: Rows,
        packed: PackedBlocks,
        at: tuple[Tensor, ...],
        confidence: Tensor | None,
        weight: Tensor,
    ) -> TrainLoss:
        total = found.total
        terms = {
            "ce": (rows.ce @ found.ce) if self.objective.ce else None,
            "soft_ce": (rows.soft_ce @ found.soft_ce) if self.objective.soft_ce else None,
            "tv": (rows.tv @ found.distance) if self.objective.tv else None,
        }
        if self.objective.confidence and confidence is not None:
            logits = confidence[at].to(torch.float32)
            each = functional.binary_cross_entropy_with_logits(logits, found.accept, reduction="none")
            part = self.objective.confidence * (weight @ each)
            total = total + part
            terms["confidence"] = part.detach()

        def spread(values: Tensor | None) -> Tensor | None:
            if values is None:
                return None
            whole = values.new_zeros(packed.supervised.shape)
            whole[at] = values
            return whole

        accept = spread(found.accept)
        assert accept is not None, "acceptance is always computed"
        kept = {name: term for name, term in terms.items() if term is not None}
        return TrainLoss(total, kept, packed.supervised, accept, spread(found.agree), spread(found.named))

    def weights(self) -> dict[str, Tensor]:
        """Tensors of the checkpoint, in float32. What divides the features in training goes into the projection."""
        found = {name: tensor.detach().to("cpu", torch.float32) for name, tensor in self.module.state_dict().items()}
        if self._scale is not None and "fc.weight" in found:
            found["fc.weight"] = found["fc.weight"] / self._scale.to("cpu")
        return found

    def round_to(self, dtype: str) -> None:
        """See `specbench.api.Trainable`."""
        kind = getattr(torch, dtype)
        rounded = {name: tensor.to(kind).to(torch.float32) for name, tensor in self.weights().items()}
        if self._scale is not None and "fc.weight" in rounded:
            rounded["fc.weight"] = rounded["fc.weight"] * self._scale.to("cpu")
        self.module.load_state_dict(rounded)

    def export(self, folder: Path, *, dtype: str) -> Path:
        """See `specbench.api.Trainable`."""
        kind = getattr(torch, dtype)
        tensors = {name: tensor.to(kind).contiguous() for name, tensor in self.weights().items()}
        loaded = LoadedCheckpoint(self.spec, tensors, missing=(), unused=(), path=Path(folder), sha256="")
        return export(loaded, folder, layout="specbench")


def teacher_of(target: TargetView, id_map: Tensor | None) -> Teacher:
    """The target's head as a teacher, over the draft vocabulary ``id_map`` [Vd] or its own."""
    config = target.config.get_text_config()
    weight, bias = target.head.get_parameter("weight").detach(), getattr(target.head, "bias", None)
    bias = None if bias is None else bias.detach()
    scale, softcap = head_shape(config)
    ids = None if id_map is None else id_map.to(weight.device)
    return Teacher(
        weight=weight if ids is None else weight[ids],
        bias=bias if bias is None or ids is None else bias[ids],
        full=lambda hidden: functional.linear(hidden, weight, bias),
        id_map=ids,
        logit_scale=scale,
        softcap=softcap,
    )


def head_shape(config: object) -> tuple[float | None, float | None]:
    """(factor on the logits, soft cap) that a target's own forward applies after its head."""
    multiply, divide = getattr(config, "logit_scale", None), getattr(config, "logits_scaling", None)
    scale = float(multiply) if multiply else (1.0 / float(divide) if divide else None)
    cap = getattr(config, "final_logit_softcapping", None)
    return scale, float(cap) if cap else None


def fresh(module: nn.Module, *, seed: int, std: float = 0.02) -> None:
    """Draw every weight by ``seed`` alone, whatever the layers gave themselves.

    Matrices are normal with ``std``, the projections of the features by their width; biases are zero, and so is W2 of a
    sequential head, which then starts as no bias at all; norms keep their ones.
    """
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.endswith((".bias", "markov_w2.weight")):
                parameter.zero_()
            elif parameter.dim() > 1 or name == "mask_embedding":
                wide = name in ("fc.weight", "input_proj.weight") or name.endswith("markov_w1.weight")
                size = parameter.shape[1] ** -0.5 if wide else std
                parameter.copy_(size * torch.randn(parameter.shape, generator=noise))


def with_head(spec: DrafterSpec, target: TargetView) -> DrafterSpec:
    """The spec with what the target's forward does to its logits, which the borrowed head must do too."""
    scale, softcap = head_shape(target.config.get_text_config())
    return replace(spec, logit_scale=scale, softcap=softcap)
