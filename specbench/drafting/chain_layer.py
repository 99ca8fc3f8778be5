"""A Llama- or Qwen3-like layer for sequential drafters, which keeps keys and values of all tokens but computes the
rest only where it is asked for."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from specbench.drafting.blocks import GatedMLP
from specbench.drafting.chain_attention import Attend
from specbench.drafting.norms import RMSNorm
from specbench.drafting.rope import rotate
from specbench.drafting.shapes import BackboneShape

Tables = tuple[Tensor, Tensor]


class ChainAttention(nn.Module):
    """Projections of one layer, from ``inputs`` features a token. Families with a bias may have none on the output."""

    def __init__(self, shape: BackboneShape, *, inputs: int, one_plus: bool, output_bias: bool) -> None:
        super().__init__()
        dim, bias = shape.head_dim, shape.attention_bias
        self.head_dim = dim
        self.q_proj = nn.Linear(inputs, shape.num_heads * dim, bias=bias)
        self.k_proj = nn.Linear(inputs, shape.num_kv_heads * dim, bias=bias)
        self.v_proj = nn.Linear(inputs, shape.num_kv_heads * dim, bias=bias)
        self.o_proj = nn.Linear(shape.num_heads * dim, shape.hidden_size, bias=output_bias)
        self.q_norm = RMSNorm(dim, eps=shape.norm_eps, one_plus=one_plus) if shape.qk_norm else None
        self.k_norm = RMSNorm(dim, eps=shape.norm_eps, one_plus=one_plus) if shape.qk_norm else None

    def queries(self, x: Tensor, tables: Tables) -> Tensor:
        """[..., H, dim] of [..., inputs]."""
        query = self.q_proj(x).unflatten(-1, (-1, self.head_dim))
        return rotate(query if self.q_norm is None else self.q_norm(query), tables)

    def keys_values(self, x: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
        """[..., Hkv, dim] each of [..., inputs]."""
        key = self.k_proj(x).unflatten(-1, (-1, self.head_dim))
        value = self.v_proj(x).unflatten(-1, (-1, self.head_dim))
        return rotate(key if self.k_norm is None else self.k_norm(key), tables), value


class ChainLayer(nn.Module):
    """One draft layer. ``paired`` (EAGLE-3's first layer): attention reads the normed embedding and the normed state
    side by side, and the residual is the state, normed if ``residual_normed``."""

    def __init__(
        self,
        shape: BackboneShape,
        *,
        index: int,
        paired: bool = False,
        residual_normed: bool = False,
        one_plus: bool = False,
        output_bias: bool = False,
    ) -> None:
        super().__init__()
        width, eps = shape.hidden_size, shape.norm_eps
        self.index = index
        self.window = shape.window[index]
        self.residual_normed = residual_normed
        self.scale = shape.head_dim**-0.5
        self.input_layernorm = RMSNorm(width, eps=eps, one_plus=one_plus)
        self.hidden_norm = RMSNorm(width, eps=eps, one_plus=one_plus) if paired else None
        self.post_attention_layernorm = RMSNorm(width, eps=eps, one_plus=one_plus)
        self.self_attn = ChainAttention(
            shape, inputs=2 * width if paired else width, one_plus=one_plus, output_bias=output_bias
        )
        self.mlp = GatedMLP(shape)

    def forward(
        self,
        hidden: Tensor,
        tables: Tables,
        *,
        attend: Attend,
        embedded: Tensor | None = None,
        only: Tensor | None = None,
    ) -> Tensor:
        """[N, T, d] from states [N, T, d] (and embeddings where paired), or [1, R, d] for the flat tokens ``only``."""
        if self.hidden_norm is None:
            x, residual = self.input_layernorm(hidden), hidden
        else:
            assert embedded is not None, "a paired layer reads embeddings"
            normed = self.hidden_norm(hidden)
            x = torch.cat((self.input_layernorm(embedded), normed), dim=-1)
            residual = normed if self.residual_normed else hidden
        key, value = self.self_attn.keys_values(x, tables)
        if only is not None:  # the other tokens leave keys and values behind and nothing else
            x, residual = x[:, only], residual[:, only]
            tables = (tables[0][:, only], tables[1][:, only])
        query = self.self_attn.queries(x, tables)
        mixed = attend(self.index, query, key, value, scaling=self.scale, window=self.window, only=only)
        y = residual + self.self_attn.o_proj(mixed.flatten(-2))
        out: Tensor = y + self.mlp(self.post_attention_layernorm(y))
        return out
