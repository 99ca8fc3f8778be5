"""Where a round's time goes: drafting, scheduling, verification, acceptance and the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from specbench.metrics._bootstrap import ratio_estimate
from specbench.metrics._emissions import pure_decode
from specbench.metrics._group import MetricGroup
from specbench.metrics._measured import Flags, Measured, Scope, measured, steps_by_number
from specbench.types import Estimate, RunTrace, StepTrace

PHASES = {
    "T_draft": "draft_s",
    "T_schedule": "schedule_s",
    "T_verify": "verify_s",
    "T_accept": "accept_s",
    "T_other": "other_s",
    "T_round": "total_s",
}


def _split(steps: Sequence[StepTrace], kind: str, scope: Scope) -> Iterator[Estimate]:
    """Mean and median seconds of every phase over steps; the means of the five parts add up to T_round's."""
    for metric, attribute in PHASES.items():
        values = [float(getattr(step, attribute)) for step in steps]
        for stat, value in (("mean", np.mean(values)), ("median", np.median(values))):
            where = (*scope, ("steps", kind), ("stat", stat))
            yield Estimate(metric, float(value), "s", len(values), "steps", where)


def _by_kind(rounds: Measured, steps: dict[int, StepTrace], chosen: Flags, scope: Scope) -> Iterator[Estimate]:
    mask = rounds.of(chosen)
    numbers = sorted({entry.step for entry, inside in zip(rounds.rounds, mask) if inside})
    held = [steps[number] for number in numbers]
    pure = [step for step in held if pure_decode(step)]
    mixed = [step for step in held if not pure_decode(step)]
    for kind, group in (("decode", pure), ("with prefill", mixed)):
        if group:
            yield from _split(group, kind, scope)


def _seconds_per_token(rounds: Measured, steps: dict[int, StepTrace], chosen: Flags, scope: Scope) -> list[Estimate]:
    """L = round time / committed, pooled over the rounds of pure decode steps: seconds a user waits for a token."""
    pure = np.array([pure_decode(steps[entry.step]) for entry in rounds.rounds], dtype=bool)
    mask = rounds.of(chosen) & pure
    times = [steps[entry.step].total_s for entry, inside in zip(rounds.rounds, mask) if inside]
    return ratio_estimate(
        "L",
        unit="s/token",
        numerators=times,
        denominators=rounds.committed[mask],
        cluster=rounds.round_cluster[mask],
        n=len(times),
        n_of="rounds in pure decode steps",
        scope=scope,
    )


def estimates(trace: RunTrace) -> Iterator[Estimate]:
    """The time split of steps that held a measured row, pure decode steps and steps with prompt tokens apart, and L.

    A step that served several domains counts once in each.
    """
    rounds = measured(trace)
    steps = steps_by_number(trace)
    for scope, chosen in rounds.scopes():
        yield from _by_kind(rounds, steps, chosen, scope)
        yield from _seconds_per_token(rounds, steps, chosen, scope)
    held = {entry.step for entry in rounds.rounds}
    if held:
        rows = float(np.mean([steps[number].decode_rows for number in sorted(held)]))
        yield Estimate("mean_batch_rows", rows, "rows", len(held), "steps")


PLUGIN = MetricGroup("verification", "s", "lower", estimates)
