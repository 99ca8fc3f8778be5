"""Target checkpoints of toy size whose MTP layers a loader has to pick out, family by family."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from support_checkpoints import (
    HEAD_DIM,
    HEADS,
    HIDDEN,
    INNER,
    KV_HEADS,
    VOCAB,
    layer,
    random,
    sizes,
    speculators_config,
    write,
)
from torch import Tensor

QWEN35 = {
    "model_type": "qwen3_5_text",
    "hidden_size": HIDDEN,
    "num_hidden_layers": 4,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": 8,
    "intermediate_size": INNER,
    "vocab_size": VOCAB,
    "mtp_num_hidden_layers": 1,
    "rope_parameters": {"rope_theta": 1e7, "rope_type": "default", "partial_rotary_factor": 0.25},
}
_MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8}


def _main(extra: Mapping[str, Tensor], *, at: str = "model.") -> dict[str, Tensor]:
    """Some tensors of the target itself, which a loader must leave alone."""
    return {
        f"{at}embed_tokens.weight": random(VOCAB, HIDDEN, seed=101),
        f"{at}layers.0.input_layernorm.weight": torch.ones(HIDDEN),
        f"{at}norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": random(VOCAB, HIDDEN, seed=102),
        **extra,
    }


def _experts(at: str, *, count: int = 4, inner: int = 8) -> dict[str, Tensor]:
    found = {}
    for index in range(count):
        for part, shape in (
            ("gate_proj", (inner, HIDDEN)),
            ("up_proj", (inner, HIDDEN)),
            ("down_proj", (HIDDEN, inner)),
        ):
            found[f"{at}{index}.{part}.weight"] = random(*shape, seed=200 + index)
    return found


def _ffn(at: str, inner: int = 8) -> dict[str, Tensor]:
    shapes = {"gate_proj": (inner, HIDDEN), "up_proj": (inner, HIDDEN), "down_proj": (HIDDEN, inner)}
    return {f"{at}{part}.weight": random(*shape, seed=210) for part, shape in shapes.items()}


def _joint(names: Mapping[str, str], *, at: str) -> dict[str, Tensor]:
    """Projection and norms of an MTP head under a family's names."""
    shapes = {"proj": (HIDDEN, 2 * HIDDEN), "token": (HIDDEN,), "hidden": (HIDDEN,), "norm": (HIDDEN,)}
    seeds = {"proj": 220, "token": 221, "hidden": 222, "norm": 223}
    return {f"{at}{names[part]}.weight": random(*shape, seed=seeds[part]) for part, shape in shapes.items()}


def deepseek_v3(folder: Path) -> Path:
    """DeepSeek-V3: MLA, experts one by one, embedding and head stored again with the layer."""
    config = {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": HIDDEN,
        "num_hidden_layers": 3, "first_k_dense_replace": 1, "num_nextn_predict_layers": 1, "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4,
        "v_head_dim": 6, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "n_group": 1,
        "topk_group": 1, "n_shared_experts": 1, "intermediate_size": INNER, "vocab_size": VOCAB, "rope_theta": 1e4,
        "rms_norm_eps": 1e-6,
    }  # fmt: skip
    at = "model.layers.3."
    names = {"proj": "eh_proj", "token": "enorm", "hidden": "hnorm", "norm": "shared_head.norm"}
    tensors = _joint(names, at=at) | _experts(at + "mlp.experts.") | _ffn(at + "mlp.shared_experts.")
    tensors |= {
        at + "embed_tokens.weight": random(VOCAB, HIDDEN, seed=101),
        at + "shared_head.head.weight": random(VOCAB, HIDDEN, seed=102),
        at + "input_layernorm.weight": torch.ones(HIDDEN),
        at + "post_attention_layernorm.weight": torch.ones(HIDDEN),
        at + "self_attn.q_a_proj.weight": random(8, HIDDEN, seed=230),
        at + "self_attn.q_a_layernorm.weight": torch.ones(8),
        at + "self_attn.q_b_proj.weight": random(HEADS * 8, 8, seed=231),
        at + "self_attn.kv_a_proj_with_mqa.weight": random(12, HIDDEN, seed=232),
        at + "self_attn.kv_a_layernorm.weight": torch.ones(8),
        at + "self_attn.kv_b_proj.weight": random(HEADS * 10, 8, seed=233),
        at + "self_attn.o_proj.weight": random(HIDDEN, HEADS * 6, seed=234),
        at + "mlp.gate.weight": random(4, HIDDEN, seed=235),
        at + "mlp.gate.e_score_correction_bias": random(4, seed=236),
    }
    return write(folder, config, _main(tensors), container="safetensors-sharded")


