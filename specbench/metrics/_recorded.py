"""Estimates whose evidence is a block of the record itself: what the device's driver said, and the draft vocabulary."""

from __future__ import annotations

from collections.abc import Iterator

from specbench.metrics._emissions import tokens_between
from specbench.metrics._measured import measured
from specbench.records.schema import DraftVocabulary, Telemetry
from specbench.types import Estimate, RunTrace


def recorded_estimates(
    trace: RunTrace, *, telemetry: Telemetry | None, vocabulary: DraftVocabulary | None
) -> list[Estimate]:
    """Energy per token, and coverage of a reduced draft vocabulary; what has no block is absent.

    Tokens are counted again from the trace, so that a block that belongs to other rounds is found out.
    """
    return [*_energy(trace, telemetry), *_coverage(trace, vocabulary)]


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
