"""Calibration scores against recorded reference values, known answers and degenerate data."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from support_traces import Round, make_request, make_trace

from specbench.metrics._scores import auroc, auroc_histogram, brier, ece, reliability
from specbench.metrics.calibration import PLUGIN, VERIFY_ALL, cumulative_forecasts
from specbench.types import RunTrace, StopReason

FIXTURES = Path(__file__).parent.parent / "data" / "fixtures"


@pytest.fixture(scope="module")
def recorded() -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Synthetic over-confident logits with the scores that the reference's evaluator gives them."""
    return json.loads((FIXTURES / "calibration.json").read_text()), load_file(FIXTURES / "calibration.safetensors")


@pytest.mark.parametrize("stage", ["before", "after"])
def test_scores_equal_the_recorded_ones(recorded: Any, stage: str) -> None:
    expected, tensors = recorded
    logits = tensors["confidence_logits"].astype(np.float64)
    temperatures = np.array(expected["temperatures"] if stage == "after" else [1.0] * logits.shape[1])
    forecast = np.cumprod(1 / (1 + np.exp(-logits / temperatures)), axis=1)
    outcome = tensors["prefix_accepted"].astype(bool)
    for k, row in enumerate(expected[stage]):
        p, hit = forecast[:, k], outcome[:, k]
        assert ece(p, hit) == pytest.approx(row["ece"], abs=1e-6)
        assert brier(p, hit) == pytest.approx(row["brier"], abs=1e-6)
        assert auroc(p, hit) == pytest.approx(row["auc_exact"], abs=1e-9)
        assert auroc_histogram(p, hit) == pytest.approx(row["auc"], abs=1e-6)
        bins = {part["bin"]: part for part in row["reliability"] if part["weight"]}
        curve = reliability(p, hit)
        assert [round(b.low * 20) for b in curve] == sorted(bins)
        for found in curve:
            wanted = bins[round(found.low * 20)]
            assert found.count == wanted["weight"]
            assert found.forecast == pytest.approx(wanted["avg_pred"], abs=1e-6)
            assert found.outcome == pytest.approx(wanted["avg_target"], abs=1e-9)


def test_forecasts_from_recorded_rounds_match_the_reference() -> None:
    """Rounds of DeepSpec's own runs (commit afdfa7c), scored from a trace."""
    expected = json.loads((FIXTURES / "dspark_markov" / "expected.json").read_text())
    made, step = [], 1
    for number, run in enumerate(expected["runs"]):
        rounds = [
            Round(
                cycle["accepted_draft_tokens"],
                verified=len(cycle["draft_tokens"]),
                confidence=tuple(1 / (1 + math.exp(-x)) for x in cycle["confidence_logits"]),
            )
            for cycle in run["cycles"]
        ]
        made.append(make_request(rounds, id=f"r{number}", first_step=step))
        step += len(rounds)
    found = {(e.metric, dict(e.scope).get("k")): e.value for e in PLUGIN.compute(make_trace(made, draft_length=5))
             if set(dict(e.scope)) == {"k"}}  # fmt: skip
    for row in expected["confidence_metrics"]["per_position"]:
        k = str(row["position"] + 1)
        assert found["ece", k] == pytest.approx(row["ece"], abs=1e-3)
        assert found["auroc_histogram", k] == pytest.approx(row["auc"], abs=2e-3)
        assert found["brier", k] == pytest.approx(row["brier"], abs=1e-4)
        assert found["accepted_mean", k] == pytest.approx(row["target_mean"], abs=1e-9)


def flips(confidence: float, truth: float, *, rounds: int = 4000) -> RunTrace:
    """Rounds of one draft, accepted with probability ``truth`` and announced with ``confidence``."""
    generator = np.random.default_rng(5)
    specs = [Round(int(generator.random() < truth), verified=1, confidence=(confidence,)) for _ in range(rounds)]
    return make_trace([make_request(specs)], draft_length=1)


def score(trace: RunTrace, metric: str, k: int = 1) -> float | None:
    return next((e.value for e in PLUGIN.compute(trace) if e.metric == metric and dict(e.scope) == {"k": str(k)}), None)


