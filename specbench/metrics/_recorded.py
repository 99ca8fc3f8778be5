"""Estimates whose evidence is a block of the record itself: the device's driver, the draft vocabulary, a grader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from specbench.metrics._bootstrap import INTERVAL, mean_estimate
from specbench.metrics._emissions import tokens_between
from specbench.metrics._measured import measured
from specbench.records.schema import DraftVocabulary, GradedRow, Telemetry
from specbench.types import Estimate, RunTrace


def recorded_estimates(
    trace: RunTrace, *, telemetry: Telemetry | None, vocabulary: DraftVocabulary | None
) -> list[Estimate]:
    """Energy per token, and coverage of a reduced draft vocabulary; what has no block is absent.

    Tokens are counted again from the trace, so that a block that belongs to other rounds is found out.
    """
    return [*_energy(trace, telemetry), *_coverage(trace, vocabulary)]


def graded_estimates(graded: Sequence[GradedRow], *, control: Sequence[GradedRow] = ()) -> list[Estimate]:
    """The mean score of each task, and its difference from plain decoding's over the items that both answered.

    Intervals are over items; the difference is paired: it resamples the differences of items.
    """
    plain = {_graded_scope(row): row.scores for row in control}
    found: list[Estimate] = []
    for row in graded:
        scope, ours = _graded_scope(row), row.scores
        found += _item_mean("item_score", list(ours.values()), scope)
        theirs = plain.get(scope, {})
        paired = [value - theirs[item] for item, value in ours.items() if item in theirs]
        for estimate in _item_mean("item_score_difference", paired, scope):
            found.append(replace(estimate, interval=estimate.interval and f"paired {INTERVAL}"))
    return found


def _graded_scope(row: GradedRow) -> tuple[tuple[str, str], ...]:
    return (("task", row.task), ("grade", row.metric), ("filter", row.filter))


def _item_mean(metric: str, values: Sequence[float], scope: tuple[tuple[str, str], ...]) -> list[Estimate]:
    items = np.arange(len(values), dtype=np.int64)
    return mean_estimate(metric, unit="score", values=values, cluster=items, n_of="items", scope=scope)


def _energy(trace: RunTrace, telemetry: Telemetry | None) -> Iterator[Estimate]:
    """Joules of the whole device in the measured window, idle time included, per output token made in it."""
    if telemetry is None or telemetry.energy_j is None:
        return
    tokens = tokens_between(trace, telemetry.start_s, telemetry.end_s)
    if tokens:
        n_of = "output tokens in the measured window"
        yield Estimate("joules_per_token", telemetry.energy_j / tokens, "J/token", tokens, n_of)


def _coverage(trace: RunTrace, vocabulary: DraftVocabulary | None) -> Iterator[Estimate]:
    """Share of the tokens committed in measured rounds that the drafter can name."""
    committed = int(measured(trace).committed.sum())
    if vocabulary is not None and committed:
        share = vocabulary.inside / committed
        yield Estimate("draft_vocabulary_coverage", share, "fraction", committed, "tokens committed")
