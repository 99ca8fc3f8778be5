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
from tests.gpu.seating import rounds_held, seat


def seated(
    context: Context,
    shape: TargetShape,
    method: str,
    *,
    k: int,
    rows: int,
    cached: int,
    graphs: bool = False,
    sampling: Sampling | None = None,
) -> Engine:
    """``rows`` rows with ``cached`` tokens each, drafting ``k`` a round with the paper's acceptance.

    ``graphs``: padded steps of exactly these sizes, captured on a GPU.
    """
    scale, target = context.scale, context.target(shape)
    longest = cached + rounds_held(warmup=scale.warmup, repeats=scale.repeats, k=k)
    view = replace(target.view(max_rows=rows + int(graphs), max_context=longest), stop_ids=frozenset())
    settings = None
    if graphs:
        settings = GraphSettings(rows=(rows,), lengths=(longest,), recorder=settings_for(scale.device).recorder)
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
    return engine


def not_padded(engine: Engine) -> str | None:
    """Why rounds of an engine that was to use graphs did not, or in part; None where all of it did."""
    assert engine.padded is not None, "the engine was made with graphs"
    facts = engine.padded.facts()
    reasons = [f"{name}: {count} steps" for name, count in facts["plain_steps"].items()]
    reasons += [f"{stage} was not captured: {why}" for stage, why in facts.get("not_captured", {}).items()]
    return "; ".join(reasons) or None
