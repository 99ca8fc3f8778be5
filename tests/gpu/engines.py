"""Engines of one contestant with all rows seated, to time rounds in."""

from __future__ import annotations

from dataclasses import replace

from specbench.engine.engine import Engine
from specbench.engine.graphs import GraphSettings, settings_for
from specbench.engine.policies.fixed import FixedPolicy
from specbench.types import Sampling
from tests.gpu.acceptance import paper_rates
from tests.gpu.context import Context
from tests.gpu.models import random_drafter
from tests.gpu.scales import TargetShape
from tests.gpu.seating import Bench, rounds_held, seat


def seated(
    context: Context,
    shape: TargetShape,
    method: str,
    *,
    k: int,
    batches: tuple[int, ...],
    cached: int,
    graphs: bool = True,
    sampling: Sampling | None = None,
) -> Bench:
    """As many rows as the largest of ``batches``, with ``cached`` tokens each, drafting ``k`` a round.

    The paper's acceptance is forced. ``graphs``: steps can be padded to exactly these batches, captured on a GPU.
    """
    scale, target = context.scale, context.target(shape)
    rows = max(batches)
    longest = cached + rounds_held(warmup=scale.warmup, repeats=scale.repeats, k=k)
    view = replace(target.view(max_rows=rows + int(graphs), max_context=longest), stop_ids=frozenset())
    settings = None
    if graphs:
        recorder = settings_for(scale.device).recorder
        settings = GraphSettings(rows=tuple(sorted(batches)), lengths=(longest,), recorder=recorder)
    engine = Engine(
        target,
        random_drafter(method, k=k, shape=shape, scale=scale, target=view),
        FixedPolicy(k),
        max_rows=rows,
        max_context=longest,
        method=method,
        synthetic=paper_rates(method, draft_length=k).conditional if k else None,
        graphs=settings,
    )
    seat(engine, rows=rows, context=cached, sampling=sampling)
    return Bench(engine, cached=cached)
