"""Planning kernels against recorded schedules, brute force, and the properties that exactness rests on (recipe T18)."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specbench.kernels.plan import (
    admit,
    best_capacity,
    early_stop,
    lookup,
    rank,
    survival,
    theta_path,
)

CASES = json.loads((Path(__file__).parents[1] / "data/fixtures/scheduler.json").read_text())["cases"]


def padded(case: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Confidences [R, G] and counts [R] of a recorded case; rows may be of unequal length."""
    rows = case["confidence"]
    width = max(len(row) for row in rows)
    table = torch.tensor([[*row, *[1.0] * (width - len(row))] for row in rows], dtype=torch.float64)
    return table, torch.tensor([len(row) for row in rows])


def rates(sps: list[float], rows: int, candidates: int) -> Tensor:
    """Steps a second with 0, 1, ... candidates beside ``rows`` anchors; the last value goes on."""
    return torch.tensor([sps[min(rows + k, len(sps) - 1)] for k in range(candidates + 1)], dtype=torch.float64)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_schedules_equal_the_recorded_ones(case: dict[str, Any]) -> None:
    confidence, counts = padded(case)
    scores = survival(confidence, counts)
    for row, expected in zip(scores.tolist(), case["survival"], strict=True):
        assert row[: len(expected)] == pytest.approx(expected, abs=1e-12)
    ranking = rank(scores, counts)
    path = sorted(
        ((r, k) for r in range(len(counts)) for k in range(int(counts[r]))), key=lambda c: int(ranking.place[c])
    )
    recorded = len(case["admission_path"])  # candidates without any chance are left out there
    assert [[r, k + 1] for r, k in path[:recorded]] == case["admission_path"]
    assert all(float(scores[c]) == 0 for c in path[recorded:])
    speed = rates(case["sps"], len(counts), scores.numel())
    theta = theta_path(ranking, speed)[: recorded + 1]
    assert theta.tolist() == pytest.approx(case["theta_path"], rel=1e-9)
    for found, name in ((early_stop(ranking, speed), "early_stop"), (best_capacity(scores, speed), "global_path")):
        expected = case[name]
        assert int(found.admitted) == expected["admitted"]
        assert admit(ranking, found.admitted).tolist() == expected["lengths"]
        assert float(found.theta) == pytest.approx(expected["theta"], rel=1e-9)


