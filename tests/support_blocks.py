"""Small block models with random weights, made from a checkpoint record without a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from specbench_drafters.formats.record import Backbone, Rope
from torch import nn

from specbench.drafting.block_model import BlockConfig, BlockModel

HIDDEN, VOCAB, TAPS = 32, 50, 2

BACKBONE = Backbone(
    family="qwen3",
    num_layers=2,
    hidden_size=HIDDEN,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    intermediate_size=48,
    norm_eps=1e-6,
    activation="silu",
    attention_bias=False,
    qk_norm=True,
    rope=Rope(theta=10_000.0),
    causal=(False, False),
    window=(None, None),
    max_position=None,
)

CONFIG = BlockConfig(
    shape=BACKBONE,
    feature_size=TAPS * HIDDEN,
    vocab_size=VOCAB,
    draft_size=VOCAB,
    block_inputs=4,
    slot_shift=1,
    mask_token_id=3,
    stored_embed=True,
    stored_head=True,
)


def block_config(*, backbone: dict[str, Any] | None = None, **changes: Any) -> BlockConfig:
    """`CONFIG` with changes; ``backbone`` changes the layers."""
    return replace(CONFIG, shape=replace(BACKBONE, **(backbone or {})), **changes)


def spread(model: nn.Module, *, seed: int = 0) -> None:
    """Weights large enough that attention is not flat and norms are not one."""
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            size = 0.5 if tensor.dim() == 1 else 1.5 * tensor.shape[-1] ** -0.5
            offset = 1.0 if tensor.dim() == 1 and "bias" not in name else 0.0
            tensor.copy_(offset + size * torch.randn(tensor.shape, generator=noise))


def block_model(config: BlockConfig, *, seed: int = 0, max_context: int = 64) -> BlockModel:
    """A model with random weights that do not need gradients."""
    model = BlockModel(config, max_context=max_context, device=torch.device("cpu"))
    spread(model, seed=seed)
    return model.requires_grad_(False)
