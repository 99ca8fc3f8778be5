"""MTP layers that are decoder layers of a transformers model: their full configuration and their tensors."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import torch

from specbench.errors import CheckpointError

# transformers model_type -> (module below transformers.models, decoder layer class)
_LAYERS = {
    "deepseek_v3": ("deepseek_v3.modeling_deepseek_v3", "DeepseekV3DecoderLayer"),
    "glm4_moe": ("glm4_moe.modeling_glm4_moe", "Glm4MoeDecoderLayer"),
    "qwen3_next": ("qwen3_next.modeling_qwen3_next", "Qwen3NextDecoderLayer"),
    "qwen3_5_text": ("qwen3_5.modeling_qwen3_5", "Qwen3_5DecoderLayer"),
    "qwen3_5_moe_text": ("qwen3_5_moe.modeling_qwen3_5_moe", "Qwen3_5MoeDecoderLayer"),
}


def complete_config(model_type: str, config: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """A configuration with the defaults of its transformers class filled in. Errors: CheckpointError."""
    from transformers import AutoConfig

    values = {key: value for key, value in config.items() if key not in ("model_type", "auto_map")}
    try:
        found = AutoConfig.for_model(model_type, **values).to_dict()
    except Exception as error:
        # transformers raises whatever its validators raise; to the user all of it means one thing
        text = " ".join(str(error).split())[:120]
        raise CheckpointError(f"{where}: transformers cannot read the '{model_type}' layer sizes ({text})") from error
    return {key: value for key, value in found.items() if value is not None}


def layer_config(model_type: str, config: Mapping[str, Any], *, sparse: bool) -> Any:
    """A transformers configuration whose layer 0 is the MTP layer: full attention, experts iff ``sparse``."""
    from transformers import AutoConfig

    own = {
        "num_hidden_layers": 1,
        "layer_types": ["full_attention"],
        "first_k_dense_replace": 0 if sparse else 1,
        "mlp_only_layers": [] if sparse else [0],
        "decoder_sparse_step": 1,
    }
    if model_type in ("deepseek_v3", "glm4_moe"):
        del own["layer_types"], own["mlp_only_layers"], own["decoder_sparse_step"]
    else:
        del own["first_k_dense_replace"]
    drop = ("model_type", "auto_map", "quantization_config", "mlp_layer_types", "architectures")
    values = {key: value for key, value in config.items() if key not in drop}
    return AutoConfig.for_model(model_type, **{**values, **own})


def build_layer(model_type: str, config: Mapping[str, Any], *, sparse: bool) -> torch.nn.Module:
    """The decoder layer itself, on torch's current default device. Errors: CheckpointError."""
    module, name = _LAYERS[model_type]
    try:
        layer_class = getattr(importlib.import_module(f"transformers.models.{module}"), name)
        layer: torch.nn.Module = layer_class(layer_config(model_type, config, sparse=sparse), 0)
    except Exception as error:
        text = " ".join(str(error).split())[:120]
        raise CheckpointError(f"transformers cannot build the '{model_type}' MTP layer ({text})") from error
    return layer


def layer_shapes(model_type: str, config: Mapping[str, Any], *, sparse: bool) -> dict[str, tuple[int, ...]]:
    """Tensors of the layer by name, without allocating them. Errors: CheckpointError."""
    with torch.device("meta"):
        layer = build_layer(model_type, config, sparse=sparse)
    return {name: tuple(tensor.shape) for name, tensor in layer.state_dict().items()}


def known(model_type: str) -> bool:
    """Whether layers of this type are built by transformers rather than by our own dense layer."""
    return model_type in _LAYERS
