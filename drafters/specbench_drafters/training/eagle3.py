"""Training of EAGLE-3: tapped states combined once, one layer unrolled over the steps of a round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field
from torch import Tensor, nn

from specbench.drafting.inference import head_rows
from specbench.types import Taps, TargetView
from specbench_drafters.eagle3.model import Eagle3Model
from specbench_drafters.formats.record import DrafterSpec, DraftKind
from specbench_drafters.formats.source import make_spec
from specbench_drafters.training._chain import ChainMethod
from specbench_drafters.training._sizes import TappedLayers, backbone, read_options, tapped


class Eagle3Options(TappedLayers):
    """Options of EAGLE-3."""

    recycle: Literal["pre_norm", "post_norm"] = Field("pre_norm", description="the state fed to the next step")


class Eagle3Method(ChainMethod):
    """EAGLE-3 with q/k norms by default, as DeepSpec has it."""

    method = "eagle3"
    model = Eagle3Options

    def taps(self, target: TargetView, *, options: Mapping[str, Any]) -> Taps:
        """See `specbench.api.TrainableMethod`."""
        return Taps(boundaries=tapped(read_options(self.model, options).taps, target=target))

    def spec(self, chosen: Eagle3Options, target: TargetView, vocabulary: Tensor | None) -> DrafterSpec:
        """See `ChainMethod.spec`."""
        return make_spec(
            kind=DraftKind.EAGLE3,
            layout="specbench",
            backbone=backbone(chosen, target=target),
            vocab_size=target.vocab_size,
            taps=tapped(chosen.taps, target=target),
            target_hidden_size=target.hidden_size,
            num_target_layers=target.num_layers,
            gamma=chosen.block,
            recycle=chosen.recycle,
            d2t=None if vocabulary is None else vocabulary.cpu(),
        )

    def network(self, spec: DrafterSpec, target: TargetView) -> nn.Module:
        """See `ChainMethod.network`."""
        return Eagle3Model(
            spec,
            draft_vocab=spec.vocab_size if spec.d2t is None else int(spec.d2t.numel()),
            has_fc=True,
            output_bias=False,
            max_context=target.max_context,
            embed=target.embed,
            head=head_rows(target.head, id_map=spec.d2t),
            device=target.device,
        )


PLUGIN = Eagle3Method()
