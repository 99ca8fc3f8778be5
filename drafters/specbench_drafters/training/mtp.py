"""Training of a multi-token-prediction head for a target that ships none: one dense layer over its last state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field
from torch import Tensor, nn

from specbench.drafting.inference import head_rows
from specbench.types import Taps, TargetView
from specbench_drafters.formats.record import DrafterSpec, DraftKind
from specbench_drafters.formats.source import make_spec
from specbench_drafters.mtp.layers import DenseLayers
from specbench_drafters.mtp.model import MtpModel
from specbench_drafters.training._chain import ChainMethod
from specbench_drafters.training._sizes import Layers, backbone


class MtpOptions(Layers):
    """Options of an MTP head; its one layer is used again at every step."""

    layers: Literal[1] = Field(1, description="always one layer, used again at every step")
    block: int = Field(3, ge=1, description="drafts a round that it is trained for")
    recycle: Literal["post_norm", "pre_norm"] = Field("post_norm", description="the state fed to the next step")


class MtpMethod(ChainMethod):
    """FastMTP (arXiv 2509.18362): one head unrolled over several steps."""

    method = "mtp"
    model = MtpOptions

    def taps(self, target: TargetView, *, options: Mapping[str, Any]) -> Taps:
        """See `specbench.api.TrainableMethod`."""
        return Taps(final_norm=True)

    def spec(self, chosen: MtpOptions, target: TargetView, vocabulary: Tensor | None) -> DrafterSpec:
        """See `ChainMethod.spec`."""
        return make_spec(
            kind=DraftKind.MTP,
            layout="specbench",
            backbone=backbone(chosen, target=target),
            vocab_size=target.vocab_size,
            taps=(),
            tap_final_norm=True,
            target_hidden_size=target.hidden_size,
            num_target_layers=target.num_layers,
            gamma=chosen.block,
            recycle=chosen.recycle,
            d2t=None if vocabulary is None else vocabulary.cpu(),
        )

    def network(self, spec: DrafterSpec, target: TargetView) -> nn.Module:
        """See `ChainMethod.network`."""
        return MtpModel(
            spec,
            stack=DenseLayers(spec, output_bias=False, target=target),
            draft_vocab=spec.vocab_size if spec.d2t is None else int(spec.d2t.numel()),
            embed=target.embed,
            head=head_rows(target.head, id_map=spec.d2t),
        )


PLUGIN = MtpMethod()
