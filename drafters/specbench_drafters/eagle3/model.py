"""The EAGLE-3 network: tapped states of the target combined once, one layer over (state, next token) pairs.

Mathematics of SafeAILab/EAGLE (EAGLE-3, arXiv 2503.01840), deepseek-ai/DeepSpec's Qwen3 form of it, and the 3.1
switches of vllm-project/speculators: a norm per tap or over the taps before ``fc``, and feeding back the normed state.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from specbench.drafting.chain_attention import Attend
from specbench.drafting.chain_layer import ChainLayer
from specbench.drafting.norms import RMSNorm
from specbench.drafting.rope import Rotary
from specbench_drafters.formats.record import DrafterSpec


class Eagle3Model(nn.Module):
    """A `ChainModel`. ``embed`` and ``head`` are the target's modules where the checkpoint stores none of its own."""

    def __init__(
        self,
        spec: DrafterSpec,
        *,
        draft_vocab: int,
        has_fc: bool,
        output_bias: bool,
        max_context: int,
        embed: Callable[[Tensor], Tensor],
        head: Callable[[Tensor], Tensor],
        device: torch.device,
    ) -> None:
        super().__init__()
        shape, width = spec.backbone, spec.backbone.hidden_size
        taps = len(spec.taps) + int(spec.tap_final_norm)
        inputs, eps, one_plus = taps * spec.target_hidden_size, shape.norm_eps, spec.one_plus_norm
        self.num_layers, self.num_depths = shape.num_layers, 1
        self.num_key_heads, self.width = shape.num_kv_heads, width
        self.key_dim = self.value_dim = shape.head_dim
        self._recycle_normed = spec.recycle == "post_norm"
        self._embed_scale, self._logit_scale, self._softcap = spec.embed_scale, spec.logit_scale, spec.softcap
        self._borrowed = (embed, head)  # in a tuple, so that they are no submodules of this one
        self.fc = nn.Linear(inputs, width, bias=False) if has_fc else None
        self.input_norm = RMSNorm(inputs, eps=eps, one_plus=one_plus) if spec.pre_fc_norm == "concat" else None
        self.fc_norm = (
            nn.ModuleList(RMSNorm(spec.target_hidden_size, eps=eps, one_plus=one_plus) for _ in range(taps))
            if spec.pre_fc_norm == "per_tap"
            else None
        )
        self.layers = nn.ModuleList(
            ChainLayer(
                shape,
                index=i,
                paired=i == 0,
                residual_normed=spec.residual_normed,
                one_plus=one_plus,
                output_bias=output_bias,
            )
            for i in range(shape.num_layers)
        )
        self.norm = RMSNorm(width, eps=eps, one_plus=one_plus)
        self.embed_tokens = nn.Embedding(spec.vocab_size, width) if spec.embed_from == "checkpoint" else None
        self.lm_head = nn.Linear(width, draft_vocab, bias=False) if spec.head_from == "checkpoint" else None
        with torch.device(device):  # weights may be built on the meta device; angles are computed now
            self.rotary = Rotary(shape, max_context=max_context, device=device)

    def start(self, features: Tensor) -> Tensor:
        """Tapped states [N, T, D] combined to [N, T, d]."""
        if self.fc_norm is not None:
            pieces = features.chunk(len(self.fc_norm), dim=-1)
            features = torch.cat([norm(piece) for norm, piece in zip(self.fc_norm, pieces, strict=True)], dim=-1)
        if self.input_norm is not None:
            features = self.input_norm(features)
        return features if self.fc is None else self.fc(features)

    def step(
        self,
        hidden: Tensor,
        token_ids: Tensor,
        positions: Tensor,
        *,
        attend: Attend,
        depth: int = 0,
        only: Tensor | None = None,
    ) -> Tensor:
        """See `ChainModel.step`."""
        embedded = self._embedded(token_ids)
        tables = self.rotary.tables(positions, dtype=hidden.dtype)
        last = len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            asked = only if index == last else None
            hidden = layer(hidden, tables, attend=attend, embedded=embedded, only=asked)
        return hidden

    def _embedded(self, token_ids: Tensor) -> Tensor:
        if self.embed_tokens is None:
            return self._borrowed[0](token_ids)
        embedded: Tensor = self.embed_tokens(token_ids)
        return embedded if self._embed_scale is None else embedded * self._embed_scale

    def finish(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """The final norm's output for the head, and that or the raw state for the next step."""
        normed = self.norm(output)
        return normed, normed if self._recycle_normed else output

    def logits(self, normed: Tensor) -> Tensor:
        """Draft logits [..., Vd]."""
        logits: Tensor = self._borrowed[1](normed) if self.lm_head is None else self.lm_head(normed)
        if self._logit_scale is not None:
            logits = logits * self._logit_scale
        return logits if self._softcap is None else torch.tanh(logits / self._softcap) * self._softcap
