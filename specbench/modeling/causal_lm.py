"""A paged, batched forward of any Hugging Face causal LM, without a Hugging Face cache.

The model is called with flat ``input_ids`` [1, T] and ``position_ids`` [1, T]. An attention function registered with
transformers' ``AttentionInterface`` writes keys and values into the pool and attends over the step's page table,
which reaches it as a keyword argument. Layer taps are forward hooks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from specbench.errors import TargetError
from specbench.kernels.attention import paged_attention
from specbench.modeling.cpu_linear import use_cpu_linears
from specbench.modeling.layout import BatchLayout
from specbench.modeling.placement import brought, layer_devices
from specbench.modeling.pool import KVPool, LayerShape
from specbench.types import Taps

ATTENTION = "specbench_paged"


@dataclass(slots=True)
class Pages:
    """What the attention function finds in its keyword argument: the pool and this step's layout.

    With ``pool`` None the call only records key and value shapes (see `PagedLM.layer_shapes`).
    """

    layout: BatchLayout | None
    pool: KVPool | None
    shapes: dict[int, LayerShape]
    moved: dict[torch.device, BatchLayout] = field(default_factory=dict)

    def layout_on(self, device: torch.device) -> BatchLayout:
        """The layout where a layer is: brought there once a step."""
        assert self.layout is not None, "a forward over pages has a layout"
        if device == self.layout.positions.device:
            return self.layout
        if device not in self.moved:
            self.moved[device] = brought(self.layout, device)
        return self.moved[device]


@dataclass(frozen=True, slots=True)
class ForwardOutput:
    """``logits`` [N, V] at the asked positions, ``hidden`` [T, D] at all (D = 0 without taps)."""

    logits: Tensor
    hidden: Tensor


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    specbench_pages: Pages,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention function for transformers: q, k, v are [1, H, T, d]; returns [1, T, H, dv]."""
    if s_aux is not None:
        raise TargetError(f"{type(module).__name__} uses attention sinks, which the engine does not support")
    layer = getattr(module, "layer_idx", None)
    assert isinstance(layer, int), "attention modules of causal LMs carry their layer index"
    pages = specbench_pages
    keys, values = key[0].transpose(0, 1), value[0].transpose(0, 1)  # [T, Hkv, d]
    if pages.pool is None or pages.layout is None:
        pages.shapes[layer] = LayerShape(keys.shape[1], keys.shape[2], values.shape[2])
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[-1]), None
    layout = pages.layout_on(query.device)
    pages.pool.write(layer, layout.write_slots, keys, values)
    out = paged_attention(
        query[0].transpose(0, 1),
        pages.pool.keys[layer],
        pages.pool.values[layer],
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        groups=layout.groups,
        table=layout.table,
        window=sliding_window,
        softcap=softcap,
    )
    return out[None], None


