"""Tiny random causal LMs of the families that the engine must serve."""

from __future__ import annotations

from typing import Any

import torch
import transformers as tf

SMALL = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def _config(family: str) -> Any:
    if family == "llama":
        return tf.LlamaConfig(**SMALL)
    if family == "qwen2":
        return tf.Qwen2Config(**SMALL)
    if family == "qwen3":
        return tf.Qwen3Config(**SMALL, head_dim=16)
    if family == "mistral":
        return tf.MistralConfig(**SMALL, sliding_window=8)
    if family == "gemma3":
        kinds = ["sliding_attention", "full_attention", "sliding_attention"]
        return tf.Gemma3TextConfig(**SMALL, head_dim=16, sliding_window=8, layer_types=kinds, query_pre_attn_scalar=16)
    if family == "gpt2":
        return tf.GPT2Config(
            vocab_size=97, n_positions=256, n_embd=32, n_layer=3, n_head=4, bos_token_id=1, eos_token_id=2
        )
    if family == "deepseek_v3":
        return tf.DeepseekV3Config(
            **{**SMALL, "num_key_value_heads": 4},
            moe_intermediate_size=16,
            n_routed_experts=4,
            n_shared_experts=1,
            num_experts_per_tok=2,
            n_group=1,
            topk_group=1,
            first_k_dense_replace=1,
            kv_lora_rank=16,
            q_lora_rank=24,
            qk_rope_head_dim=8,
            qk_nope_head_dim=16,
            v_head_dim=12,
        )
    raise ValueError(family)


FAMILIES = ["llama", "qwen2", "qwen3", "mistral", "gemma3", "gpt2", "deepseek_v3"]


def tiny_model(family: str = "llama", *, seed: int = 0, scale: float = 3.0, **changes: Any) -> Any:
    """A random float32 causal LM whose logits are spread by ``scale`` so that greedy choices are not near ties."""
    torch.manual_seed(seed)
    config = _config(family)
    for name, value in changes.items():
        assert hasattr(config, name), name
        setattr(config, name, value)
    model = tf.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(scale)
    return model
