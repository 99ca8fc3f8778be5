"""The same requests through the plain loop and through padded steps, and how the two differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from support_checkpoints import VOCAB
from support_contestants import CONTEXT, Case, Stable
from support_engine import outputs
from support_planning import staircase

from specbench import registry
from specbench.engine.cost_table import CostTable
from specbench.engine.engine import Engine
from specbench.engine.graphs import GraphSettings
from specbench.engine.policies.fixed import FixedPolicy
from specbench.engine.policy import PolicyContext
from specbench.modeling.pool import PAGE
from specbench.types import Request, RoundTrace, RunTrace

SIZES = GraphSettings(rows=(1, 2, 4), lengths=(32, CONTEXT), least_saved=1)
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Setting:
    """How requests are served; ``joins``: by number, the step at which they are submitted."""

    policy: str = "fixed"
    rows: int = 3
    pages: int | None = None
    joins: tuple[tuple[int, int], ...] = ()
    prefill: int = 512
    synthetic: tuple[float, ...] | None = None
    cost: CostTable | None = None


def engine_of(stable: Stable, case: Case, setting: Setting, *, graphs: GraphSettings | None) -> Engine:
    """An engine of its own, with a drafter of its own."""
    target, rows = stable.target(case), setting.rows
    drafter = stable.drafter(case, rows=rows + 1)
    length = drafter.trained_length
    name, _, argument = setting.policy.partition(":")
    context = PolicyContext(
        max_rows=rows, device=torch.device("cpu"), method="dspark", cost=setting.cost or staircase()
    )
    policy = registry.load("policies", name)(length, argument or None, context=context) if length else FixedPolicy(0)
    page = PAGE * sum(shape.bytes_per_token(torch.float32) for shape in target.lm.layer_shapes)
    return Engine(
        target,
        drafter,
        policy,
        max_rows=rows,
        max_context=CONTEXT,
        kv_memory_bytes=None if setting.pages is None else setting.pages * page,
        prefill_budget=setting.prefill,
        synthetic=setting.synthetic,
        graphs=graphs,
    )


def run(engine: Engine, requests: Sequence[Request], setting: Setting) -> RunTrace:
    """Serve to the end."""
    late = dict(setting.joins)
    pending = sorted(requests, key=lambda r: late.get(r.number, 0))
    step = 0
    while pending or engine.has_work:
        while pending and late.get(pending[0].number, 0) <= step:
            engine.submit(pending.pop(0))
        engine.poll()
        step += 1
        assert step < 10_000, "the engine does not end"
    return engine.close()


def difference(plain: RunTrace, padded: RunTrace) -> str | None:
    """The first thing that padded steps changed, in words; None where there is nothing."""
    if outputs(plain) != outputs(padded):
        return "other tokens"
    if [r.preemptions for r in plain.requests] != [r.preemptions for r in padded.requests]:
        return "other preemptions"
    steps = [[(s.decode_rows, s.decode_tokens, s.prefill_tokens) for s in trace.steps] for trace in (plain, padded)]
    if steps[0] != steps[1]:
        return "other rows or tokens in a step"
    if len(plain.rounds) != len(padded.rounds):
        return "another number of rounds"
    for one, other in zip(plain.rounds, padded.rounds, strict=True):
        if _exact(one) != _exact(other):
            return f"rounds {_exact(one)} and {_exact(other)}"
        for name in ("confidence", "top2_gap", "log_p_target", "log_p_draft"):
            if not _near(getattr(one, name), getattr(other, name)):
                return f"{name} {getattr(one, name)} and {getattr(other, name)} in {one.request}, round {one.round}"
    return None


def _exact(found: RoundTrace) -> RoundTrace:
    state = found.policy_state.split(" theta=")[0]  # a sum of confidences
    nothing: dict[str, Any] = {"confidence": None, "top2_gap": None, "log_p_target": None, "log_p_draft": None}
    return replace(found, policy_state=state, **nothing)


def _near(one: tuple[float, ...] | None, other: tuple[float, ...] | None) -> bool:
    if one is None or other is None:
        return one is other
    return len(one) == len(other) and all(a == b or abs(a - b) < TOLERANCE for a, b in zip(one, other, strict=True))


def both(
    stable: Stable, case: Case, requests: Sequence[Request], setting: Setting, *, graphs: GraphSettings = SIZES
) -> tuple[RunTrace, RunTrace, Engine]:
    """Plain trace, padded trace, and the engine of the latter."""
    plain = run(engine_of(stable, case, setting, graphs=None), requests, setting)
    engine = engine_of(stable, case, setting, graphs=graphs)
    return plain, run(engine, requests, setting), engine


__all__ = ["SIZES", "VOCAB", "Setting", "both", "difference", "engine_of", "run"]
