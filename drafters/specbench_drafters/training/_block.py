"""Training of block drafters: DFlash, and DSpark with its sequential and confidence heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from specbench.api import Objective, TrainBatch
from specbench.drafting.block_model import BlockConfig, BlockModel
from specbench.drafting.packing import PackedBlocks, packed_hidden
from specbench.errors import ConfigError
from specbench.types import Taps, TargetView
from specbench_drafters.formats.record import DrafterSpec, DraftKind
from specbench_drafters.formats.source import make_spec
from specbench_drafters.training._sizes import TappedLayers, backbone, help_of, read_options, tapped
from specbench_drafters.training._trained import Drafted, Trained, fresh, with_head


class BlockOptions(TappedLayers):
    """Options of DFlash."""

    layers: int = Field(5, ge=1, description="draft layers")
    mask_token: int = Field(ge=0, description="token id whose embedding stands for the positions to fill")
    mask_embedding: bool = Field(False, description="train an embedding for them instead")


class SparkOptions(BlockOptions):
    """Options of DSpark."""

    markov: Literal["vanilla", "gated", "rnn"] = Field("vanilla", description="the sequential head")
    markov_rank: int = Field(256, ge=1, description="its width")
    confidence: Literal["none", "hidden", "hidden+markov"] = Field("hidden+markov", description="what the head reads")


class TrainedBlock(Trained):
    """A block model in training."""

    module: BlockModel

    def forward(self, batch: TrainBatch, packed: PackedBlocks, features: Tensor) -> Drafted:
        """See `Trained.forward`."""
        model = self.module
        hidden = packed_hidden(model, features, packed, drafts=batch.drafts)  # [N, G, d]
        markov, head = model.markov_head, model.confidence_head
        confidence = None
        if head is not None:
            embedded = markov.embed(packed.previous) if markov is not None and head.rank else None
            confidence = head(hidden, embedded)
        if markov is None:
            return Drafted((hidden,), model.logits, confidence=confidence)
        last = markov.markov_w2

        def logits_of(states: Tensor, low: Tensor) -> Tensor:
            bias: Tensor = last(low)
            return model.logits(states) + bias

        return Drafted((hidden, markov.forced_low(hidden, packed.previous)), logits_of, (last.weight,), confidence)


class BlockMethod:
    """A `specbench.api.TrainableMethod` of block drafters."""

    method: ClassVar[str]
    kind: ClassVar[DraftKind]
    model: ClassVar[type[BlockOptions]]

    @property
    def options(self) -> Mapping[str, str]:
        """Accepted options with their help."""
        return help_of(self.model)

    def drafts(self, options: Mapping[str, Any]) -> int:
        """See `specbench.api.TrainableMethod`."""
        return read_options(self.model, options).block

    def taps(self, target: TargetView, *, options: Mapping[str, Any]) -> Taps:
        """See `specbench.api.TrainableMethod`."""
        return Taps(boundaries=tapped(read_options(self.model, options).taps, target=target))

    def build(
        self,
        target: TargetView,
        *,
        options: Mapping[str, Any],
        objective: Objective,
        vocabulary: Tensor | None,
        feature_scale: Tensor | None,
        seed: int,
    ) -> TrainedBlock:
        """See `specbench.api.TrainableMethod`."""
        chosen = read_options(self.model, options)
        if chosen.mask_token >= target.vocab_size:
            raise ConfigError(
                f"the recipe's drafter.mask_token is {chosen.mask_token}; the target has {target.vocab_size} tokens"
            )
        spec = with_head(self._spec(chosen, target, vocabulary), target)
        if objective.confidence and spec.confidence == "none":
            raise ConfigError(
                "the recipe weighs a confidence term, and its drafter has no confidence head; set it to 0"
            )
        model = BlockModel(_config(spec, chosen), max_context=target.max_context, device=target.device)
        model.bind(embed=target.embed, head=target.head, id_map=vocabulary)
        fresh(model, seed=seed)
        return TrainedBlock(
            model.to(target.device), spec=spec, target=target, objective=objective, feature_scale=feature_scale
        )

    def _spec(self, chosen: BlockOptions, target: TargetView, vocabulary: Tensor | None) -> DrafterSpec:
        heads: dict[str, Any] = {}
        if isinstance(chosen, SparkOptions):
            heads = {
                "markov": chosen.markov,
                "markov_rank": chosen.markov_rank,
                "confidence": chosen.confidence,
                "confidence_bias": chosen.confidence != "none",
            }
        return make_spec(
            kind=self.kind,
            layout="specbench",
            backbone=backbone(chosen, target=target),
            vocab_size=target.vocab_size,
            taps=tapped(chosen.taps, target=target),
            target_hidden_size=target.hidden_size,
            num_target_layers=target.num_layers,
            gamma=chosen.block,
            block_inputs=chosen.block,
            mask_token_id=chosen.mask_token,
            d2t=None if vocabulary is None else vocabulary.cpu(),
            **heads,
        )


def _config(spec: DrafterSpec, chosen: BlockOptions) -> BlockConfig:
    return BlockConfig(
        shape=spec.backbone,
        feature_size=len(spec.taps) * spec.target_hidden_size,
        vocab_size=spec.vocab_size,
        draft_size=spec.vocab_size if spec.d2t is None else int(spec.d2t.numel()),
        block_inputs=spec.block_inputs,
        slot_shift=spec.slot_shift,
        mask_token_id=chosen.mask_token,
        stored_embed=False,
        stored_head=False,
        logit_scale=spec.logit_scale,
        softcap=spec.softcap,
        mask_embedding=chosen.mask_embedding,
        markov=spec.markov,
        markov_rank=spec.markov_rank,
        confidence=spec.confidence,
        confidence_bias=spec.confidence_bias,
    )
