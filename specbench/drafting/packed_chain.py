"""Training batches of drafted chains: many anchors of many sequences in one batch, as `packing` has it for blocks.

Only step 0 reads the whole context, and only for its keys and values: a chain's later steps see the context through
them and themselves, so they are computed at the anchors alone. With every token an anchor this is the training-time
test of `ttt`; with a sample of them it costs accordingly less. Sequences lie flat, nothing is padded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from specbench.drafting.attention import attend
from specbench.drafting.chain import ChainModel
from specbench.drafting.packing import PackedBlocks
from specbench.drafting.ttt import check_one_depth

_KEPT_SCORES = 1 << 21  # chains times context up to which their scores are kept for the backward pass


@dataclass(slots=True)
class _Layer:
    """Keys and values of step 0 for all tokens [T, ...], then of each later step for the chains [N, ...]."""

    keys: Tensor
    values: Tensor
    later: list[tuple[Tensor, Tensor]] = field(default_factory=list)


class AnchorAttend:
    """Attention of packed chains; differentiable (see `chain_attention.Attend`).

    A layer's first call is step 0: keys and values of every token, queries of every token or of ``only``. In later
    calls row n is chain n, which sees the tokens up to its own pair and its own later keys.
    """

    def __init__(self, packed: PackedBlocks) -> None:
        self._packed = packed
        # [N] flat index of each chain's first pair; a sequence's first token has none and stands for itself
        first = (packed.positions[packed.anchors] == 0).to(packed.anchors.dtype)
        self._pairs = packed.anchors - 1 + first
        self._layers: dict[int, _Layer] = {}

    def __call__(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scaling: float,
        window: int | None = None,
        only: Tensor | None = None,
    ) -> Tensor:
        """[1, N, H, dv], or [1, T, H, dv] in a first call without ``only``."""
        packed = self._packed
        first = layer not in self._layers
        if first:
            self._layers[layer] = _Layer(key[0], value[0])
        else:
            self._layers[layer].later.append((key[0], value[0]))
        everywhere = first and only is None
        index = torch.arange(key.shape[1], device=key.device) if everywhere else self._pairs
        bounds = packed.sequence_starts_host if everywhere else packed.block_starts_host
        parts = []
        for number, (begin, end) in enumerate(pairwise(bounds)):
            if begin == end:
                continue
            start = packed.sequence_starts_host[number]
            stop = packed.sequence_starts_host[number + 1] if everywhere else packed.context_ends_host[number] + 1
            parts.append(
                self._rows(
                    self._layers[layer], query[0, begin:end], slice(begin, end), slice(start, stop),
                    index=index[begin:end], scaling=scaling, window=window,
                )
            )  # fmt: skip
        return torch.cat(parts)[None]

    @staticmethod
    def _rows(
        kept: _Layer,
        query: Tensor,
        rows: slice,
        tokens: slice,
        *,
        index: Tensor,
        scaling: float,
        window: int | None,
    ) -> Tensor:
        """[n, H, dv] of the chains ``rows`` of one sequence, whose context are ``tokens``."""
        keys, values = kept.keys[tokens], kept.values[tokens]  # [L, Hkv, d]
        step = len(kept.later)
        at = torch.arange(tokens.start, tokens.stop, device=query.device)
        seen = at <= index[:, None]  # [n, L]
        if window is not None:
            seen &= at > index[:, None] + step - window
        if step == 0:
            return attend(query[None], keys[None], values[None], mask=seen[None], scale=scaling)[0]
        later = [(k[rows], v[rows]) for k, v in kept.later]
        size = max(1, _KEPT_SCORES // keys.shape[0])
        if query.shape[0] <= size:
            return _mixed(query, keys, values, seen, scaling, later)
        # Scores of a long text against itself would fill the memory seven times over: they are made again backward.
        parts = []
        for first in range(0, query.shape[0], size):
            part = slice(first, first + size)
            own = [(k[part], v[part]) for k, v in later]
            parts.append(checkpoint(_mixed, query[part], keys, values, seen[part], scaling, own, use_reentrant=False))
        return torch.cat(parts)


def _mixed(
    query: Tensor, keys: Tensor, values: Tensor, seen: Tensor, scaling: float, later: list[tuple[Tensor, Tensor]]
) -> Tensor:
    """[n, H, dv] of chains [n, H, dk] over the visible context [n, L] and their own later keys and values."""
    grouped = query.reshape(query.shape[0], keys.shape[1], -1, query.shape[2])  # [n, Hkv, g, dk]
    context = torch.einsum("nkgd,jkd->nkgj", grouped, keys).masked_fill(~seen[:, None, None], -torch.inf)
    own = torch.stack([torch.einsum("nkgd,nkd->nkg", grouped, k) for k, _ in later], dim=-1)
    scores = torch.cat((context, own), dim=-1).to(torch.float32) * scaling
    shares = torch.softmax(scores, dim=-1).to(values.dtype)
    length = keys.shape[0]
    out = torch.einsum("nkgj,jkd->nkgd", shares[..., :length], values)
    for number, (_, value) in enumerate(later):
        out = out + shares[..., length + number, None] * value[:, :, None]
    return out.flatten(1, 2)


def chain_hidden(
    model: ChainModel, features: Tensor, token_ids: Tensor, packed: PackedBlocks, *, drafts: int
) -> Tensor:
    """What the head reads for predictions 0..G-1 after each anchor: [N, G, d]; differentiable.

    Prediction k comes from the pair of the token before the anchor after k steps on the chain's own states, with the
    true tokens in between. An anchor that begins its sequence has no such pair, and its rows mean nothing.

    Args:
        features: [T, D] tapped states of the target; token_ids: [T].

    Errors: ConfigError for a model whose layers take turns.
    """
    check_one_depth(model)
    attention = AnchorAttend(packed)
    following = token_ids.roll(-1)[None]  # wrong at the end of a sequence, whose pair nothing reads
    pairs = (packed.anchors - 1).clamp(min=0)
    states = model.start(features[None])  # [1, T, d]
    output = model.step(states, following, packed.positions[None], attend=attention, only=pairs)
    normed, hidden = model.finish(output)
    rows = [normed[0]]
    for step in range(1, drafts):
        positions = packed.positions[pairs] + step
        output = model.step(hidden, packed.previous[:, step][None], positions[None], attend=attention)
        normed, hidden = model.finish(output)
        rows.append(normed[0])
    return torch.stack(rows, dim=1)
