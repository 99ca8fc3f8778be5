"""Simulated rounds whose confidences are wrong in a known way."""

from __future__ import annotations

import numpy as np
from support_traces import Round, make_request, make_trace

from specbench.metrics._sts import scaled
from specbench.types import RunTrace


def confident_trace(
    temperatures: tuple[float, ...],
    *,
    prompts: int = 40,
    rounds: int = 100,
    domains: tuple[str, ...] = ("math",),
    shift: float = 0.0,
    seed: int = 0,
    verify: str = "",
) -> RunTrace:
    """Log-odds inflated by ``temperatures`` and moved by ``shift``; ten prompts run at a time, domains in turn."""
    generator = np.random.default_rng(seed)
    made, step = [], 1
    for number in range(prompts):
        entries = []
        for _ in range(rounds):
            truth = generator.normal(1.0, 1.2, size=len(temperatures))
            hits = generator.random(len(temperatures)) < scaled(truth, 1.0)
            told = scaled(truth * np.array(temperatures) + shift, 1.0)
            accepted = int(np.cumprod(hits).sum())
            entries.append(
                Round(
                    accepted,
                    verified=len(temperatures),
                    confidence=tuple(float(c) for c in told),
                    policy_state=verify,
                )
            )
        made.append(
            make_request(
                entries, id=f"r{number}", number=number, domain=domains[number % len(domains)], first_step=step
            )
        )
        step += rounds if number % 10 == 9 else 0
    return make_trace(made, draft_length=len(temperatures))
