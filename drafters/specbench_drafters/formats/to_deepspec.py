"""DeepSpec's configuration of a drafter: a flat copy of Qwen3 or Gemma4 keys with the drafter's own among them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specbench.errors import CheckpointError
from specbench_drafters.formats.backbone import gemma_embed_scale
from specbench_drafters.formats.record import DrafterSpec, DraftKind, LoadedCheckpoint, Rope

_CLASSES = {"qwen3": "Qwen3", "gemma4": "Gemma4"}
_KINDS = (DraftKind.DSPARK, DraftKind.DFLASH, DraftKind.EAGLE3)


def check(loaded: LoadedCheckpoint) -> None:
    """Refuse, before anything is written, what has no place in this layout. Errors: CheckpointError."""
    spec = loaded.spec
    if spec.kind not in _KINDS:
        raise CheckpointError(f"layout 'deepspec' has no {spec.kind} drafters; known: dspark, dflash, eagle3")
    if spec.d2t is not None:
        raise CheckpointError(
            f"layout 'deepspec' needs the full vocabulary, this drafter has {spec.d2t.numel()} of {spec.vocab_size} "
            "tokens; export to speculators instead"
        )
    if spec.backbone.family not in _CLASSES:
        raise CheckpointError(
            f"layout 'deepspec' has Qwen3 and Gemma4 layers only, this drafter has {spec.backbone.family} layers; "
            "export to speculators instead"
        )
    if spec.kind == DraftKind.EAGLE3 and len(spec.taps) != 5:
        raise CheckpointError(f"layout 'deepspec' has EAGLE-3 with five taps only, this drafter has {len(spec.taps)}")
    if spec.num_target_layers is None:
        raise CheckpointError("layout 'deepspec' states the target's depth: pass the target (--target)")
    if spec.num_target_layers in spec.taps or not spec.taps or spec.tap_final_norm:
        raise CheckpointError("layout 'deepspec' cannot tap the target's last layer, which this drafter reads")


def embed_scale(spec: DrafterSpec) -> float | None:
    """The factor that goes with raw embedding rows of the target's family."""
    return gemma_embed_scale(spec.backbone.hidden_size) if spec.backbone.family == "gemma4" else None


def rope_parameters(rope: Rope) -> dict[str, Any]:
    """transformers 5's dictionary."""
    found: dict[str, Any] = {"rope_type": "default", **rope.scaling, "rope_theta": rope.theta}
    if rope.partial_factor != 1.0:
        found["partial_rotary_factor"] = rope.partial_factor
    return found


def layer_keys(spec: DrafterSpec) -> dict[str, Any]:
    """Sizes of the draft layers in transformers' spelling."""
    backbone = spec.backbone
    found: dict[str, Any] = {
        "hidden_size": backbone.hidden_size,
        "num_hidden_layers": backbone.num_layers,
        "num_attention_heads": backbone.num_heads,
        "num_key_value_heads": backbone.num_kv_heads,
        "head_dim": backbone.head_dim,
        "intermediate_size": backbone.intermediate_size,
        "rms_norm_eps": backbone.norm_eps,
        "hidden_act": backbone.activation,
        "attention_bias": backbone.attention_bias,
        "vocab_size": spec.vocab_size,
        "rope_parameters": rope_parameters(backbone.rope),
        "tie_word_embeddings": False,
    }
    if backbone.max_position is not None:
        found["max_position_embeddings"] = backbone.max_position
    return found


def config(spec: DrafterSpec, *, dtype: str, target: Mapping[str, Any]) -> dict[str, Any]:
    """config.json in DeepSpec's layout."""
    backbone = spec.backbone
    kind = "Eagle3" if spec.kind == DraftKind.EAGLE3 else "DSpark"
    values = layer_keys(spec) | {
        "architectures": [f"{_CLASSES[backbone.family]}{kind}Model"],
        "model_type": "qwen3" if backbone.family == "qwen3" else "gemma4_text",
        "dtype": dtype,
        "layer_types": ["full_attention"] * backbone.num_layers,
        "num_target_layers": spec.num_target_layers,
        "target_layer_ids": [tap - 1 for tap in spec.taps],
    }
    values |= {key: target[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in target}
    if backbone.family == "gemma4":
        values |= {
            "global_head_dim": backbone.head_dim,
            "num_global_key_value_heads": backbone.num_kv_heads,
            "hidden_activation": backbone.activation,
            "final_logit_softcapping": spec.softcap,
        }
    if spec.kind == DraftKind.EAGLE3:
        return values | {
            "ttt_length": spec.gamma,
            "step_loss_decay": 0.8,
            "draft_num_hidden_layers": backbone.num_layers,
        }
    values |= {
        "block_size": spec.block_inputs,
        "mask_token_id": spec.mask_token_id,
        "markov_rank": spec.markov_rank,
        "enable_confidence_head": spec.confidence != "none",
    }
    if spec.markov != "none":
        values["markov_head_type"] = spec.markov
    if spec.confidence != "none":
        values["confidence_head_with_markov"] = spec.confidence == "hidden+markov"
    return values
