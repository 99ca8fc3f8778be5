"""The decoder layer inside an MTP head, behind one call: transformers' own class of a family, or our dense one.

A family layer brings its own attention (also DeepSeek's, whose keys and values differ in width), experts and norms. Its
attention reaches our caches through transformers' ``AttentionInterface``: keyword arguments of a layer are handed
through to the attention function. Angles come from the target's own rotary module.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from specbench.drafting.chain_attention import Attend
from specbench.drafting.chain_layer import ChainLayer
from specbench.drafting.rope import Rotary
from specbench.errors import DrafterError
from specbench.types import TargetView
from specbench_drafters.formats.hf_layers import build_layer
from specbench_drafters.formats.record import DrafterSpec

ATTENTION = "specbench_chain"
_ROLLED_BACK = frozenset({"full_attention", "sliding_attention", "chunked_attention"})


class LayerStack(Protocol):
    """The layers of an MTP head as one list of modules and one way to call them."""

    modules: nn.ModuleList

    def call(self, index: int, x: Tensor, positions: Tensor, *, attend: Attend, only: Tensor | None) -> Tensor:
        """Output [N, T, d] of layer ``index``, or [1, R, d] of the flat tokens ``only``."""
        ...


@dataclass(frozen=True, slots=True)
class _Call:
    """What the attention function finds in its keyword argument."""

    attend: Attend
    layer: int
    only: Tensor | None


class FamilyLayers:
    """Decoder layers of a transformers family."""

    def __init__(self, spec: DrafterSpec, *, sparse: bool, target: TargetView) -> None:
        AttentionInterface.register(ATTENTION, _attention)
        self._rotary = _rotary(target)
        experts = getattr(target.model.config, "_experts_implementation", None) or "eager"
        built = [
            build_layer(spec.backbone.family, spec.layer_config, sparse=sparse) for _ in range(spec.backbone.num_layers)
        ]
        for layer in built:
            for module in layer.modules():
                config: Any = getattr(module, "config", None)
                if config is not None:  # made for this layer alone, so nothing else sees the change
                    config._attn_implementation = ATTENTION
                    config._experts_implementation = experts
        self.modules = nn.ModuleList(built)

    def call(self, index: int, x: Tensor, positions: Tensor, *, attend: Attend, only: Tensor | None) -> Tensor:
        """See `LayerStack`. The class computes every token; attention is spared for those not asked for."""
        found = self.modules[index](
            x,
            position_embeddings=self._rotary(x, positions),
            attention_mask=None,
            position_ids=positions,
            specbench_chain=_Call(attend, index, only),
        )
        out: Tensor = found[0] if isinstance(found, tuple) else found
        return out if only is None else out[:, only]


class DenseLayers:
    """Llama-, Qwen2- or Qwen3-like layers of the sizes that a checkpoint names."""

    def __init__(self, spec: DrafterSpec, *, output_bias: bool, target: TargetView) -> None:
        shape = spec.backbone
        self.modules = nn.ModuleList(
            ChainLayer(shape, index=i, one_plus=spec.one_plus_norm, output_bias=output_bias)
            for i in range(shape.num_layers)
        )
        with torch.device(target.device):  # weights may be built on the meta device; angles are computed now
            self._rotary = Rotary(shape, max_context=target.max_context, device=target.device)

    def call(self, index: int, x: Tensor, positions: Tensor, *, attend: Attend, only: Tensor | None) -> Tensor:
        """See `LayerStack`."""
        tables = self._rotary.tables(positions, dtype=x.dtype)
        out: Tensor = self.modules[index](x, tables, attend=attend, only=only)
        return out


def refuse_recurrent(target: TargetView) -> None:
    """Errors: DrafterError for a target with layers whose state cannot be taken back when a draft is rejected."""
    config = target.config.get_text_config()
    kinds = {str(kind) for kind in getattr(config, "layer_types", None) or ()} - _ROLLED_BACK
    if kinds:
        raise DrafterError(
            f"target '{target.name}' has {sorted(kinds)[0]} layers, whose state cannot be rolled back when a draft is "
            "rejected; MTP needs a target with attention layers only"
        )


def _rotary(target: TargetView) -> Any:
    """The target's rotary module. Errors: DrafterError where it has none."""
    for module in target.model.modules():
        found = getattr(module, "rotary_emb", None)
        if isinstance(found, nn.Module):
            return found
    raise DrafterError(
        f"target '{target.name}' has no rotary embedding, which MTP layers of a model family need; it is another family"
    )


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    specbench_chain: _Call,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention function for transformers: q, k, v are [N, H, T, d]; returns [N, T, H, dv]."""
    if softcap is not None or s_aux is not None:
        raise DrafterError(f"{type(module).__name__} caps its scores or has attention sinks; MTP does not support it")
    call = specbench_chain
    asked = query.transpose(1, 2)  # [N, T, H, d]
    out = call.attend(
        call.layer,
        asked if call.only is None else asked[:, call.only],
        key.transpose(1, 2),
        value.transpose(1, 2),
        scaling=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=sliding_window,
        only=call.only,
    )
    if call.only is None:
        return out, None
    whole = out.new_zeros(*asked.shape[:3], out.shape[-1])
    whole[:, call.only] = out
    return whole, None
