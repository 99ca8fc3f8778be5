"""One position of a semi-autoregressive head: a low-rank bias on base logits, and a draft token from their sum.

The head is that of DSpark (arXiv 2607.05147): the bias is W2 times a row of rank r, which for the plain head is the
embedding in W1 of the token before.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from specbench.kernels.dispatch import uses_triton
from specbench.kernels.draw import draw, nameable_part
from specbench.types import DraftLogits, Rows


def kept_for(base: Tensor, *, id_map: Tensor | None, width: int | None) -> DraftLogits:
    """Room for the distributions of all positions of ``base`` [B, G, Vd]; `markov_step` fills one at a time."""
    part, id_map = nameable_part(base, id_map=id_map, width=width)
    return DraftLogits(
        logits=torch.empty(part.shape, dtype=torch.float32, device=base.device),
        log_normaliser=torch.empty(part.shape[:2], dtype=torch.float32, device=base.device),
        id_map=id_map,
    )


def markov_step(
    base: Tensor,
    *,
    table: Tensor,
    index: Tensor | None,
    product: nn.Module,
    rows: Rows,
    uniforms: Tensor | None,
    id_map: Tensor | None,
    width: int | None,
    kept: DraftLogits | None,
    position: int,
) -> Tensor:
    """Draft tokens [B] (target ids) from ``base`` + product(table[index]), both rounded as their types say.

    Args:
        base: [B, Vd], the backbone's logits at this position.
        table: [*, r], and index: [B] int64, which row of it each request takes; None: the first B in order.
        product: the linear layer W2 without bias, [.., r] to [.., Vd].
        rows, uniforms [B], id_map, width: as of `draw`; without uniforms the argmax is taken.
        kept: with uniforms, the room of `kept_for`; ``position`` of it receives the distribution drawn from.
    """
    assert (uniforms is None) == (kept is None), "what is sampled keeps its distribution"
    if uses_triton(base):
        from specbench.kernels._triton import markov as twin

        return twin.markov_step(
            base,
            table=table,
            index=index,
            product=product,
            rows=rows,
            uniforms=uniforms,
            id_map=id_map,
            width=width,
            kept=kept,
            position=position,
        )
    low = table if index is None else functional.embedding(index, table)  # [B, r]
    logits = (base + product(low))[:, None]  # [B, 1, Vd]
    noise = None if uniforms is None else uniforms[:, None]
    tokens, draft = draw(logits, rows, uniforms=noise, id_map=id_map, width=width, greedy=uniforms is None)
    if kept is not None:
        assert draft is not None, "some row is sampled"
        kept.logits[:, position].copy_(draft.logits[:, 0])
        kept.log_normaliser[:, position].copy_(draft.log_normaliser[:, 0])
    return tokens[:, 0]
