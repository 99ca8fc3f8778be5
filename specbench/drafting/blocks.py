"""Context-injected transformer layers: keys and values of the target's states beside those of the drafted block.

Layer mathematics of DFlash and DSpark drafters (z-lab/dflash, deepseek-ai/DeepSpec). The context enters every layer's
key and value projections without that layer's input norm; only block rows are queries and pass through the MLP.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from specbench.drafting.norms import RMSNorm
from specbench.drafting.rope import rotate
from specbench.drafting.shapes import BackboneShape
from specbench.errors import CheckpointError

Tables = tuple[Tensor, Tensor]
# Called once a layer with (layer, query [B, S, H, D], keys [B, S, Hkv, D], values) of the block rows; attends them over
# the context that it keeps and over each other and returns [B, S, H, Dv].
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]

FAMILIES = ("qwen3", "llama", "gemma4")


class ContextAttention(nn.Module):
    """Projections of one layer. ``shared_value``: values are the key projection before its norm (Gemma4's k = v)."""

    def __init__(self, shape: BackboneShape, *, shared_value: bool, one_plus: bool) -> None:
        super().__init__()
        hidden, dim, bias = shape.hidden_size, shape.head_dim, shape.attention_bias
        gemma = shape.family == "gemma4"
        self.head_dim = dim
        self.scale = 1.0 if gemma else dim**-0.5
        self.q_proj = nn.Linear(hidden, shape.num_heads * dim, bias=bias)
        self.k_proj = nn.Linear(hidden, shape.num_kv_heads * dim, bias=bias)
        self.v_proj = None if shared_value else nn.Linear(hidden, shape.num_kv_heads * dim, bias=bias)
        self.o_proj = nn.Linear(shape.num_heads * dim, hidden, bias=bias)
        self.q_norm: RMSNorm | None = None
        self.k_norm: RMSNorm | None = None
        if shape.qk_norm:
            self.q_norm = RMSNorm(dim, eps=shape.norm_eps, one_plus=one_plus, float_scale=gemma)
            self.k_norm = RMSNorm(dim, eps=shape.norm_eps, one_plus=one_plus, float_scale=gemma)
        self.v_norm = RMSNorm(dim, eps=shape.norm_eps, weighted=False) if gemma else None

    def keys_values(self, states: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
        """Keys and values [..., Hkv, D] of context rows or normed block rows [..., hidden]."""
        keys = self.k_proj(states).unflatten(-1, (-1, self.head_dim))
        values = keys if self.v_proj is None else self.v_proj(states).unflatten(-1, (-1, self.head_dim))
        if self.k_norm is not None:
            keys = self.k_norm(keys)
        if self.v_norm is not None:
            values = self.v_norm(values)
        return rotate(keys, tables), values

    def queries(self, states: Tensor, tables: Tables) -> Tensor:
        """Queries [..., H, D] of normed block rows [..., hidden]."""
        query = self.q_proj(states).unflatten(-1, (-1, self.head_dim))
        if self.q_norm is not None:
            query = self.q_norm(query)
        return rotate(query, tables)


class GatedMLP(nn.Module):
    """down(act(gate(x)) * up(x)). Errors: CheckpointError for an activation that transformers does not know."""

    def __init__(self, shape: BackboneShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)
        if shape.activation not in ACT2FN:
            raise CheckpointError(f"the drafter's activation is '{shape.activation}', which transformers does not know")
        self.activation = ACT2FN[shape.activation]

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] to [..., hidden]."""
        out: Tensor = self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))
        return out


class BlockLayer(nn.Module):
    """One draft layer. Gemma4 norms each branch before its residual sum and scales the layer's output."""

    layer_scalar: Tensor

    def __init__(self, shape: BackboneShape, *, shared_value: bool = False, one_plus: bool = False) -> None:
        super().__init__()
        if shape.family not in FAMILIES:
            raise CheckpointError(
                f"draft layers of family '{shape.family}' are not supported yet; supported: {', '.join(FAMILIES)}"
            )
        self.sandwich = shape.family == "gemma4"
        self.self_attn = ContextAttention(shape, shared_value=shared_value, one_plus=one_plus)
        self.mlp = GatedMLP(shape)
        names = ["input_layernorm", "post_attention_layernorm"]
        if self.sandwich:
            names += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
            self.register_buffer("layer_scalar", torch.ones(1))
        for name in names:
            norm = RMSNorm(shape.hidden_size, eps=shape.norm_eps, one_plus=one_plus, float_scale=self.sandwich)
            self.add_module(name, norm)

    def forward(self, x: Tensor, tables: Tables, attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
        """Block rows [B, S, hidden] through the layer; ``attend`` takes query, keys and values of the block."""
        normed = self._norm("input_layernorm", x)
        keys, values = self.self_attn.keys_values(normed, tables)
        mixed = attend(self.self_attn.queries(normed, tables), keys, values)
        branch = self.self_attn.o_proj(mixed.flatten(-2))
        if not self.sandwich:
            x = x + branch
            out: Tensor = x + self.mlp(self._norm("post_attention_layernorm", x))
            return out
        x = x + self._norm("post_attention_layernorm", branch)
        branch = self.mlp(self._norm("pre_feedforward_layernorm", x))
        return (x + self._norm("post_feedforward_layernorm", branch)) * self.layer_scalar

    def _norm(self, name: str, x: Tensor) -> Tensor:
        out: Tensor = self.get_submodule(name)(x)
        return out
