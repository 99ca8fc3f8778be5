"""Running the real engine on tiny targets: requests in, trace out."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from specbench.api import Drafter
from specbench.engine.engine import Engine
from specbench.engine.policies.fixed import FixedPolicy
from specbench.engine.target import Target
from specbench.types import Request, RunTrace, Sampling


def prompts(count: int, *, seed: int = 0, low: int = 3, high: int = 97, longest: int = 30) -> list[tuple[int, ...]]:
    """Random token prompts of unequal length."""
    rng = random.Random(seed)
    return [tuple(rng.randrange(low, high) for _ in range(rng.randrange(4, longest))) for _ in range(count)]


def request(number: int, ids: Sequence[int], **changes: Any) -> Request:
    """A greedy request without stop tokens unless ``changes`` say otherwise."""
    fields: dict[str, Any] = {
        "id": f"r{number}",
        "number": number,
        "prompt_ids": tuple(ids),
        "max_new_tokens": 24,
        "sampling": Sampling(),
        "seed": 0,
        "stop_ids": frozenset(),
        "ignore_eos": False,
        "task": "toy",
        "domain": "toy",
    }
    return Request(**{**fields, **changes})


def serve(
    target: Target,
    drafter: Drafter,
    requests: Sequence[Request],
    *,
    k: int = 3,
    rows: int = 4,
    max_context: int = 200,
    policy: Any = None,
    joins: dict[int, int] | None = None,
    **options: Any,
) -> RunTrace:
    """Run requests to their end. ``joins``: request number -> step at which it is submitted (default 0)."""
    engine = Engine(
        target, drafter, policy or FixedPolicy(k), max_rows=rows, max_context=max_context, method="test", **options
    )
    late = dict(joins or {})
    pending = sorted(requests, key=lambda r: late.get(r.number, 0))
    step = 0
    while pending or engine.has_work:
        while pending and late.get(pending[0].number, 0) <= step:
            engine.submit(pending.pop(0))
        engine.poll()
        step += 1
        assert step < 100_000, "the engine does not end"
    return engine.close()


def outputs(trace: RunTrace) -> dict[str, tuple[int, ...]]:
    """Output tokens by request."""
    return {r.id: r.output_ids for r in trace.requests}
