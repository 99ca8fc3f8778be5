"""The families of multi-token-prediction layers: how each combines embedding and hidden state, and what it feeds back.

Concatenation order, zeroing at position 0 and 1+w norms follow the serving engines' model files; which state is fed and
recycled is disputed for some families, so it is the default of a setting (``recycle``, ``taps``) and noted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specbench_drafters.formats.backbone import plain_attention, read_rope
from specbench_drafters.formats.experts import fuse_experts
from specbench_drafters.formats.fields import Fields
from specbench_drafters.formats.record import Backbone, DraftKind
from specbench_drafters.formats.source import Reading, Source, make_spec
from specbench_drafters.formats.taps import target_layers


@dataclass(frozen=True, slots=True)
class Family:
    """Conventions of one family. ``layer_type`` names the layer: a transformers model_type, or a dense one of ours."""

    name: str
    layer_type: str
    concat_order: str = "embedding,hidden"
    zero_embedding_at_position_0: bool = False
    one_plus_norm: bool = False
    note: str = ""


_DISPUTED = "fed and recycled states are normed; sources disagree (--set METHOD.recycle=pre_norm), see --check"
FAMILIES = {
    "deepseek_v3": Family("deepseek_v3", "deepseek_v3", zero_embedding_at_position_0=True, note=_DISPUTED),
    "glm4_moe": Family("glm4_moe", "glm4_moe", zero_embedding_at_position_0=True, note=_DISPUTED),
    "qwen3_next": Family("qwen3_next", "qwen3_next", one_plus_norm=True),
    "qwen3_5": Family("qwen3_5", "qwen3_5_text", one_plus_norm=True),
    "qwen3_5_text": Family("qwen3_5", "qwen3_5_text", one_plus_norm=True),
    "qwen3_5_moe": Family("qwen3_5", "qwen3_5_moe_text", one_plus_norm=True),
    "qwen3_5_moe_text": Family("qwen3_5", "qwen3_5_moe_text", one_plus_norm=True),
    "mimo": Family("mimo", "qwen2", "hidden,embedding", zero_embedding_at_position_0=True, note=_DISPUTED),
}


def family_of(model_type: str, *, source: Source) -> Family:
    """The family of a model type. Errors: CheckpointError for one whose MTP layers are not supported."""
    if model_type not in FAMILIES:
        names = "DeepSeek-V3/R1, GLM-4.5/4.6, Qwen3-Next, Qwen3.5, MiMo"
        raise source.error(f"MTP layers of model type '{model_type}' are not supported; supported: {names}")
    return FAMILIES[model_type]


def read_mtp(source: Source, family: Family, config: Mapping[str, Any], *, layout: str, gamma: int) -> Reading:
    """Spec of MTP layers whose tensors ``source`` already holds under canonical names.

    ``config`` is the complete text configuration of the target. Errors: CheckpointError.
    """
    fields = Fields(config, where=source.where)
    hidden = fields.integer("hidden_size")
    shape = source.shape("input_proj.weight")
    if shape != (hidden, 2 * hidden):
        raise source.error(f"the MTP input projection has shape {list(shape or ())}, expected [{hidden}, {2 * hidden}]")
    backbone = _backbone(source, fields, family)
    if family.note:
        source.notes.append(family.note)
    ready, spare = fuse_experts(source)
    head_from = "checkpoint" if source.has("lm_head.weight") else "target"
    spec = make_spec(
        kind=DraftKind.MTP,
        layout=layout,
        backbone=backbone,
        vocab_size=fields.integer("vocab_size"),
        taps=(),
        tap_final_norm=True,
        target_hidden_size=hidden,
        num_target_layers=target_layers(fields, source) or fields.integer("num_hidden_layers", default=None),
        gamma=gamma,
        embed_from="checkpoint" if source.has("embed_tokens.weight") else "target",
        head_from=head_from,
        one_plus_norm=family.one_plus_norm,
        recycle="post_norm",
        concat_order=family.concat_order,
        zero_embedding_at_position_0=family.zero_embedding_at_position_0,
        notes=tuple(source.notes),
        raw_config=source.folder.config,
        layer_config=dict(config),
    )
    return Reading(spec, dict(source.stored), ready=ready, spare=spare)


def _backbone(source: Source, fields: Fields, family: Family) -> Backbone:
    layers = source.num_layers()
    if layers != 1:
        raise source.error(f"{layers} MTP layers share one input projection; only one layer is supported")
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    rope_dim: int | None = fields.integer("qk_rope_head_dim", default=None)
    plain_dim: int | None = fields.integer("qk_nope_head_dim", default=None)
    latent: int | None = rope_dim + plain_dim if rope_dim and plain_dim else None
    causal, window = plain_attention(layers, causal=True)
    return Backbone(
        family=family.layer_type,
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=fields.integer("num_key_value_heads", default=heads),
        head_dim=latent if latent is not None else fields.integer("head_dim", default=max(1, hidden // heads)),
        intermediate_size=fields.integer(
            "intermediate_size" if fields.has("intermediate_size") else "moe_intermediate_size"
        ),
        norm_eps=fields.number("rms_norm_eps", default=1e-6),
        activation=fields.string("hidden_act", default="silu"),
        attention_bias=source.has("layers.0.self_attn.q_proj.bias"),
        qk_norm=source.has("layers.0.self_attn.q_norm.weight"),
        rope=read_rope(fields, source=source),
        causal=causal,
        window=window,
        max_position=fields.integer("max_position_embeddings", default=None),
    )
