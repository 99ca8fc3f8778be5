"""The oracle bound against brute force, and as a bound on real policies."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support_planning import staircase
from support_traces import Round, make_request, make_trace

from specbench.errors import RecordError
from specbench.report.oracle import oracle_bound
from specbench.types import RunTrace


def lockstep(accepted: list[list[int]], *, drafts: int = 3) -> RunTrace:
    """``accepted[r][s]``: row r in step s; all rows run in the same steps."""
    made = [
        make_request([Round(a, verified=drafts) for a in row], id=f"r{r}", number=r, first_step=1)
        for r, row in enumerate(accepted)
    ]
    return make_trace(made, draft_length=drafts, concurrency=len(accepted))


def flat(tokens: Any, rows: int) -> Any:
    return np.ones(len(tokens))


def test_foresight_verifies_what_will_be_accepted_and_no_more() -> None:
    trace = lockstep([[3, 0, 1], [0, 0, 2]])
    linear = oracle_bound(trace, lambda tokens, rows: 1.0 + 0.5 * tokens)
    assert linear.recorded_tokens_per_s == pytest.approx(12 / (3 * (1 + 0.5 * 8)))
    assert linear.tokens_per_s == pytest.approx(12 / (3 + 0.5 * 12))
    assert linear.budget == pytest.approx(1 + 6 / 6)
    assert linear.recorded_budget == 4
    free = oracle_bound(trace, flat)
    assert free.tokens_per_s == free.recorded_tokens_per_s == pytest.approx(4.0)


def test_a_dear_token_is_not_verified_even_if_it_will_be_accepted() -> None:
    steep = oracle_bound(lockstep([[3, 3]]), lambda tokens, rows: np.array([1.0, 1.1, 8.0, 9.0])[tokens - 1])
    assert steep.budget == 2
    assert steep.tokens_per_s == pytest.approx(2 / 1.1)


def test_padding_helps_where_more_tokens_are_cheaper() -> None:
    jagged = oracle_bound(lockstep([[1, 1]]), lambda tokens, rows: np.array([1.0, 9.0, 1.2, 9.0])[tokens - 1])
    assert jagged.tokens_per_s == pytest.approx(2 / 1.2)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=2), min_size=1, max_size=2),
    st.lists(st.floats(0.5, 5.0), min_size=8, max_size=8),
)
def test_no_choice_of_prefixes_beats_it(accepted: list[list[int]], prices: list[float]) -> None:
    price = np.array(prices)
    found = oracle_bound(lockstep(accepted), lambda tokens, rows: price[tokens - 1])
    best = 0.0
    rows, steps = len(accepted), len(accepted[0])
    for lengths in itertools.product(range(4), repeat=rows * steps):
        tokens = seconds = 0.0
        for s in range(steps):
            cut = lengths[s * rows : (s + 1) * rows]
            tokens += rows + sum(min(n, accepted[r][s]) for r, n in enumerate(cut))
            seconds += price[rows + sum(cut) - 1]
        best = max(best, tokens / seconds)
    assert found.tokens_per_s == pytest.approx(best, rel=1e-9)


def test_it_bounds_the_recorded_lengths_on_the_staircase() -> None:
    generator = np.random.default_rng(0)
    trace = lockstep(generator.integers(0, 8, size=(64, 20)).tolist(), drafts=7)
    table = staircase()
    price = table.draft["dspark"]
    found = oracle_bound(
        trace, lambda tokens, rows: table.seconds(tokens, rows=rows), draft_seconds=lambda rows: float(price.at(rows))
    )
    assert found.tokens_per_s > 1.1 * found.recorded_tokens_per_s
    assert 1 < found.budget < found.recorded_budget == 8


def test_cut_rounds_and_empty_runs_are_refused() -> None:
    cut = make_trace([make_request([Round(1, verified=1, drafted=3)])])
    with pytest.raises(RecordError, match="fixed policy"):
        oracle_bound(cut, flat)
    with pytest.raises(RecordError, match="no rounds with drafts"):
        oracle_bound(make_trace([]), flat)
