"""Log likelihood of given texts by the target's own forward; speculation has no part in it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.engine.target import Target
from specbench.errors import CapacityError
from specbench.modeling.layout import BatchLayout, RowSpan
from specbench.modeling.pool import KVPool, pages_for
from specbench.types import Taps


@torch.inference_mode()
def score(target: Target, context: Sequence[int], continuation: Sequence[int]) -> tuple[float, bool]:
    """Sum of log probabilities of the continuation's tokens after the context, and whether each is the likeliest.

    Errors: CapacityError when both together exceed the target's context.
    """
    assert context, "a continuation follows at least one token"
    if not continuation:
        return 0.0, True
    whole = [*context, *continuation]
    if len(whole) > target.context_limit + 1:
        raise CapacityError(
            f"a text of {len(whole)} tokens does not fit the context of {target.context_limit}; use fewer shots"
        )
    logits = _logits(target, whole[:-1], last=len(continuation))  # [C, V]
    wanted = torch.tensor(list(continuation), device=logits.device)
    chosen = torch.log_softmax(logits, dim=-1).gather(1, wanted[:, None])
    return float(chosen.sum()), bool((logits.argmax(dim=-1) == wanted).all())


def _logits(target: Target, tokens: Sequence[int], *, last: int) -> Tensor:
    """[last, V] float32 logits after each of the last tokens."""
    lm, count = target.lm, len(tokens)
    lm.set_taps(Taps())
    pool = KVPool(lm.layer_shapes, num_pages=pages_for(count), dtype=lm.dtype, device=lm.device)
    span = RowSpan(0, count, count, pool.take(pages_for(count)) or [])
    asked = torch.arange(count - last, count, device=lm.device)
    ids = torch.tensor(list(tokens), device=lm.device)
    layout = BatchLayout.build([span], lm.device)
    return lm.forward(ids, layout=layout, pool=pool, logits_at=asked).logits.float()