def test_confidence_equal_to_the_truth_has_no_error() -> None:
    generator = np.random.default_rng(7)
    truth = generator.random(200_000)
    assert ece(truth, generator.random(200_000) < truth) == pytest.approx(0.0, abs=0.01)


def test_constant_over_confidence_has_its_gap_as_error() -> None:
    trace = flips(0.9, 0.5)
    assert score(trace, "ece") == pytest.approx(0.4, abs=0.03)
    assert score(trace, "auroc") == 0.5  # no ranking at all


def test_one_class_has_no_auroc_and_no_nan() -> None:
    trace = flips(0.7, 1.0, rounds=50)
    assert score(trace, "auroc") is None
    assert score(trace, "auroc_histogram") is None
    assert all(math.isfinite(e.value) for e in PLUGIN.compute(trace))
    assert score(trace, "ece") == pytest.approx(0.3)


def test_no_confidence_or_no_rounds_gives_nothing() -> None:
    assert PLUGIN.compute(make_trace([make_request([Round(2)])])) == []
    assert PLUGIN.compute(make_trace([])) == []
    assert ece(np.array([]), np.array([], dtype=bool)) is None
    assert brier(np.array([]), np.array([], dtype=bool)) is None


def test_positions_after_an_accepted_stop_are_dropped() -> None:
    stop = Round(3, committed=2, stop=StopReason.STOP_TOKEN, confidence=(0.9, 0.8, 0.7))
    counts = {f.k: len(f.forecast) for f in cumulative_forecasts(make_trace([make_request([stop])]).rounds, 3)}
    assert counts == {1: 1, 2: 1}


def test_forecasts_are_cumulative_and_outcomes_prefixes() -> None:
    entry = Round(1, confidence=(0.5, 0.5, 1.0))
    found = cumulative_forecasts(make_trace([make_request([entry])]).rounds, 3)
    assert [f.forecast[0] for f in found] == [0.5, 0.25, 0.25]
    assert [bool(f.outcome[0]) for f in found] == [True, False, False]


def test_a_truncating_policy_leaves_only_the_rounds_chosen_by_counter() -> None:
    cut = Round(1, verified=1, drafted=3, confidence=(0.9, 0.1, 0.1))
    whole = Round(2, confidence=(0.9, 0.9, 0.9))  # verified in full because it looked good
    chosen = Round(0, confidence=(0.2, 0.2, 0.2), policy_state=VERIFY_ALL)
    mixed = make_trace([make_request([cut, whole, chosen])])
    assert [len(f.forecast) for f in cumulative_forecasts(mixed.rounds, 3)] == [1, 1, 1]
    assert cumulative_forecasts(mixed.rounds, 3)[0].forecast[0] == 0.2
    fixed = make_trace([make_request([whole, chosen])])
    assert len(cumulative_forecasts(fixed.rounds, 3)[0].forecast) == 2


def test_conditional_scores_use_reached_positions_only() -> None:
    rounds = [Round(0, confidence=(0.5, 0.9, 0.9)), Round(2, confidence=(0.5, 0.9, 0.9))]
    trace = make_trace([make_request(rounds)])
    counts = {dict(e.scope)["k"]: e.n for e in PLUGIN.compute(trace)
              if e.metric == "ece_conditional" and set(dict(e.scope)) == {"k"}}  # fmt: skip
    assert counts == {"1": 2, "2": 1, "3": 1}


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60))
def test_scores_stay_in_range_and_auroc_counts_pairs(pairs: list[tuple[float, bool]]) -> None:
    forecast = np.array([p for p, _ in pairs])
    outcome = np.array([hit for _, hit in pairs], dtype=bool)
    error = ece(forecast, outcome)
    assert error is not None
    assert 0 <= error <= 1
    hits, misses = forecast[outcome], forecast[~outcome]
    exact = auroc(forecast, outcome)
    if len(hits) == 0 or len(misses) == 0:
        assert exact is None
        return
    wins = sum((h > m) + 0.5 * (h == m) for h in hits for m in misses)
    assert exact == pytest.approx(wins / (len(hits) * len(misses)))
