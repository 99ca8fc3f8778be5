"""speculators' configuration and tensors of a drafter: sizes nested, ``d2t`` as offsets, ``t2d`` beside it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specbench.errors import CheckpointError
from specbench_drafters.formats.hf_layers import known
from specbench_drafters.formats.record import DrafterSpec, DraftKind
from specbench_drafters.formats.shapes import draft_vocab
from specbench_drafters.formats.to_deepspec import layer_keys

_CLASSES = {
    "eagle3": "Eagle3Speculator",
    "dflash": "DFlashSpeculator",
    "dspark": "DSparkSpeculator",
    "mtp": "MTPDraftModel",
}
_MTP_NAMES = {
    "input_proj.weight": "input_proj.weight",
    "hidden_norm.weight": "hidden_layernorm.weight",
    "token_norm.weight": "token_layernorm.weight",
    "norm.weight": "final_layernorm.weight",
}


def tensors(spec: DrafterSpec, canonical: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under the names of this layout, with the vocabulary maps where the vocabulary is reduced."""
    if spec.kind == DraftKind.MTP:
        return {_mtp_name(name): tensor for name, tensor in canonical.items()}
    if spec.d2t is None:
        return dict(canonical)
    ids = spec.d2t.to(torch.int64)
    mask = torch.zeros(spec.vocab_size, dtype=torch.bool)
    mask[ids] = True
    return {**canonical, "d2t": ids - torch.arange(ids.numel()), "t2d": mask}


def _mtp_name(name: str) -> str:
    if name in ("embed_tokens.weight", "lm_head.weight"):
        return name
    return f"mtp_layers.0.{_MTP_NAMES.get(name, name.removeprefix('layers.0.'))}"


def config(spec: DrafterSpec, *, target_name: str, dtype: str) -> dict[str, Any]:
    """config.json in speculators' layout. Errors: CheckpointError for what it has no words for."""
    for word, value in (
        ("logit scale", spec.logit_scale),
        ("softcap", spec.softcap),
        ("embedding scale", spec.embed_scale),
    ):
        if value is not None:
            raise CheckpointError(f"layout 'speculators' has no {word}, which this drafter needs ({value:g})")
    if spec.kind not in _CLASSES or (spec.tap_final_norm and spec.kind != DraftKind.MTP):
        raise CheckpointError("layout 'speculators' has no drafters that read the target's final normed state")
    kind = str(spec.kind)
    method = {"proposal_type": "greedy", "speculative_tokens": spec.gamma}
    return {
        "architectures": [_CLASSES[kind]],
        "speculators_model_type": kind,
        "speculators_version": "0.5.0",
        "speculators_config": {
            "algorithm": kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [method],
            "verifier": {"name_or_path": target_name, "architectures": []},
        },
        "dtype": dtype,
        "transformer_layer_config": _layers(spec),
        **_algorithm(spec),
    }


def _layers(spec: DrafterSpec) -> dict[str, Any]:
    family = spec.backbone.family
    if spec.kind == DraftKind.MTP:
        if not known(family):
            raise CheckpointError(f"layout 'speculators' cannot state MTP layers of the {family} kind")
        return dict(spec.layer_config)
    if family not in ("qwen3", "llama"):
        raise CheckpointError(f"layout 'speculators' is written for Qwen3 and Llama layers, this drafter has {family}")
    values = layer_keys(spec) | {"model_type": family}
    windows = [width for width in spec.backbone.window if width is not None]
    if windows:
        if len(set(windows)) > 1:
            raise CheckpointError(f"layout 'speculators' has one window for all layers, this drafter has {windows}")
        kinds = ["full_attention" if width is None else "sliding_attention" for width in spec.backbone.window]
        values |= {
            "layer_types": kinds,
            "sliding_window": windows[0],
            "use_sliding_window": True,
            "max_window_layers": 0,
        }
    return values


def _algorithm(spec: DrafterSpec) -> dict[str, Any]:
    if spec.kind == DraftKind.MTP:
        return {"num_nextn_predict_layers": 1, "num_speculative_steps": spec.gamma}
    common: dict[str, Any] = {
        "draft_vocab_size": draft_vocab(spec),
        "target_hidden_size": spec.target_hidden_size,
        "num_target_layers": spec.num_target_layers,
    }
    if spec.kind == DraftKind.EAGLE3:
        return common | {
            "eagle_aux_hidden_state_layer_ids": list(spec.taps),
            "norm_before_residual": spec.residual_normed,
            "norm_before_fc": spec.pre_fc_norm == "concat",
            "fc_norm": spec.pre_fc_norm == "per_tap",
            "norm_output": spec.recycle == "post_norm",
        }
    sliding = [causal for causal, width in zip(spec.backbone.causal, spec.backbone.window, strict=True) if width]
    values: dict[str, Any] = common | {
        "aux_hidden_state_layer_ids": list(spec.taps),
        "block_size": spec.block_inputs,
        "mask_token_id": spec.mask_token_id,
        "sample_from_anchor": bool(spec.slot_shift),
        "sliding_window_non_causal": bool(sliding) and not any(sliding),
    }
    if spec.kind == DraftKind.DSPARK:
        values |= {
            "markov_rank": spec.markov_rank,
            "enable_confidence_head": spec.confidence != "none",
            "confidence_head_with_markov": spec.confidence == "hidden+markov",
        }
        if spec.markov != "none":
            values["markov_head_type"] = spec.markov
    return values
