"""Training batches of draft blocks: many anchors of many sequences in one dense batch, causality by index tensors.

Sequences lie flat one after another, nothing is padded to the longest. A block sees the context strictly before its
own anchor and itself (deepseek-ai/DeepSpec; the DSpark paper's anchor-bounded packing), so context keys end at a
sequence's last anchor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from specbench.drafting.attention import attend
from specbench.drafting.block_model import BlockModel


@dataclass(frozen=True, slots=True)
class PackedBlocks:
    """N anchors in T flat tokens, G predictions a block. Index tensors name flat tokens.

    ``labels``, ``previous`` and ``teacher_rows`` belong to prediction k = 0..G-1 of a block: the token it must name,
    the token before that, and the token whose target state predicts it. ``supervised`` is False from the first
    position on that has no label (end of sequence, or a gap in the loss mask).
    """

    positions: Tensor  # [T] int64, position in its own sequence
    anchors: Tensor  # [N] int64, flat index of each anchor
    anchor_ids: Tensor  # [N] int64
    labels: Tensor  # [N, G] int64
    previous: Tensor  # [N, G] int64
    teacher_rows: Tensor  # [N, G] int64
    supervised: Tensor  # [N, G] bool
    sequence_starts_host: tuple[int, ...]  # [sequences + 1], in tokens
    block_starts_host: tuple[int, ...]  # [sequences + 1], in anchors
    context_ends_host: tuple[int, ...]  # [sequences], flat index where the last anchor's context ends

    def __len__(self) -> int:
        return self.anchors.shape[0]


def sample_anchors(
    loss_mask: Tensor, *, sequence_starts: Sequence[int], limit: int, generator: torch.Generator | None = None
) -> Tensor:
    """At most ``limit`` anchors a sequence, without replacement, in order: flat indices [N] int64.

    ``loss_mask`` [T] bool marks the tokens that are trained on. A token can be an anchor when it and the next one are
    marked and in one sequence. ``sequence_starts`` are host values [sequences + 1].
    """
    candidates = loss_mask.bool().clone()
    candidates[:-1] &= loss_mask[1:].bool()
    for end in sequence_starts[1:]:
        if end > 0:
            candidates[end - 1] = False
    noise = torch.rand(loss_mask.shape, generator=generator, device=loss_mask.device)
    chosen = []
    for start, end in pairwise(sequence_starts):
        allowed = candidates[start:end].nonzero()[:, 0] + start
        order = noise[allowed].argsort()[:limit]
        chosen.append(allowed[order].sort().values)
    return torch.cat(chosen) if chosen else loss_mask.new_empty(0, dtype=torch.int64)


def pack_blocks(
    token_ids: Tensor, loss_mask: Tensor, *, anchors: Tensor, sequence_starts: Sequence[int], drafts: int
) -> PackedBlocks:
    """Index tensors of blocks with ``drafts`` predictions after each of ``anchors`` [N] (flat, ascending).

    ``token_ids`` and ``loss_mask`` [T]; prediction k of the block at anchor a is token a + k + 1 of its sequence.
    """
    device, count = token_ids.device, token_ids.shape[0]
    starts = torch.tensor(sequence_starts, device=device)
    sequence = torch.bucketize(anchors, starts[1:], right=True)  # [N]
    ends = starts[1:][sequence]
    targets = anchors[:, None] + torch.arange(1, drafts + 1, device=device)  # [N, G]
    inside = targets < ends[:, None]
    before, targets = (targets - 1).clamp(max=count - 1), targets.clamp(max=count - 1)
    supervised = (inside & loss_mask.bool()[targets]).to(torch.int64).cumprod(dim=1).bool()
    blocks = torch.searchsorted(anchors, starts).tolist()
    anchors_host = anchors.tolist()
    context_ends = [
        anchors_host[last - 1] if last > first else sequence_starts[index]
        for index, (first, last) in enumerate(pairwise(blocks))
    ]
    of_token = torch.bucketize(torch.arange(count, device=device), starts[1:], right=True)
    return PackedBlocks(
        positions=torch.arange(count, device=device) - starts[of_token],
        anchors=anchors,
        anchor_ids=token_ids[anchors],
        labels=token_ids[targets],
        previous=token_ids[before],
        teacher_rows=before,
        supervised=supervised,
        sequence_starts_host=tuple(sequence_starts),
        block_starts_host=tuple(blocks),
        context_ends_host=tuple(context_ends),
    )


def packed_hidden(model: BlockModel, features: Tensor, packed: PackedBlocks, *, drafts: int | None = None) -> Tensor:
    """Final-normed states [N, G, d] of all predicting rows; differentiable.

    ``features`` [T, feature_size] are the target's taps at every flat token. ``drafts`` G below the model's own makes
    shorter blocks (a curriculum): the anchor and fewer masks.
    """
    drafts = model.config.max_drafts if drafts is None else drafts
    span = model.config.block_inputs - model.config.max_drafts + drafts
    context = list(model.context_keys(model.context(features), packed.positions))
    positions = packed.positions[packed.anchors][:, None] + torch.arange(span, device=features.device)  # [N, S]
    masks = _masks(model, packed, positions)

    def attend_layer(layer: int, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        rule = (model.config.shape.causal[layer], model.config.shape.window[layer])
        parts = []
        for index, (first, last) in enumerate(pairwise(packed.block_starts_host)):
            if first == last:
                continue
            seen = slice(packed.sequence_starts_host[index], packed.context_ends_host[index])
            joined = [
                torch.cat((before[seen], rows[first:last].flatten(0, 1)))[None]
                for before, rows in zip(context[layer], (keys, values), strict=True)
            ]
            flat = query[first:last].flatten(0, 1)[None]
            out = attend(flat, joined[0], joined[1], mask=masks[rule][index][None], scale=model.scale(layer))
            parts.append(out[0].view(last - first, span, *out.shape[2:]))
        return torch.cat(parts)

    inputs = model.block_embeddings(packed.anchor_ids)[:, :span]
    return model.predictions(model.block(inputs, positions=positions, attend=attend_layer), drafts=drafts)


def _masks(model: BlockModel, packed: PackedBlocks, positions: Tensor) -> dict[tuple[bool, int | None], list[Tensor]]:
    """Per attention rule and sequence which keys (context, then all blocks' rows) each block row sees."""
    shape = model.config.shape
    made: dict[tuple[bool, int | None], list[Tensor]] = {}
    for causal, window in set(zip(shape.causal, shape.window, strict=True)):
        made[causal, window] = []
        for index, (first, last) in enumerate(pairwise(packed.block_starts_host)):
            rows = positions[first:last]  # [n, S]
            begin, end = packed.sequence_starts_host[index], packed.context_ends_host[index]
            context = packed.positions[begin:end]
            keys = torch.cat((context, rows.flatten()))
            query = rows.flatten()[:, None]
            block = torch.arange(last - first, device=rows.device).repeat_interleave(rows.shape[1])
            anchor = rows[:, :1].expand_as(rows).flatten()
            seen = torch.cat((context < anchor[:, None], block == block[:, None]), dim=1)
            if causal:
                seen &= keys <= query
            if window is not None:
                seen &= query - keys < window
                if not causal:
                    seen &= keys - query < window
            made[causal, window].append(seen)
    return made
