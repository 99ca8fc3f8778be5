"""The MTP head: embedding and state joined by one projection, then a decoder layer and a norm before the head.

DeepSeek-V3 report (arXiv 2412.19437, section 2.2). What differs between families is in the checkpoint's record: the
order of the two halves, whether the embedding counts at position 0, and which state is fed back.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from specbench.drafting.chain_attention import Attend
from specbench.drafting.norms import RMSNorm
from specbench_drafters.formats.record import DrafterSpec
from specbench_drafters.mtp.layers import LayerStack


class MtpModel(nn.Module):
    """A `ChainModel`. Layers take turns over the steps of a round; published targets have one."""

    def __init__(
        self,
        spec: DrafterSpec,
        *,
        stack: LayerStack,
        draft_vocab: int,
        embed: Callable[[Tensor], Tensor],
        head: Callable[[Tensor], Tensor],
    ) -> None:
        super().__init__()
        width, eps, one_plus = spec.backbone.hidden_size, spec.backbone.norm_eps, spec.one_plus_norm
        self.num_layers = self.num_depths = len(stack.modules)
        self.width = width
        self.num_key_heads = self.key_dim = self.value_dim = 0  # see `measure`
        self._spec = spec
        self._stack = stack
        self._borrowed = (embed, head)  # in a tuple, so that they are no submodules of this one
        self.token_norm = RMSNorm(width, eps=eps, one_plus=one_plus)
        self.hidden_norm = RMSNorm(spec.target_hidden_size, eps=eps, one_plus=one_plus)
        self.input_proj = nn.Linear(width + spec.target_hidden_size, width, bias=False)
        self.layers = stack.modules
        self.norm = RMSNorm(width, eps=eps, one_plus=one_plus)
        self.embed_tokens = nn.Embedding(spec.vocab_size, width) if spec.embed_from == "checkpoint" else None
        self.lm_head = nn.Linear(width, draft_vocab, bias=False) if spec.head_from == "checkpoint" else None

    @torch.no_grad()
    def measure(self, *, device: torch.device, dtype: torch.dtype) -> None:
        """Learn the key and value sizes from a call with one token: they are the family's own affair."""
        shapes: list[tuple[int, int, int]] = []

        def note(
            layer: int,
            query: Tensor,
            key: Tensor,
            value: Tensor,
            *,
            scaling: float,
            window: int | None = None,
            only: Tensor | None = None,
        ) -> Tensor:
            shapes.append((key.shape[2], key.shape[3], value.shape[3]))
            return query.new_zeros(*query.shape[:3], value.shape[3])

        zero = torch.zeros(1, 1, dtype=torch.int64, device=device)
        state = torch.zeros(1, 1, self._spec.target_hidden_size, device=device, dtype=dtype)
        self.step(state, zero, zero, attend=note)
        assert len(shapes) == 1, "a decoder layer attends once"
        self.num_key_heads, self.key_dim, self.value_dim = shapes[0]

    def start(self, features: Tensor) -> Tensor:
        """The target's states as they are."""
        return features

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
        if self._spec.zero_embedding_at_position_0:
            embedded = embedded.masked_fill((positions == 0)[..., None], 0)
        halves = (self.token_norm(embedded), self.hidden_norm(hidden))
        if self._spec.concat_order == "hidden,embedding":
            halves = (halves[1], halves[0])
        x = self.input_proj(torch.cat(halves, dim=-1))
        return self._stack.call(depth, x, positions, attend=attend, only=only)

    def _embedded(self, token_ids: Tensor) -> Tensor:
        if self.embed_tokens is None:
            return self._borrowed[0](token_ids)
        embedded: Tensor = self.embed_tokens(token_ids)
        scale = self._spec.embed_scale
        return embedded if scale is None else embedded * scale

    def finish(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """The final norm's output for the head, and that or the raw state for the next step."""
        normed = self.norm(output)
        return normed, normed if self._spec.recycle == "post_norm" else output

    def logits(self, normed: Tensor) -> Tensor:
        """Draft logits [..., Vd]."""
        logits: Tensor = self._borrowed[1](normed) if self.lm_head is None else self.lm_head(normed)
        if self._spec.logit_scale is not None:
            logits = logits * self._spec.logit_scale
        softcap = self._spec.softcap
        return logits if softcap is None else torch.tanh(logits / softcap) * softcap
