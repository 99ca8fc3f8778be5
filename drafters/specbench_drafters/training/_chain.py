"""Training of sequential drafters: chains of a round after each anchor, on the chain's own states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, cast

from torch import Tensor, nn

from specbench.api import Objective, TrainBatch
from specbench.drafting.chain import ChainModel
from specbench.drafting.packed_chain import chain_hidden
from specbench.drafting.packing import PackedBlocks
from specbench.errors import ConfigError
from specbench.types import TargetView
from specbench_drafters.formats.record import DrafterSpec
from specbench_drafters.training._sizes import Layers, help_of, read_options
from specbench_drafters.training._trained import Drafted, Trained, fresh, with_head


class TrainedChain(Trained):
    """A chain model in training."""

    def packed(self, batch: TrainBatch) -> PackedBlocks:
        """Index tensors of the rounds. The first token of a sequence has no pair before it and anchors nothing."""
        packed = super().packed(batch)
        inside = (packed.positions[packed.anchors] > 0)[:, None]
        return replace(packed, supervised=packed.supervised & inside)

    def forward(self, batch: TrainBatch, packed: PackedBlocks, features: Tensor) -> Drafted:
        """See `Trained.forward`."""
        model = cast("ChainModel", self.module)
        hidden = chain_hidden(model, features, batch.token_ids, packed, drafts=batch.drafts)  # [N, G, d]
        return Drafted((hidden,), model.logits)


class ChainMethod:
    """A `specbench.api.TrainableMethod` of sequential drafters."""

    method: ClassVar[str]
    model: ClassVar[type[Layers]]

    @property
    def options(self) -> Mapping[str, str]:
        """Accepted options with their help."""
        return help_of(self.model)

    def drafts(self, options: Mapping[str, Any]) -> int:
        """See `specbench.api.TrainableMethod`."""
        return read_options(self.model, options).block

    def build(
        self,
        target: TargetView,
        *,
        options: Mapping[str, Any],
        objective: Objective,
        vocabulary: Tensor | None,
        feature_scale: Tensor | None,
        seed: int,
    ) -> TrainedChain:
        """See `specbench.api.TrainableMethod`."""
        if objective.confidence:
            raise ConfigError(f"{self.method} has no confidence head; set the recipe's loss.confidence to 0")
        spec = with_head(self.spec(read_options(self.model, options), target, vocabulary), target)
        module = self.network(spec, target)
        fresh(module, seed=seed)
        return TrainedChain(
            module.to(target.device),
            spec=spec,
            target=target,
            objective=objective,
            feature_scale=feature_scale if hasattr(module, "fc") else None,
        )

    def spec(self, chosen: Any, target: TargetView, vocabulary: Tensor | None) -> DrafterSpec:
        """What the checkpoint will say."""
        raise NotImplementedError

    def network(self, spec: DrafterSpec, target: TargetView) -> nn.Module:
        """The module, its weights still to be drawn."""
        raise NotImplementedError
