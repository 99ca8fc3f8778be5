"""Sequential temperature scaling against the recorded fit, and on data with a known answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from specbench.metrics._scores import auroc, auroc_histogram, brier, ece
from specbench.metrics._sts import GRID, fit, logits, scaled, survival

FIXTURES = Path(__file__).parent.parent / "data" / "fixtures"


@pytest.fixture(scope="module")
def recorded() -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
    tensors = load_file(FIXTURES / "calibration.safetensors")
    expected = json.loads((FIXTURES / "calibration.json").read_text())
    return expected, tensors["confidence_logits"].astype(np.float64), tensors["prefix_accepted"].astype(bool)


def test_every_grid_value_and_choice_equals_the_recorded_fit(recorded: Any) -> None:
    expected, log_odds, accepted = recorded
    found = fit(log_odds, accepted, grid=tuple(expected["grid"]), bins=expected["num_bins"])
    assert list(found.temperatures) == expected["temperatures"]
    assert np.array(found.curves) == pytest.approx(np.array(expected["ece_curves"]), abs=1e-6)
    assert found.ece_before == pytest.approx([row["ece"] for row in expected["before"]], abs=1e-6)
    assert found.ece_after == pytest.approx([row["ece"] for row in expected["after"]], abs=1e-6)
    assert found.samples == (expected["num_samples"],) * 5


def test_scores_before_and_after_equal_the_recorded_ones(recorded: Any) -> None:
    expected, log_odds, accepted = recorded
    for stage, temperatures in (("before", np.ones(5)), ("after", np.array(expected["temperatures"]))):
        forecast = survival(log_odds, temperatures)
        rows = expected[stage]
        for k, row in enumerate(rows):
            p, hit = forecast[:, k], accepted[:, k]
            assert ece(p, hit) == pytest.approx(row["ece"], abs=1e-6)
            assert brier(p, hit) == pytest.approx(row["brier"], abs=1e-6)
            assert auroc(p, hit) == pytest.approx(row["auc_exact"], abs=1e-9)
            assert auroc_histogram(p, hit) == pytest.approx(row["auc"], abs=1e-6)
        means = expected[f"{stage}_summary"]
        assert np.mean([ece(forecast[:, k], accepted[:, k]) for k in range(5)]) == pytest.approx(means["ece_mean"])
        assert np.mean([brier(forecast[:, k], accepted[:, k]) for k in range(5)]) == pytest.approx(means["brier_mean"])


def over_confident(temperatures: list[float], *, n: int = 20_000) -> tuple[np.ndarray, np.ndarray]:
    """Log-odds that are too large by these factors, and what is accepted."""
    generator = np.random.default_rng(3)
    truth = generator.normal(1.0, 1.2, size=(n, len(temperatures)))
    hits = generator.random(truth.shape) < scaled(truth, 1.0)
    return truth * np.array(temperatures), np.cumprod(hits, axis=1).astype(bool)


def test_planted_temperatures_are_found_left_to_right() -> None:
    log_odds, accepted = over_confident([2.0, 0.5, 3.0])
    found = fit(log_odds, accepted)
    assert found.temperatures == pytest.approx((2.0, 0.5, 3.0), rel=0.15)
    assert all(error is not None and error < 0.015 for error in found.ece_after)
    assert all(error is not None and error > 0.03 for error in found.ece_before)


def test_the_grid_is_log_spaced_and_holds_one() -> None:
    steps = np.diff(np.log(GRID))
    assert np.allclose(steps, steps[0])
    assert any(t == pytest.approx(1.0) for t in GRID)
    log_odds, accepted = over_confident([1.0, 1.0])
    found = fit(log_odds, accepted)
    pairs = zip(found.ece_after, found.ece_before, strict=True)
    assert all(a is not None and b is not None and a <= b + 1e-12 for a, b in pairs)


def test_positions_that_do_not_count_are_left_alone() -> None:
    log_odds, accepted = over_confident([2.0, 2.0, 2.0], n=4000)
    valid = np.ones(log_odds.shape, dtype=bool)
    valid[:, 2] = False
    valid[::2, 1] = False
    accepted[::2, 1] = ~accepted[::2, 1]  # must not matter
    found = fit(log_odds, accepted, valid=valid)
    assert found.samples == (4000, 2000, 0)
    assert found.temperatures[2] == 1.0
    assert found.temperatures[1] == pytest.approx(2.0, rel=0.3)


def test_one_class_and_extreme_confidences_give_numbers() -> None:
    found = fit(logits(np.array([[0.0], [1.0], [np.nan], [0.5]])), np.ones((4, 1), dtype=bool))
    assert found.ece_after[0] is not None
    assert np.isfinite(found.ece_after[0])
    assert np.isfinite(found.temperatures[0])
