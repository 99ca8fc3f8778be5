"""How far a drafter's confidence can be trusted, per draft position.

The forecast at position k is the cumulative product of the confidences up to k, the outcome is accepted >= k; positions
after an accepted stop token are dropped. Conditional scores take the confidence itself, at positions that were reached.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specbench.metrics._group import MetricGroup
from specbench.metrics._measured import Floats, Scope, measured, stop_draft
from specbench.metrics._scores import auroc, auroc_histogram, brier, ece, reliability
from specbench.types import Estimate, RoundTrace, RunTrace

VERIFY_ALL = "verify-all"  # policy_state of the rounds that a truncating policy verified in full, chosen by counter


@dataclass(frozen=True, slots=True)
class Forecasts:
    """Forecasts and outcomes at one draft position (1-based)."""

    k: int
    forecast: Floats  # [n] in [0, 1]
    outcome: NDArray[np.bool_]  # [n]


def _judged(entry: RoundTrace) -> int:
    """How many of the round's positions count: those verified, up to an accepted stop token."""
    stop = stop_draft(entry)
    return min(entry.verified, stop) if stop else entry.verified


def unselected(rounds: Sequence[RoundTrace]) -> list[RoundTrace]:
    """Rounds with confidences whose verified length was not chosen for them.

    Under a fixed policy these are all rounds that verified every draft. As soon as one round was truncated, a fully
    verified round was itself picked by its confidence, and only those marked ``verify-all`` remain.
    """
    drafted = [entry for entry in rounds if entry.confidence is not None and entry.drafted]
    if all(entry.verified == entry.drafted for entry in drafted):
        return drafted
    return [entry for entry in drafted if entry.policy_state == VERIFY_ALL and entry.verified == entry.drafted]


def _collect(rows: list[list[tuple[float, bool]]]) -> list[Forecasts]:
    return [
        Forecasts(k, np.array([p for p, _ in row], dtype=np.float64), np.array([hit for _, hit in row], dtype=bool))
        for k, row in enumerate(rows, start=1)
        if row
    ]


def cumulative_forecasts(rounds: Sequence[RoundTrace], gamma: int) -> list[Forecasts]:
    """Per position: cumulative confidence against accepted >= k, over rounds that verified all their drafts."""
    rows: list[list[tuple[float, bool]]] = [[] for _ in range(gamma)]
    for entry in unselected(rounds):
        assert entry.confidence is not None
        survival = np.cumprod(np.array(entry.confidence, dtype=np.float64))  # [drafted]
        for k in range(1, _judged(entry) + 1):
            rows[k - 1].append((float(survival[k - 1]), entry.accepted >= k))
    return _collect(rows)


def conditional_forecasts(rounds: Sequence[RoundTrace], gamma: int) -> list[Forecasts]:
    """Per position: confidence against accepted >= k, over positions reached (accepted >= k-1) and verified."""
    rows: list[list[tuple[float, bool]]] = [[] for _ in range(gamma)]
    for entry in rounds:
        if entry.confidence is None:
            continue
        for k in range(1, min(_judged(entry), entry.accepted + 1) + 1):
            rows[k - 1].append((float(entry.confidence[k - 1]), entry.accepted >= k))
    return _collect(rows)


def _scores(sample: Forecasts, *, suffix: str, scope: Scope) -> Iterator[Estimate]:
    where, n = (*scope, ("k", str(sample.k))), len(sample.forecast)
    for metric, score in (("ece", ece), ("brier", brier), ("auroc", auroc), ("auroc_histogram", auroc_histogram)):
        value = score(sample.forecast, sample.outcome)
        if value is not None:
            yield Estimate(f"{metric}{suffix}", value, "fraction", n, "positions", where)
    yield Estimate(f"confidence_mean{suffix}", float(sample.forecast.mean()), "fraction", n, "positions", where)
    yield Estimate(f"accepted_mean{suffix}", float(sample.outcome.mean()), "fraction", n, "positions", where)


def _curve(sample: Forecasts) -> Iterator[Estimate]:
    for part in reliability(sample.forecast, sample.outcome):
        scope = (("k", str(sample.k)), ("bin", f"{part.low:g}-{part.high:g}"))
        yield Estimate("reliability_forecast", part.forecast, "fraction", part.count, "positions", scope)
        yield Estimate("reliability_outcome", part.outcome, "fraction", part.count, "positions", scope)


def estimates(trace: RunTrace) -> Iterator[Estimate]:
    """ECE, Brier and AUROC per position: cumulative and conditional, over the run and per domain; reliability bins.

    AUROC is absent where all outcomes are alike; everything is absent without confidences.
    """
    rounds = measured(trace)
    for scope, chosen in rounds.scopes():
        if scope and scope[0][0] != "domain":
            continue
        inside = [entry for entry, member in zip(rounds.rounds, rounds.of(chosen)) if member]
        for sample in cumulative_forecasts(inside, trace.draft_length):
            yield from _scores(sample, suffix="", scope=scope)
            if not scope:
                yield from _curve(sample)
        for sample in conditional_forecasts(inside, trace.draft_length):
            yield from _scores(sample, suffix="_conditional", scope=scope)


PLUGIN = MetricGroup("calibration", "fraction", "lower", estimates)
