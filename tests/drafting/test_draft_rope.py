"""Rotary embedding against transformers' own module, for every scaling type."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from specbench.drafting.rope import Rotary, rotate
from specbench.errors import CheckpointError

HEAD = 16


@dataclass(frozen=True)
class RopeRecord:
    theta: float = 50_000.0
    scaling: dict[str, Any] = field(default_factory=dict)
    partial_factor: float = 1.0


@dataclass(frozen=True)
class ShapeRecord:
    rope: RopeRecord
    hidden_size: int = 4 * HEAD
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = HEAD
    max_position: int | None = 64


def rotary(scaling: dict[str, Any], *, max_context: int = 256, partial: float = 1.0) -> Rotary:
    shape: Any = ShapeRecord(RopeRecord(scaling=scaling, partial_factor=partial))
    return Rotary(shape, max_context=max_context, device=torch.device("cpu"))


SCALINGS: list[dict[str, Any]] = [
    {},
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    {"rope_type": "dynamic", "factor": 2.0},
    {
        "rope_type": "longrope",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "short_factor": [1.0] * (HEAD // 2),
        "long_factor": [1.0 + i for i in range(HEAD // 2)],
    },
]


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda s: s.get("rope_type", "default"))
def test_equals_transformers(scaling: dict[str, Any]) -> None:
    config = LlamaConfig(
        hidden_size=4 * HEAD,
        num_attention_heads=4,
        head_dim=HEAD,
        max_position_embeddings=64,
        rope_parameters={"rope_type": "default", "rope_theta": 50_000.0, **scaling},
    )
    query = torch.randn(1, 3, 4, HEAD)
    positions = torch.tensor([[3, 70, 255]])  # the last is what transformers takes as the length
    cos, sin = LlamaRotaryEmbedding(config)(query, positions)
    expected, _ = apply_rotary_pos_emb(query, query, cos, sin, unsqueeze_dim=2)
    ours = rotary(scaling)
    torch.testing.assert_close(rotate(query, ours.tables(positions, dtype=query.dtype)), expected)


def test_old_spelling_of_the_type() -> None:
    old, new = rotary({"type": "linear", "factor": 2.0}), rotary({"rope_type": "linear", "factor": 2.0})
    positions = torch.arange(5)
    torch.testing.assert_close(old.tables(positions, dtype=torch.float32), new.tables(positions, dtype=torch.float32))


def test_a_part_of_the_head_is_rotated() -> None:
    ours = rotary({}, partial=0.25)
    assert ours.width == HEAD // 4
    x = torch.randn(2, 1, HEAD)
    turned = rotate(x, ours.tables(torch.tensor([0, 9]), dtype=x.dtype))
    assert turned[..., HEAD // 4 :].equal(x[..., HEAD // 4 :])
    torch.testing.assert_close(turned[0], x[0])
    assert not turned[1].allclose(x[1])


def test_bad_scaling_is_refused_in_one_line() -> None:
    with pytest.raises(CheckpointError, match="rope_type is 'spiral'") as error:
        rotary({"rope_type": "spiral"})
    assert "\n" not in str(error.value)
    with pytest.raises(CheckpointError, match="lacks the key"):
        rotary({"rope_type": "llama3", "factor": 8.0})