def glm4_moe(folder: Path) -> Path:
    """GLM-4.5: DeepSeek's names, ordinary attention."""
    config = {
        "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "hidden_size": HIDDEN,
        "num_hidden_layers": 2, "first_k_dense_replace": 1, "num_nextn_predict_layers": 1, "num_attention_heads": HEADS,
        "head_dim": HEAD_DIM, "num_key_value_heads": KV_HEADS,
        "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8,
        "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "intermediate_size": INNER, "vocab_size": VOCAB,
        "attention_bias": False, "use_qk_norm": True, "rope_theta": 1e6, "partial_rotary_factor": 0.5,
    }  # fmt: skip
    at = "model.layers.2."
    names = {"proj": "eh_proj", "token": "enorm", "hidden": "hnorm", "norm": "shared_head.norm"}
    tensors = _joint(names, at=at) | _experts(at + "mlp.experts.") | _ffn(at + "mlp.shared_experts.")
    tensors |= {name: tensor for name, tensor in layer(at, seed=240).items() if ".mlp." not in name}
    tensors |= {at + "mlp.gate.weight": random(4, HIDDEN), at + "mlp.gate.e_score_correction_bias": random(4)}
    return write(folder, config, _main(tensors))


def _gated_attention(at: str) -> dict[str, Tensor]:
    """Qwen3-Next's full attention: queries carry an output gate; norms multiply by 1 + w."""
    return {
        at + "self_attn.q_proj.weight": random(2 * HEADS * 8, HIDDEN, seed=250),
        at + "self_attn.k_proj.weight": random(KV_HEADS * 8, HIDDEN, seed=251),
        at + "self_attn.v_proj.weight": random(KV_HEADS * 8, HIDDEN, seed=252),
        at + "self_attn.o_proj.weight": random(HIDDEN, HEADS * 8, seed=253),
        at + "self_attn.q_norm.weight": random(8, seed=254),
        at + "self_attn.k_norm.weight": random(8, seed=255),
        at + "input_layernorm.weight": random(HIDDEN, seed=256),
        at + "post_attention_layernorm.weight": random(HIDDEN, seed=257),
    }


_QWEN_NAMES = {"proj": "fc", "token": "pre_fc_norm_embedding", "hidden": "pre_fc_norm_hidden", "norm": "norm"}


def qwen3_next(folder: Path) -> Path:
    """Qwen3-Next: one full-attention layer with experts under ``mtp``."""
    config = QWEN35 | _MOE | {"architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next"}
    config |= {"num_nextn_predict_layers": 1, "rope_theta": 1e7, "partial_rotary_factor": 0.25}
    del config["mtp_num_hidden_layers"], config["rope_parameters"]
    at = "mtp.layers.0."
    tensors = _joint(_QWEN_NAMES, at="mtp.") | _gated_attention(at) | _experts(at + "mlp.experts.")
    tensors |= _ffn(at + "mlp.shared_expert.")
    tensors |= {at + "mlp.gate.weight": random(4, HIDDEN), at + "mlp.shared_expert_gate.weight": random(1, HIDDEN)}
    return write(folder, config, _main(tensors))


def qwen3_5(folder: Path) -> Path:
    """Qwen3.5, dense: the text configuration is wrapped."""
    config = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": dict(QWEN35),
    }
    at = "mtp.layers.0."
    tensors = _joint(_QWEN_NAMES, at="mtp.") | _gated_attention(at) | _ffn(at + "mlp.", INNER)
    return write(folder, config, _main(tensors, at="model.language_model."))


def mimo(folder: Path) -> Path:
    """MiMo: Qwen2 layer with biases, hidden state before embedding."""
    config = sizes(
        architectures=["MiMoForCausalLM"], model_type="mimo", num_nextn_predict_layers=1, attention_bias=True
    )
    at = "model.mtp_layers.0."
    names = {"proj": "input_proj", "token": "token_layernorm", "hidden": "hidden_layernorm", "norm": "final_layernorm"}
    tensors = _joint(names, at=at) | layer(at, qk_norm=False, seed=260)
    for part, rows in (("q", HEADS * HEAD_DIM), ("k", KV_HEADS * HEAD_DIM), ("v", KV_HEADS * HEAD_DIM)):
        tensors[f"{at}self_attn.{part}_proj.bias"] = random(rows, seed=270)
    return write(folder, config, _main(tensors))


def speculators_mtp(folder: Path) -> Path:
    """speculators' MTP: a converted Qwen3.5 layer."""
    config = speculators_config("mtp", tokens=3, num_nextn_predict_layers=1)
    config["transformer_layer_config"] = dict(QWEN35)
    del config["draft_vocab_size"]
    at = "mtp_layers.0."
    names = {"proj": "input_proj", "token": "token_layernorm", "hidden": "hidden_layernorm", "norm": "final_layernorm"}
    return write(folder, config, _joint(names, at=at) | _gated_attention(at) | _ffn(at + "mlp.", INNER))
