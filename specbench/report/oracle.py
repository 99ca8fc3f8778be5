"""How fast perfect foresight would have been: a bound on any verification policy, from recorded fixed-length rounds.

In a step with R rows whose drafts were accepted A times in all, a policy that knew would verify K <= A drafts, all of
them accepted, commit R + K tokens and pay for R + K tokens; where the cost table is jagged it may pad with drafts up to
those recorded, if more tokens are cheaper. Over all steps the ratio of tokens to time is maximised (Dinkelbach, "On
nonlinear fractional programming", 1967), so no choice of prefixes of the recorded drafts does better on these steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specbench.errors import RecordError
from specbench.metrics._measured import steps_by_number
from specbench.types import RoundTrace, RunTrace

Seconds = Callable[[NDArray[np.int64], int], NDArray[np.float64]]
"""Seconds of a step's forward with so many tokens in the batch (an array), of so many rows."""


@dataclass(frozen=True, slots=True)
class OracleBound:
    """Throughput by the cost table: of perfect foresight, and of the recorded lengths on the same steps."""

    tokens_per_s: float
    recorded_tokens_per_s: float
    budget: float  # mean tokens verified a row and step, the anchor included
    recorded_budget: float
    steps: int


@dataclass(frozen=True, slots=True)
class _Step:
    rows: int
    accepted: int
    verified: int
    seconds: NDArray[np.float64]  # [accepted + 1], cheapest way to verify at least that many drafts
    recorded_s: float


def oracle_bound(
    trace: RunTrace, seconds: Seconds, *, draft_seconds: Callable[[int], float] | None = None
) -> OracleBound:
    """The bound over the trace's steps.

    ``draft_seconds`` gives the price of drafting by rows, paid in every step; None leaves it out. Errors: RecordError
    when some round verified less than it drafted: a cut round does not show what would have been accepted.
    """
    steps = _steps(trace, seconds, draft_seconds)
    if not steps:
        raise RecordError(f"the run of '{trace.method}' holds no rounds with drafts; an oracle needs some")
    rate = 0.0
    while True:
        taken = [int(np.argmax(np.arange(step.accepted + 1) - rate * step.seconds)) for step in steps]
        tokens = sum(step.rows + k for step, k in zip(steps, taken, strict=True))
        better = tokens / sum(float(step.seconds[k]) for step, k in zip(steps, taken, strict=True))
        if better <= rate * (1 + 1e-12):
            break
        rate = better
    rows = sum(step.rows for step in steps)
    return OracleBound(
        tokens_per_s=rate,
        recorded_tokens_per_s=sum(s.rows + s.accepted for s in steps) / sum(s.recorded_s for s in steps),
        budget=1 + sum(taken) / rows,
        recorded_budget=1 + sum(s.verified for s in steps) / rows,
        steps=len(steps),
    )


def _steps(trace: RunTrace, seconds: Seconds, draft_seconds: Callable[[int], float] | None) -> list[_Step]:
    grouped: dict[int, list[RoundTrace]] = {}
    for entry in trace.rounds:
        if entry.verified < entry.drafted:
            raise RecordError(
                f"round {entry.round} of '{entry.request}' verified {entry.verified} of {entry.drafted} drafts; an "
                "oracle needs rounds of a fixed policy"
            )
        grouped.setdefault(entry.step, []).append(entry)
    prompts = {number: step.prefill_tokens for number, step in steps_by_number(trace).items()}
    found = []
    for number, entries in sorted(grouped.items()):
        rows, verified = len(entries), sum(entry.verified for entry in entries)
        if not verified:
            continue
        price = 0.0 if draft_seconds is None else draft_seconds(rows)
        cost = seconds(np.arange(verified + 1, dtype=np.int64) + rows + prompts[number], rows) + price  # [verified + 1]
        cheapest = np.minimum.accumulate(cost[::-1])[::-1]
        accepted = sum(entry.accepted for entry in entries)
        found.append(_Step(rows, accepted, verified, cheapest[: accepted + 1], float(cost[verified])))
    return found
