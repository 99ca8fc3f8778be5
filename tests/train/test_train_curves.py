"""Held-out curves of a plan in one table, and what is expected of more compute."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbench.train.curves import Point, fit_thirds, read_points, table


def _point(predictions: int, tau: float | None) -> Point:
    return Point(predictions, predictions, {"tau": "" if tau is None else repr(tau)})


@given(base=st.floats(1, 3), slope=st.floats(0, 0.5), unit=st.integers(10, 10_000))
def test_a_curve_that_gains_the_same_with_each_doubling_is_continued(base: float, slope: float, unit: int) -> None:
    points = [_point(unit * part, base + slope * math.log2(part)) for part in range(1, 7)]
    fit = fit_thirds(points)
    assert fit is not None
    assert fit.thirds == tuple(base + slope * math.log2(part) for part in (2, 4, 6))
    assert fit.slope == pytest.approx(slope, abs=1e-9)
    assert fit.after(4) == pytest.approx(base + slope * math.log2(24), abs=1e-9)


@pytest.mark.parametrize(
    "points",
    [
        [],
        [_point(10, 1.2), _point(20, 1.3)],
        [_point(10, None), _point(20, 1.2), _point(30, 1.3)],
        [_point(1, 1.0), _point(2, 1.0), _point(90, 1.3)],  # nothing near the end of the second third
    ],
)
def test_without_an_evaluation_in_each_third_there_is_no_fit(points: list[Point]) -> None:
    assert fit_thirds(points) is None


def test_predictions_are_those_of_all_steps_up_to_an_evaluation(tmp_path: Path) -> None:
    (tmp_path / "curve.csv").write_text("step,predictions\n1,10\n2,20\n3,30\n4,40\n")
    (tmp_path / "heldout.csv").write_text("step,tau,accept_1\n2,1.25,0.5\n4,1.5,\n")
    points = read_points(tmp_path)
    assert [(p.step, p.predictions, p.tau) for p in points] == [(2, 30, 1.25), (4, 100, 1.5)]
    text = table(iter([({"drafter": "mtp", "stage": "final", "lr": 0.01, "seed": 0}, points)]))
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(r["drafter"], r["step"], r["predictions"], r["tau"]) for r in rows] == [
        ("mtp", "2", "30", "1.25"),
        ("mtp", "4", "100", "1.5"),
    ]
    assert rows[1]["accept_1"] == ""
    assert read_points(tmp_path / "absent") == []
