"""Per draft position, against coin flips with known answers and hand-made rounds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from support_traces import Round, example_trace, make_request, make_trace, simulate_trace, traces

from specbench.metrics._measured import measured
from specbench.metrics.positions import PLUGIN, accepted_histogram
from specbench.types import Estimate, RunTrace


def values(trace: RunTrace) -> dict[tuple[str, ...], float]:
    def key(e: Estimate) -> tuple[str, ...]:
        return (e.metric, *(f"{name}={value}" for name, value in e.scope))

    return {key(e): e.value for e in PLUGIN.compute(trace)}


def test_coin_flips_give_flat_conditionals_and_geometric_survival() -> None:
    accept, gamma = 0.8, 5
    found = values(simulate_trace(accept, gamma=gamma, rounds=5000))
    for k in range(1, gamma + 1):
        assert found["conditional", f"k={k}"] == pytest.approx(accept, abs=0.03)
        assert found["survival", f"k={k}"] == pytest.approx(accept**k, abs=0.025)


def test_perfect_drafter_has_conditionals_of_one() -> None:
    found = values(make_trace([make_request([Round(3)] * 40)]))
    assert [found["conditional", f"k={k}"] for k in (1, 2, 3)] == [1.0, 1.0, 1.0]


def test_worked_example() -> None:
    found = values(example_trace())
    assert [found["accepted_histogram", f"accepted={i}"] for i in range(4)] == [1, 1, 0, 2]
    assert found["acceptance_rate", "gamma=3"] == 7 / 12
    assert found["verify_rate", "gamma=3"] == 9 / 16
    assert found["verification_budget",] == 4.0
    assert found["waste",] == 5 / 4
    assert found["conditional", "k=2"] == 2 / 3


def test_denominators_follow_what_was_verified() -> None:
    rounds = [Round(1, verified=1, drafted=3), Round(2, verified=2, drafted=3), Round(0, verified=3)]
    found = values(make_trace([make_request(rounds)]))
    assert found["survival", "k=1"] == 2 / 3
    assert found["survival", "k=2"] == 1 / 2
    assert found["survival", "k=3"] == 0.0
    assert found["conditional", "k=2"] == 1.0
    assert ("conditional", "k=3") not in found  # nobody reached position 3 and verified it
    assert found["mean_drafted",] == 3.0
    assert found["mean_verified",] == 2.0


def test_plain_decoding_has_no_acceptance_rate_and_all_rounds_without_drafts() -> None:
    found = values(make_trace([make_request([Round(0, verified=0)] * 4)], draft_length=0))
    assert not any(name[0] in ("acceptance_rate", "survival", "conditional") for name in found)
    assert found["zero_draft_rounds",] == 4
    assert found["zero_draft_share",] == 1.0


def test_acceptance_rates_always_name_gamma() -> None:
    rates = [e for e in PLUGIN.compute(example_trace()) if e.metric in ("acceptance_rate", "verify_rate")]
    assert rates
    assert all(dict(e.scope)["gamma"] == "3" for e in rates)


@settings(max_examples=60, deadline=None)
@given(traces())
def test_histogram_identities_and_monotone_survival(trace: RunTrace) -> None:
    rounds = measured(trace)
    histogram = accepted_histogram(rounds.accepted)
    assert histogram.sum() == len(rounds.rounds)
    assert sum(i * n for i, n in enumerate(histogram)) == rounds.accepted.sum()
    for e in PLUGIN.compute(trace):
        if e.metric in ("survival", "conditional", "acceptance_rate", "zero_draft_share"):
            assert 0 <= e.value <= 1
            assert e.n > 0
