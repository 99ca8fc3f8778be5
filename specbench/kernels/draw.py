"""Draft tokens from draft logits: the argmax, or a sample together with the distribution that it was drawn from."""

from __future__ import annotations

from torch import Tensor

from specbench.kernels.probs import process_logits
from specbench.kernels.sample import sample
from specbench.types import DraftLogits, Rows


def draw(
    logits: Tensor,
    rows: Rows,
    *,
    uniforms: Tensor | None,
    id_map: Tensor | None = None,
    width: int | None = None,
    greedy: bool = False,
) -> tuple[Tensor, DraftLogits | None]:
    """Draft tokens [B, G] (target ids) from ``logits`` [B, G, Vd], and their distribution where one was sampled.

    Rows with temperature 0 take the argmax; so do all with ``greedy``, and then no distribution is kept (point
    masses). ``uniforms`` [B, G] float64 may be None where nothing is sampled. Only the first ``width`` draft ids may
    be drawn (see `specbench.drafting.vocab.nameable`); None: all.
    """
    logits, id_map = nameable_part(logits, id_map=id_map, width=width)
    if greedy or rows.all_greedy:
        return _target_ids(logits.argmax(dim=-1), id_map), None
    assert uniforms is not None, "sampling without random numbers"
    batch, drafts, width = logits.shape
    # Rows at temperature 0 come back as a point mass at their argmax, so their sample is their argmax.
    processed, log_normaliser = process_logits(
        logits.reshape(batch * drafts, width),
        temperature=rows.temperature.repeat_interleave(drafts),
        top_p=rows.top_p.repeat_interleave(drafts),
        top_k=rows.top_k.repeat_interleave(drafts),
        any_truncated=rows.any_truncated,
        any_greedy=rows.any_greedy,
    )
    ids = sample(processed, log_normaliser, uniforms.reshape(-1)).view(batch, drafts)
    draft = DraftLogits(
        logits=processed.view(batch, drafts, width),
        log_normaliser=log_normaliser.view(batch, drafts),
        id_map=id_map,
    )
    return _target_ids(ids, id_map), draft


def nameable_part(logits: Tensor, *, id_map: Tensor | None, width: int | None) -> tuple[Tensor, Tensor | None]:
    """The first ``width`` draft ids of ``logits`` [..., Vd] and of the map; None: all."""
    if width is None or width >= logits.shape[-1]:
        return logits, id_map
    return logits[..., :width], None if id_map is None else id_map[:width]


def _target_ids(ids: Tensor, id_map: Tensor | None) -> Tensor:
    return ids if id_map is None else id_map[ids]
