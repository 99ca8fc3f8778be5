"""Draft layers against transformers' decoder layers, and against attention written out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from support_blocks import block_config, block_model, spread
from torch import nn

from specbench.drafting.attention import attend, visible_keys
from specbench.drafting.block_model import BlockModel
from specbench.drafting.blocks import BlockLayer
from specbench.errors import CheckpointError

SIZES = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48, "num_hidden_layers": 2}


def reference_layer(family: str) -> tuple[nn.Module, Any, Any]:
    """A transformers decoder layer, its rotary tables as a function, and extra arguments of the call."""
    kinds = ["full_attention"] * 2
    if family == "gemma4":
        module = pytest.importorskip("transformers.models.gemma4.modeling_gemma4")
        config = transformers.Gemma4TextConfig(
            **SIZES,
            num_key_value_heads=2,
            head_dim=8,
            layer_types=kinds,
            attention_k_eq_v=True,
            global_head_dim=16,
            num_global_key_value_heads=2,
            hidden_size_per_layer_input=0,
            use_bidirectional_attention="all",
        )
        rotary = module.Gemma4TextRotaryEmbedding(config)
        config._attn_implementation = "eager"
        layer = module.Gemma4TextDecoderLayer(config, 0)
        return layer, lambda x, p: rotary(x, p, "full_attention"), {"shared_kv_states": {}}
    if family == "qwen3":
        from transformers.models.qwen3 import modeling_qwen3 as module

        config = transformers.Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=16, layer_types=kinds)
        layer, rotary = module.Qwen3DecoderLayer, module.Qwen3RotaryEmbedding
    else:
        from transformers.models.llama import modeling_llama as module

        config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2, head_dim=16, attention_bias=True)
        layer, rotary = module.LlamaDecoderLayer, module.LlamaRotaryEmbedding
    config._attn_implementation = "eager"
    return layer(config, 0), rotary(config), {}


BACKBONES: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "llama": {"family": "llama", "qk_norm": False, "attention_bias": True},
    "gemma4": {"family": "gemma4", "activation": "gelu_pytorch_tanh"},
}


@pytest.mark.parametrize("family", list(BACKBONES))
def test_a_block_without_context_is_a_plain_bidirectional_layer(family: str) -> None:
    theirs, rotary, extra = reference_layer(family)
    spread(theirs)
    changes = dict(BACKBONES[family])
    if family == "gemma4":
        from specbench_drafters.formats.record import Rope

        changes["rope"] = Rope(theta=1_000_000.0, scaling={"rope_type": "proportional"}, partial_factor=0.25)
    model = BlockModel(
        block_config(backbone=changes, shared_value=family == "gemma4"), max_context=64, device=torch.device("cpu")
    )
    ours = model.layers[0]
    assert isinstance(ours, BlockLayer)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    x = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(1))
    positions = torch.arange(7, 12).expand(2, -1)
    with torch.no_grad():
        expected = theirs(
            x,
            position_embeddings=rotary(x, positions),
            attention_mask=torch.zeros(2, 1, 5, 5),
            position_ids=positions,
            **extra,
        )
        expected = expected[0] if isinstance(expected, tuple) else expected
        found = ours(
            x,
            model.rotary.tables(positions, dtype=x.dtype),
            lambda q, k, v: attend(q, k, v, mask=None, scale=ours.self_attn.scale),
        )
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-5)


def test_families_that_are_not_known_are_refused() -> None:
    with pytest.raises(CheckpointError, match="not supported yet"):
        block_model(block_config(backbone={"family": "mamba"}))
    with pytest.raises(CheckpointError, match="activation"):
        block_model(block_config(backbone={"activation": "stairs"}))


def test_grouped_attention_is_attention() -> None:
    noise = torch.Generator().manual_seed(0)
    query = torch.randn(2, 3, 4, 8, generator=noise)
    keys, values = torch.randn(2, 6, 2, 8, generator=noise), torch.randn(2, 6, 2, 5, generator=noise)
    mask = torch.rand(2, 3, 6, generator=noise) < 0.6
    mask[..., 0] = True
    found = attend(query, keys, values, mask=mask, scale=0.3)
    assert found.shape == (2, 3, 4, 5)
    for head in range(4):
        scores = 0.3 * query[:, :, head] @ keys[:, :, head // 2].transpose(1, 2)
        weights = torch.softmax(scores.masked_fill(~mask, -torch.inf), -1)
        torch.testing.assert_close(found[:, :, head], weights @ values[:, :, head // 2])


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 1, 3])
def test_visibility_follows_the_rule(causal: bool, window: int | None) -> None:
    query, ends, length = torch.tensor([[4, 5, 6], [1, 2, 3]]), torch.tensor([7, 4]), 9
    seen = visible_keys(query, key_length=length, ends=ends, causal=causal, window=window)
    for row in range(2):
        for at in range(3):
            for key in range(length):
                distance = int(query[row, at]) - key
                rule = key < int(ends[row])
                rule = rule and (not causal or distance >= 0)
                if window is not None:
                    rule = rule and distance < window and (causal or -distance < window)
                assert bool(seen[row, at, key]) == rule