class PagedLM:
    """A causal LM whose forward takes a flat ragged batch. The module passed in is switched to paged attention."""

    def __init__(self, model: Any, *, dtype: torch.dtype | None = None) -> None:
        """``dtype``: what to compute in, where it is not that of the parameters (on a CPU only)."""
        AttentionInterface.register(ATTENTION, _attend)
        self.model = model.eval()
        self.config = model.config.get_text_config()
        _refuse_unsupported(self.config)
        model.set_attn_implementation(ATTENTION)
        self.device: torch.device = model.get_input_embeddings().weight.device
        if self.device.type == "cpu":
            use_cpu_linears(model, keep=[model.get_output_embeddings()], dtype=dtype)
        self.dtype: torch.dtype = next(model.parameters()).dtype
        self.layers = _decoder_layers(model, self.config.num_hidden_layers)
        self.layer_devices = layer_devices(self.layers)
        self.vocab_size = int(model.get_output_embeddings().weight.shape[0])
        self.layer_shapes = self._probe()
        self._taps = Taps()
        self._seen: dict[int | str, Tensor] = {}
        self._hooks: list[Any] = []

    def _probe(self) -> tuple[LayerShape, ...]:
        """Key and value shapes of every layer, read off a forward of one token."""
        pages = Pages(None, None, {})
        zero = torch.zeros(1, 1, dtype=torch.int64, device=self.device)
        with torch.inference_mode():
            self.model(input_ids=zero, position_ids=zero, use_cache=False, specbench_pages=pages)
        count = self.config.num_hidden_layers
        if sorted(pages.shapes) != list(range(count)):
            raise TargetError(
                f"{type(self.model).__name__} ran {len(pages.shapes)} attention layers through the engine's attention, "
                f"but its config names {count} layers; models with other token mixers are not supported"
            )
        return tuple(pages.shapes[i] for i in range(count))

    def set_taps(self, taps: Taps) -> None:
        """Choose which hidden states `forward` returns. Errors: TargetError for a boundary the model does not have."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._taps = [], taps
        bad = [k for k in taps.boundaries if not 0 <= k <= len(self.layers)]
        if bad:
            raise TargetError(f"tap {bad[0]} asked for, but the target has {len(self.layers)} layers (taps 0..n)")
        for k in set(taps.boundaries):
            module = self.model.get_input_embeddings() if k == 0 else self.layers[k - 1]
            # Boundary 0 is the first layer's input, which in some families is not the raw embedding.
            if k == 0:
                self._hooks.append(self.layers[0].register_forward_pre_hook(self._keep_input, with_kwargs=True))
            else:
                self._hooks.append(module.register_forward_hook(self._keeper(k)))
        if taps.final_norm:
            self._hooks.append(self.model.base_model.register_forward_hook(self._keep_final))

    def _keeper(self, key: int) -> Any:
        def keep(_module: nn.Module, _args: Any, output: Any) -> None:
            self._seen[key] = output[0] if isinstance(output, tuple) else output

        return keep

    def _keep_input(self, _module: nn.Module, args: Any, kwargs: Any) -> None:
        self._seen[0] = args[0] if args else kwargs["hidden_states"]

    def _keep_final(self, _module: nn.Module, _args: Any, output: Any) -> None:
        self._seen["final"] = output[0] if isinstance(output, tuple) else output.last_hidden_state

    @torch.inference_mode()
    def forward(
        self, token_ids: Tensor, *, layout: BatchLayout, pool: KVPool, logits_at: Tensor | None
    ) -> ForwardOutput:
        """Run T tokens; keys and values go into ``pool``.

        Args:
            token_ids: [T] int64, flat in the layout's row order.
            logits_at: [N] int64 flat positions whose logits are wanted; None for all T.

        Returns:
            logits [N, V] in the model's dtype, and the tapped hidden states [T, D].
        """
        out = self.model(
            input_ids=token_ids[None],
            position_ids=layout.positions[None],
            use_cache=False,
            logits_to_keep=0 if logits_at is None else logits_at,
            specbench_pages=Pages(layout, pool, {}),
        )
        parts = [self._seen[k][0].to(self.device) for k in self._taps.boundaries]
        if self._taps.final_norm:
            parts.append(self._seen["final"][0].to(self.device))
        logits = out.logits[0].to(self.device)
        hidden = torch.cat(parts, dim=-1) if parts else logits.new_empty(token_ids.shape[0], 0)
        self._seen.clear()
        return ForwardOutput(logits, hidden)


def _decoder_layers(model: Any, count: int) -> nn.ModuleList:
    """The module list of decoder layers: the one of ``count`` entries directly below the base model."""
    for child in model.base_model.children():
        if isinstance(child, nn.ModuleList) and len(child) >= count:
            return child[:count]
    raise TargetError(f"{type(model).__name__} has no list of {count} decoder layers; it is not a plain causal LM")


def _refuse_unsupported(config: Any) -> None:
    """Errors: TargetError for models whose token mixers keep a recurrent state that cannot be rolled back."""
    kinds = set(getattr(config, "layer_types", None) or ())
    odd = sorted(kinds - {"full_attention", "sliding_attention", "chunked_attention"})
    if odd:
        raise TargetError(
            f"model type '{config.model_type}' has {odd[0]} layers, whose state cannot be rolled back after a rejected "
            "draft; use a target with attention layers only"
        )
    if "chunked_attention" in kinds:
        raise TargetError(f"model type '{config.model_type}' has chunked attention layers, which are not supported")