@st.composite
def schedules(draw: Any, *, rows: int = 4, width: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    """Confidences, counts and a staircase of rates (jagged or not) for at most ``rows`` x ``width`` candidates."""
    b, g = draw(st.integers(1, rows)), draw(st.integers(1, width))
    number = st.floats(0, 1).map(lambda x: round(x, 3))
    confidence = torch.tensor(
        draw(st.lists(st.lists(number, min_size=g, max_size=g), min_size=b, max_size=b)), dtype=torch.float64
    )
    counts = torch.tensor(draw(st.lists(st.integers(0, g), min_size=b, max_size=b)))
    drops = draw(st.lists(st.sampled_from([0.0, 0.0, 0.0, 0.05, 0.2, 0.5, -0.1]), min_size=b * g, max_size=b * g))
    speed, rate = [10.0], 10.0
    for drop in drops:
        rate *= 1 - drop
        speed.append(rate)
    return confidence, counts, torch.tensor(speed, dtype=torch.float64)


def brute_force(scores: Tensor, speed: Tensor) -> float:
    """The highest throughput over every vector of lengths."""
    best = 0.0
    for lengths in itertools.product(range(scores.shape[1] + 1), repeat=scores.shape[0]):
        tau = scores.shape[0] + sum(float(scores[r, :n].sum()) for r, n in enumerate(lengths))
        best = max(best, tau * float(speed[sum(lengths)]))
    return best


@settings(max_examples=150, deadline=None)
@given(schedules())
def test_t18_the_global_search_equals_brute_force(schedule: tuple[Tensor, Tensor, Tensor]) -> None:
    confidence, counts, speed = schedule
    scores = survival(confidence, counts)
    found = best_capacity(scores, speed)
    assert float(found.theta) == pytest.approx(brute_force(scores, speed), rel=1e-12)


@settings(max_examples=150, deadline=None)
@given(schedules())
def test_t18_algorithm_1_stops_where_it_is_documented_to(schedule: tuple[Tensor, Tensor, Tensor]) -> None:
    confidence, counts, speed = schedule
    scores = survival(confidence, counts)
    order = sorted(
        ((r, k) for r in range(len(counts)) for k in range(int(counts[r]))),
        key=lambda c: (-float(scores[c]), c),
    )
    lengths, tau, admitted = [0] * len(counts), float(len(counts)), 0
    for r, k in order:
        grown = tau + float(scores[r, k])
        if not grown * float(speed[admitted + 1]) > tau * float(speed[admitted]):
            break
        lengths[r], tau, admitted = k + 1, grown, admitted + 1
    ranking = rank(scores, counts)
    found = early_stop(ranking, speed)
    assert int(found.admitted) == admitted
    assert admit(ranking, found.admitted).tolist() == lengths


@settings(max_examples=200, deadline=None)
@given(schedules(), st.data())
def test_t18_later_drafts_never_change_the_admission_of_earlier_ones(
    schedule: tuple[Tensor, Tensor, Tensor], data: st.DataObject
) -> None:
    """Scores of positions beyond k of one row are changed (in confidence and count): its first k stay as they were."""
    confidence, counts, speed = schedule
    row = data.draw(st.integers(0, confidence.shape[0] - 1))
    k = data.draw(st.integers(0, int(counts[row])))
    changed = confidence.clone()
    for later in range(k, confidence.shape[1]):
        changed[row, later] = data.draw(st.floats(0, 1))
    other = counts.clone()
    other[row] = data.draw(st.integers(k, confidence.shape[1]))
    capacity = torch.tensor(data.draw(st.integers(0, confidence.numel())))
    for early in (True, False):
        lengths = []
        for c, n in ((confidence, counts), (changed, other)):
            ranking = rank(survival(c, n), n)
            admitted = early_stop(ranking, speed).admitted if early else capacity
            lengths.append(int(admit(ranking, admitted)[row]))
        assert min(lengths[0], k) == min(lengths[1], k)


def test_the_retrospective_search_does_look_at_later_drafts() -> None:
    """Appendix A: with current scores the global search admits the first draft only if the second looks good."""
    speed = torch.tensor([1.0, 0.5, 0.45], dtype=torch.float64)
    lengths = []
    for second in (0.9, 0.0):
        scores = survival(torch.tensor([[0.8, second]], dtype=torch.float64), torch.tensor([2]))
        ranking = rank(scores, torch.tensor([2]))
        lengths.append(int(admit(ranking, best_capacity(scores, speed).admitted)[0]))
        assert int(early_stop(ranking, speed).admitted) == 0
    assert lengths == [2, 0]


def test_damaged_confidences_count_as_none() -> None:
    found = survival(torch.tensor([[float("nan"), 0.5], [1.5, -0.1]]), torch.tensor([2, 2]))
    assert found.tolist() == [[0.0, 0.0], [1.0, 0.0]]


@pytest.mark.parametrize("linear", [False, True])
def test_lookup_of_a_jagged_curve(linear: bool) -> None:
    at, values = torch.tensor([4, 8, 16]), torch.tensor([10.0, 5.0, 6.0], dtype=torch.float64)
    tokens = torch.tensor([1, 4, 6, 8, 12, 16, 40])
    expected = [10, 10, 7.5, 5, 5.5, 6, 6] if linear else [10, 10, 10, 5, 5, 6, 6]
    assert lookup(tokens, at=at, values=values, linear=linear).tolist() == expected
