"""Percentile intervals over prompts, run-to-run intervals, and what the users of a load got."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support_traces import Round, make_request, make_trace

from specbench.metrics._bootstrap import RESAMPLES, SEED, _weights
from specbench.metrics._resampled import (
    percentile_bounds,
    resampled_percentile,
    run_to_run,
    run_to_run_ratio,
)
from specbench.metrics._service import pooled, service, unsteady
from specbench.types import Status


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.floats(-10, 10), st.integers(0, 5)), min_size=1, max_size=20),
    st.floats(0, 100),
    st.integers(0, RESAMPLES - 1),
)
def test_resampled_percentiles_equal_numpys_of_the_repeated_values(pairs, percent, which) -> None:
    values, cluster = np.array([v for v, _ in pairs]), np.array([c for _, c in pairs])
    found = resampled_percentile(values, cluster, percent=percent, clusters=6)
    drawn = np.repeat(values, _weights(6, SEED)[which][cluster])
    if drawn.size == 0:
        assert np.isnan(found[which])
    else:
        assert found[which] == pytest.approx(np.percentile(drawn, percent), abs=1e-9)


def test_arms_over_one_set_of_prompts_stay_paired() -> None:
    values = np.random.default_rng(0).exponential(size=200)
    prompts = np.arange(200) % 50
    ours = resampled_percentile(values * 2, prompts, percent=90, clusters=50)
    theirs = resampled_percentile(values, prompts, percent=90, clusters=50)
    assert percentile_bounds(ours / theirs) == (pytest.approx(2.0), pytest.approx(2.0))
    assert percentile_bounds(np.full(RESAMPLES, np.nan)) is None
    assert percentile_bounds(resampled_percentile([], np.zeros(0, dtype=int), percent=50, clusters=3)) is None


def test_run_to_run_is_students_interval() -> None:
    assert run_to_run([1.0]) is None
    low, high = run_to_run([1.0, 3.0])  # type: ignore[misc]
    assert ((low + high) / 2, (high - low) / 2) == (pytest.approx(2.0), pytest.approx(12.706, abs=1e-3))
    generator = np.random.default_rng(3)
    hits = sum(low <= 5.0 <= high for low, high in (run_to_run(generator.normal(5, 2, size=4)) for _ in range(400)))
    assert hits / 400 == pytest.approx(0.95, abs=0.03)
    assert run_to_run_ratio([2.0, 2.0]) == (pytest.approx(2.0), (pytest.approx(2.0), pytest.approx(2.0)))
    assert run_to_run_ratio([2.0]) == (pytest.approx(2.0), None)
    assert run_to_run_ratio([1.0, 0.0]) is None
    assert run_to_run_ratio([]) is None


def two_users(*, late: float = 0.0, status: str = Status.OK):
    """Six requests of two tokens each, two in flight: the first two from 0 s, each later pair when one ends."""
    made = []
    for number in range(6):
        at = (number // 2) * 1.0
        made.append(
            make_request(
                [Round(0)], id=f"r{number}", arrival_s=at * (1 - late), admitted_s=at, times=[at + 0.4, at + 1.0],
                first_step=1 + number, status=status if number == 5 else Status.OK,
            )
        )  # fmt: skip
    return make_trace(made, concurrency=2)


def test_service_by_hand() -> None:
    found = service(two_users())
    assert found.throughput == pytest.approx(8 / 2)  # in (0, 2]: two tokens each of the first four requests
    assert found.in_flight == pytest.approx(2.0)
    assert found.served == pytest.approx(1.0)
    assert (found.trouble, unsteady([found])) == (None, None)
    by_name = {(e.metric, *(v for _, v in e.scope)): e for e in pooled([found])}
    assert by_name["tokens_per_s_user", "mean"].value == pytest.approx(1 / 0.6)
    assert by_name["ttft", "p99"].value == pytest.approx(0.4)
    assert by_name["tpot", "p50"].n == 6
    assert by_name["ttft", "p99"].interval == "bootstrap over prompts"
    assert by_name["steady_tokens_per_s",].interval is None  # one run has no spread
    assert by_name["requests_in_flight",].value == pytest.approx(2.0)


def test_repeats_of_a_prompt_are_one_cluster_and_throughput_varies_from_run_to_run() -> None:
    twice = list(pooled([service(two_users())] * 2))
    speed = next(e for e in twice if e.metric == "tokens_per_s_user" and e.scope == (("stat", "mean"),))
    rate = next(e for e in twice if e.metric == "steady_tokens_per_s")
    assert speed.n == 12
    assert (rate.n, rate.n_of, rate.interval) == (2, "runs", "run to run")
    again = {e.scope: e for e in twice if e.metric == "ttft" and ("over", "runs") in e.scope}
    assert len(again) == 4
    worst = again[(("stat", "p99"), ("over", "runs"))]
    assert (worst.value, worst.n, worst.interval) == (pytest.approx(0.4), 2, "run to run")


def test_a_growing_queue_is_not_steady_and_failures_are_trouble() -> None:
    found = service(two_users(late=0.5))
    assert found.served == pytest.approx(0.5)
    assert unsteady([found]) == "the queue grows: requests are admitted at 50% of the rate at which they arrive"
    assert "1 of 6 requests failed" in str(service(two_users(status=Status.FAILED)).trouble)
    assert list(pooled([service(make_trace([]))])) == []
