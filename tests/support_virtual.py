"""The real engine on a tiny target in virtual time, its steps priced by a cost table: what simulations are held to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from support_drafters import StatelessDrafter
from torch import Tensor

from specbench.engine.clock import VirtualClock
from specbench.engine.cost_table import CostTable, RowCost
from specbench.engine.engine import Engine
from specbench.engine.policies.fixed import FixedPolicy
from specbench.engine.target import Target
from specbench.engine.trace import Recorder
from specbench.simulation.engine import ClockTimer
from specbench.types import Prompt, Proposal, Request, Rows, RunTrace
from specbench.workloads.driver import drive
from specbench.workloads.patterns import open_load

TABLE = CostTable(
    tokens=(1, 8, 32, 256),
    steps_per_s=(100.0, 80.0, 50.0, 10.0),
    max_tokens=256,
    lookup="linear",
    row_cost=RowCost((1, 8), (0.0, 0.002)),
    draft={"placed": RowCost((1, 8), (0.001, 0.003), draft_length=3)},
)


class PlacedDrafter(StatelessDrafter):
    """Knows every text and drafts from it: how much, and whether rightly, follows from request and position alone.

    What it drafts is therefore the same on any schedule. ``texts[number]`` is prompt + output.
    """

    def __init__(self, texts: Mapping[int, Sequence[int]]) -> None:
        self.texts = texts

    def propose(self, rows: Rows, *, limits: Tensor, rng: Any) -> Proposal:
        asked, numbers = limits.tolist(), rows.number.tolist()
        width = max(asked)
        tokens = torch.full((len(rows), width), 3, dtype=torch.int64)
        sure = torch.full((len(rows), width), 0.25)
        counts = []
        for b, (number, length, limit) in enumerate(zip(numbers, rows.lengths_host, asked, strict=True)):
            counts.append(min((number + length) % 7, limit))
            for k in range(counts[-1]):
                text, at = self.texts[number], length + 1 + k
                right = at < len(text) and (number + 5 * length + 3 * k) % 7 > 1
                tokens[b, k] = text[at] if right else (text[at] + 1 if at < len(text) else 3)
                sure[b, k] = 0.875 if right else 0.25
        return Proposal(tokens, torch.tensor(counts), confidence=sure)


def priced_run(
    target: Target,
    drafter: Any,
    conversations: Sequence[Sequence[Request]],
    *,
    rows: int,
    k: int,
    method: str = "placed",
    overhead_s: float = 0.0,
    workload: str = "closed",
    load: dict[str, Any] | None = None,
) -> RunTrace:
    """Every conversation (its turns ready-made) through the real engine; time passes as `TABLE` says."""
    clock = VirtualClock()
    forward, propose = target.lm.forward, drafter.propose

    def priced_forward(ids: Any, *, layout: Any, **more: Any) -> Any:
        count = sum(group.lengths.shape[0] for group in layout.groups)
        clock.advance(float(TABLE.seconds(layout.num_tokens, rows=count)))
        return forward(ids, layout=layout, **more)

    def priced_propose(asked: Any, *, limits: Any, rng: Any) -> Any:
        drafting = int((limits > 0).sum())
        clock.advance(float(TABLE.draft["placed"].at(drafting)) if drafting else 0.0)
        return propose(asked, limits=limits, rng=rng)

    class Priced(Engine):
        def _advance(self, *parts: Any) -> None:
            clock.advance(overhead_s)
            super()._advance(*parts)

    target.lm.forward, drafter.propose = priced_forward, priced_propose  # type: ignore[method-assign]
    engine = Priced(target, drafter, FixedPolicy(k), max_rows=rows, max_context=200, clock=clock, method=method)
    engine.timer = ClockTimer(clock)
    engine.recorder = Recorder(engine.timer)
    by_id = {str(index): turns for index, turns in enumerate(conversations)}
    try:
        return drive(
            engine,
            conversations=[Prompt(name, "toy", "toy", ("",) * len(turns)) for name, turns in by_id.items()],
            build=lambda prompt, answers: by_id[prompt.id][len(answers)],
            arrivals=open_load(workload, concurrency=rows, options=load or {}, seed=0),
            clock=clock,
        ).trace
    finally:
        target.lm.forward, drafter.propose = forward, propose  # type: ignore[method-assign]


def timing(trace: RunTrace) -> dict[str, tuple[float, ...]]:
    """When each request arrived and each of its tokens became visible."""
    return {r.id: (r.arrival_s, r.admitted_s or 0.0, *r.token_times_s, r.finish_s or 0.0) for r in trace.requests}
