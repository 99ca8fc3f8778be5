"""Chi-squared tests: level, power and corrections, against scipy and simulation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from specbench.metrics._chi_squared import holm, merge_small, needed_n, one_sample, power, two_sample

P = np.array([0.35, 0.2, 0.15, 0.1, 0.08, 0.06, 0.04, 0.02])


def test_one_sample_equals_scipy_where_nothing_is_merged() -> None:
    counts = np.random.default_rng(0).multinomial(5000, P)
    found, wanted = one_sample(counts, P), stats.chisquare(counts, P * counts.sum())
    assert found.statistic == pytest.approx(wanted.statistic)
    assert found.p_value == pytest.approx(wanted.pvalue)
    assert found.degrees == 7


def test_two_sample_equals_scipy_where_nothing_is_merged() -> None:
    generator = np.random.default_rng(1)
    first, second = (generator.choice(8, size=n, p=P) for n in (3000, 5000))
    table = np.stack([np.bincount(first, minlength=8), np.bincount(second, minlength=8)])
    wanted = stats.chi2_contingency(table, correction=False)
    found = two_sample(first.tolist(), second.tolist())
    assert found is not None
    assert (found.statistic, found.p_value) == pytest.approx((wanted.statistic, wanted.pvalue))
    assert found.effective_n == 3000 * 5000 / 8000


def test_true_hypotheses_are_rejected_as_often_as_the_level_says() -> None:
    generator = np.random.default_rng(2)
    p_values = [one_sample(generator.multinomial(2000, P), P).p_value for _ in range(2000)]
    assert np.mean(np.array(p_values) < 0.05) == pytest.approx(0.05, abs=0.015)


def test_power_is_what_simulation_finds_for_the_least_favourable_error() -> None:
    shares = np.full(8, 1 / 8)
    moved = shares * np.where(np.arange(8) < 4, 1 + 2 * 0.05, 1 - 2 * 0.05)  # total variation .05
    generator = np.random.default_rng(3)
    hits = [one_sample(generator.multinomial(1500, moved), shares).p_value < 0.001 for _ in range(1500)]
    wanted = power(effective_n=1500, degrees=7, level=0.001, total_variation=0.05)
    assert np.mean(hits) == pytest.approx(wanted, abs=0.05)


def test_impossible_tokens_reject_at_once() -> None:
    found = one_sample([10, 1], [1.0, 0.0])
    assert found.p_value == 0.0


def test_needed_n_is_the_smallest_that_is_enough() -> None:
    n = needed_n(degrees=10, level=0.001, total_variation=0.02, wanted_power=0.99)

    def at(count: int) -> float:
        return power(effective_n=count, degrees=10, level=0.001, total_variation=0.02)

    assert at(n) >= 0.99 > at(n - 1)


def test_a_single_category_proves_nothing() -> None:
    found = two_sample([5] * 100, [5] * 100)
    assert found is not None
    assert (found.degrees, found.p_value) == (0, 1.0)
    assert power(effective_n=1e9, degrees=0, level=0.001, total_variation=0.02) == 0.0
    assert two_sample([], [1]) is None


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=80).filter(lambda v: sum(v) > 0))
def test_merged_bins_are_contiguous_and_large_enough(sizes: list[int]) -> None:
    values = np.array(sizes, dtype=np.float64)
    bins = merge_small(values, minimum=5.0, max_bins=6)
    totals = np.bincount(bins, weights=values)
    assert set(bins) == set(range(len(totals)))
    assert len(totals) <= 6
    assert len(totals) == 1 or totals.min() >= 5.0


def test_holm_steps_down() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005], level=0.05) == [True, False, False, True]
    assert holm([0.04, 0.04], level=0.05) == [False, False]
    assert holm([], level=0.05) == []
    assert holm([0.0005, 0.9, 0.9], level=0.001) == [False, False, False]
