"""Sizes, rotary embedding and attention rules of the draft layers, from configuration and tensor shapes."""

from __future__ import annotations

import math
from typing import Any

from specbench_drafters.formats.fields import Fields
from specbench_drafters.formats.record import Backbone, Rope
from specbench_drafters.formats.source import Source

_ROPE_OWN_KEYS = frozenset({"rope_theta", "partial_rotary_factor", "type", "rope_type"})


def read_rope(fields: Fields, *, source: Source, layer_type: str = "full_attention") -> Rope:
    """Rotary embedding from either spelling: ``rope_parameters`` (transformers 5) or ``rope_theta`` + ``rope_scaling``.

    ``rope_parameters`` may be nested by layer type. Without a base it is 10000, the value that the reference code of
    every format falls back to; this is noted.
    """
    found = fields.mapping("rope_parameters") or {}
    if isinstance(found.get(layer_type), dict):
        found = found[layer_type]
    scaling = found or fields.mapping("rope_scaling") or {}
    inner = Fields(found, *fields.layers, where=fields.where)
    theta = inner.number("rope_theta", default=None)
    if theta is None:
        source.notes.append("rope base 10000: the configuration names none")
        theta = 10000.0
    kind = scaling.get("rope_type", scaling.get("type"))
    extra: dict[str, Any] = {}
    if kind not in (None, "default"):
        extra = {"rope_type": kind} | {key: value for key, value in scaling.items() if key not in _ROPE_OWN_KEYS}
    partial = inner.number("partial_rotary_factor", default=1.0)
    if partial > 1:
        raise source.error(f"config key 'partial_rotary_factor' must be at most 1, found {partial}")
    return Rope(theta=theta, scaling=extra, partial_factor=partial)


def _head_dim(fields: Fields, source: Source, *, heads: int, hidden: int) -> int:
    """``head_dim`` from the configuration or the tensors; derived from the width only where both are silent."""
    norm = source.shape("layers.0.self_attn.q_norm.weight")
    rows = source.shape("layers.0.self_attn.q_proj.weight")
    seen = norm[0] if norm else (rows[0] // heads if rows and rows[0] % heads == 0 else None)
    told = fields.integer("head_dim", default=None)
    if told is None:
        return seen if seen is not None else max(1, hidden // heads)
    if seen is not None and seen != told:
        raise source.error(f"config says head_dim {told}, the attention tensors have {seen}")
    return told


def read_backbone(
    fields: Fields,
    *,
    source: Source,
    family: str,
    causal: tuple[bool, ...],
    window: tuple[int | None, ...],
    eps_default: float = 1e-6,
) -> Backbone:
    """Backbone of ordinary Llama or Qwen3 layers. ``causal`` and ``window`` have one entry a layer.

    q/k norms and attention biases are what the tensors say. Errors: CheckpointError for a missing or wrong size.
    """
    hidden = fields.integer("hidden_size")
    heads = fields.integer("num_attention_heads")
    kv_heads = fields.integer("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise source.error(f"{heads} attention heads are no multiple of {kv_heads} key/value heads")
    layers = source.num_layers()
    told = fields.integer("num_hidden_layers", default=None)
    if told is not None and told != layers:
        source.notes.append(f"{layers} draft layers counted in the tensors; the configuration says {told}")
    bias = source.has("layers.0.self_attn.q_proj.bias")
    if fields.boolean("attention_bias", default=bias) != bias:
        source.notes.append(f"attention {'has' if bias else 'has no'} bias, by the tensors; the configuration differs")
    if not fields.has("rms_norm_eps"):
        source.notes.append(f"norm epsilon {eps_default:g}: the configuration names none")
    return Backbone(
        family=family,
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=_head_dim(fields, source, heads=heads, hidden=hidden),
        intermediate_size=fields.integer("intermediate_size"),
        norm_eps=fields.number("rms_norm_eps", default=eps_default),
        activation=fields.string("hidden_act", default="silu"),
        attention_bias=bias,
        qk_norm=source.has("layers.0.self_attn.q_norm.weight"),
        rope=read_rope(fields, source=source),
        causal=causal,
        window=window,
        max_position=fields.integer("max_position_embeddings", default=None),
    )


def gemma4_backbone(fields: Fields, *, source: Source, causal: tuple[bool, ...]) -> Backbone:
    """Backbone of Gemma4 full-attention layers (DeepSpec's Gemma4 drafters); values are the keys where no v_proj is.

    Their head size and key/value heads are the ``global_*`` ones. Errors: CheckpointError for per-layer inputs or MoE.
    """
    for key, plain in (("enable_moe_block", False), ("hidden_size_per_layer_input", 0)):
        if fields.raw(key) not in (None, plain, 0):
            raise source.error(f"config key '{key}' is {fields.raw(key)!r}; Gemma4 drafters need {plain!r}")
    shared = not source.has("layers.0.self_attn.v_proj.weight")
    if fields.boolean("attention_k_eq_v", default=shared) != shared:
        raise source.error("config key 'attention_k_eq_v' contradicts the tensors about v_proj")
    kv_key = "num_global_key_value_heads" if shared else "num_key_value_heads"
    sizes = {
        "head_dim": fields.integer("global_head_dim", default=None) or fields.integer("head_dim"),
        "num_key_value_heads": fields.integer(kv_key, default=None) or fields.integer("num_key_value_heads"),
        "hidden_act": fields.string("hidden_activation", default=None)
        or fields.string("hidden_act", default="gelu_pytorch_tanh"),
    }
    inner = Fields(sizes, *fields.layers, where=fields.where)
    layers = source.num_layers()
    return read_backbone(inner, source=source, family="gemma4", causal=causal, window=(None,) * layers)


def gemma_embed_scale(hidden_size: int) -> float:
    """Gemma multiplies raw embeddings by the square root of the width."""
    return math.sqrt(hidden_size)


def plain_attention(num_layers: int, *, causal: bool) -> tuple[tuple[bool, ...], tuple[int | None, ...]]:
    """The same rule for every layer, without windows."""
    return (causal,) * num_layers, (None,) * num_layers


def layer_attention(
    fields: Fields, *, source: Source, num_layers: int, explicit: bool | None, sliding_causal: bool
) -> tuple[tuple[bool, ...], tuple[int | None, ...]]:
    """Causality and window of each layer of a drafted block (checkpoint-format facts: newer z-lab repositories).

    ``explicit`` rules all layers where it is not None; otherwise sliding layers follow ``sliding_causal`` and full
    layers are bidirectional. A window counts keys at distance 0..W-1.
    """
    types = fields.strings("layer_types", default=("full_attention",) * num_layers)
    if len(types) < num_layers:
        raise source.error(f"'layer_types' has {len(types)} entries for {num_layers} draft layers")
    unknown = sorted(set(types) - {"full_attention", "sliding_attention"})
    if unknown:
        raise source.error(f"draft layers of type '{unknown[0]}' are not supported; known: full and sliding attention")
    sliding = [kind == "sliding_attention" for kind in types[:num_layers]]
    if any(sliding) and not fields.has("sliding_window"):
        raise source.error("'layer_types' has sliding layers but config.json has no 'sliding_window'")
    width = fields.integer("sliding_window", default=None) if any(sliding) else None
    causal = tuple(explicit if explicit is not None else (slides and sliding_causal) for slides in sliding)
    return causal, tuple(width if slides else None for slides in sliding)
