"""Accepted length: the worked example, DeepSpec's own rows, and coin flips with a known answer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from support_traces import Round, example_trace, make_request, make_trace, simulate_trace, traces

from specbench.metrics.acceptance import PLUGIN, deepspec_rounds
from specbench.types import Estimate, RunTrace, Status, StopReason

FIXTURES = Path(__file__).parent.parent / "data" / "fixtures"


def find(estimates: list[Estimate], metric: str, **scope: str) -> Estimate:
    return next(e for e in estimates if e.metric == metric and dict(e.scope) == scope)


def test_worked_example_gives_every_named_variant() -> None:
    found = {e.metric: e.value for e in PLUGIN.compute(example_trace()) if not e.scope}
    assert found["tau"] == 2.25
    assert found["tau_deepspec"] == 2.25
    assert found["tau_counters"] == 2.75
    assert found["tau_tokens"] == 2.5
    assert found["tau_chunks"] == 1.8


def test_per_request_mean_is_not_the_pooled_tau() -> None:
    long = make_request([Round(0)] * 6, id="long", first_step=1)
    short = make_request([Round(3)], id="short", first_step=7)
    found = PLUGIN.compute(make_trace([long, short]))
    assert find(found, "tau").value == 10 / 7
    assert find(found, "tau_request_mean", average="macro over requests").value == 2.5


def test_macro_averages_weigh_tasks_and_domains_alike() -> None:
    one = make_request([Round(3)] * 3, id="a", task="gsm", domain="math", first_step=1)
    two = make_request([Round(1)], id="b", task="aime", domain="math", first_step=4)
    three = make_request([Round(0)], id="c", task="mbpp", domain="code", first_step=5)
    found = PLUGIN.compute(make_trace([one, two, three]))
    assert find(found, "tau_macro_tasks", average="macro over tasks").value == pytest.approx((4 + 2 + 1) / 3)
    assert find(found, "tau_macro_domains", average="macro over domains").value == pytest.approx((14 / 4 + 1) / 2)
    assert find(found, "tau", domain="math").value == 14 / 4
    assert find(found, "tau", task="aime").value == 2.0


def test_warmup_failed_and_interrupted_requests_do_not_count() -> None:
    perfect = [Round(3)] * 5
    hostile = [Round(0)] * 5
    trace = make_trace(
        [
            make_request(perfect, id="warm", warmup=True, first_step=1),
            make_request(perfect, id="failed", status=Status.FAILED, first_step=6),
            make_request(perfect, id="cut", status=Status.INTERRUPTED, first_step=11),
            make_request(hostile, id="measured", first_step=16),
        ]
    )
    found = PLUGIN.compute(trace)
    assert find(found, "tau").value == 1.0
    assert find(found, "tau").n == 5


def test_nothing_measured_gives_no_estimate() -> None:
    assert PLUGIN.compute(make_trace([])) == []
    no_rounds = make_trace([make_request([], first_token=0)])
    assert PLUGIN.compute(no_rounds) == []


def test_counters_leave_out_rounds_without_drafts() -> None:
    trace = make_trace([make_request([Round(0, verified=0), Round(2), Round(0, verified=0)])])
    assert find(PLUGIN.compute(trace), "tau_counters").value == 3.0
    plain = make_trace([make_request([Round(0, verified=0)] * 3)], draft_length=0)
    assert "tau_counters" not in {e.metric for e in PLUGIN.compute(plain)}
    assert find(PLUGIN.compute(plain), "tau").value == 1.0


@pytest.mark.parametrize("accept", [0.3, 0.8, 0.95])
def test_coin_flips_give_the_geometric_mean_length(accept: float) -> None:
    gamma = 5
    tau = find(PLUGIN.compute(simulate_trace(accept, gamma=gamma, rounds=5000)), "tau")
    expected = (1 - accept ** (gamma + 1)) / (1 - accept)
    assert tau.value == pytest.approx(expected, rel=0.03)
    assert tau.low is not None
    assert tau.high is not None
    assert tau.low <= tau.value <= tau.high
    assert tau.interval == "bootstrap over prompts"


# ------------------------------------------------------------------------------- DeepSpec's rows, as recorded


def deepspec_request(run: dict[str, Any], number: int, gamma: int, step: int) -> Any:
    """The recorded cycles as rounds of ours, then what a longer run would have added."""
    stops = set(run["stop_token_ids"] or [])
    length = run["num_output_tokens"]
    first = run["output_ids"][len(run["output_ids"]) - length]
    rounds: list[Round] = []
    tokens = [first]
    for cycle in run["cycles"]:
        drafts, accepted = cycle["draft_tokens"], cycle["accepted_draft_tokens"]
        if cycle["terminated_by_stop_token"] and accepted and drafts[accepted - 1] in stops:
            mask = cycle["accept_prefix_mask"]
            whole = sum(1 for k in range(len(mask)) if all(mask[: k + 1]))  # drafts after the stop count with us
            committed = drafts[:accepted]
            rounds.append(Round(whole, len(drafts), committed=accepted, stop=StopReason.STOP_TOKEN))
        else:
            committed = [*drafts[:accepted], cycle["next_token"]]
            rounds.append(Round(accepted, len(drafts)))
        tokens += committed
    stopped = tokens[-1] in stops
    if stopped and rounds:
        rounds[-1] = replace(rounds[-1], stop=StopReason.STOP_TOKEN)
    if not stopped:
        rounds += [Round(gamma, gamma), Round(0, gamma)]
        tokens += [900 + i for i in range(gamma + 2)]
    return make_request(rounds, id=f"r{number}", number=number, tokens=tokens, first_step=step)


def deepspec_trace(runs: list[dict[str, Any]], gamma: int) -> RunTrace:
    made, step = [], 1
    for number, run in enumerate(runs):
        made.append(deepspec_request(run, number, gamma, step))
        step += len(made[-1][1])
    return make_trace(made, draft_length=gamma)


def deepspec_cases() -> list[Any]:
    cases = []
    for name in ("dspark_markov", "dspark_gated", "dspark_rnn", "dflash", "eagle3"):
        expected = json.loads((FIXTURES / name / "expected.json").read_text())
        limit = expected["runs"][0]["max_new_tokens"]
        cases.append(pytest.param(expected["runs"], limit, expected["metrics_row"], id=f"{name}-main"))
        for index, run in enumerate(expected["extra_runs"]):
            label = f"{name}-{index}"
            cases.append(pytest.param([run], run["max_new_tokens"], run["metrics_row"], id=label))
    return cases


@pytest.mark.parametrize(("runs", "limit", "row"), deepspec_cases())
def test_deepspec_variants_reproduce_the_reference_rows(
    runs: list[dict[str, Any]], limit: int, row: dict[str, Any]
) -> None:
    """Rows printed by github.com/deepseek-ai/DeepSpec @ afdfa7c for its own cycles."""
    gamma = len(row["accept_rates_by_position"])
    trace = deepspec_rounds(deepspec_trace(runs, gamma), limit)
    assert len(trace.rounds) == sum(len(run["acceptance_lengths"]) for run in runs)
    found = PLUGIN.compute(trace)
    rates = {dict(e.scope)["k"]: e.value for e in found if e.metric == "accept_rate_deepspec@k"}
    expected = {str(k): rate for k, rate in enumerate(row["accept_rates_by_position"], start=1) if rate is not None}
    assert rates == pytest.approx(expected, abs=1e-12)
    if trace.rounds:
        assert find(found, "tau_deepspec").value == pytest.approx(row["acceptance_length"], abs=1e-12)
        verify = find(found, "verify_rate_deepspec", gamma=str(gamma))
        assert verify.value == pytest.approx(row["verify_rate"], abs=1e-12)


def test_without_the_selection_the_extra_rounds_would_count() -> None:
    expected = json.loads((FIXTURES / "dspark_markov" / "expected.json").read_text())
    trace = deepspec_trace(expected["runs"], 5)
    assert find(PLUGIN.compute(trace), "tau_deepspec").value != expected["metrics_row"]["acceptance_length"]


@settings(max_examples=60, deadline=None)
@given(traces())
def test_tau_is_between_one_and_gamma_plus_one(trace: RunTrace) -> None:
    by_prefill = ("tau_chunks", "tau_tokens")  # they count the prefill's tokens too
    taus = [e for e in PLUGIN.compute(trace) if e.metric.startswith("tau") and e.metric not in by_prefill]
    assert all(1 <= e.value <= trace.draft_length + 1 for e in taus)
    headline = [e for e in taus if e.metric == "tau" and not e.scope]
    measured = [r for r in trace.requests if r.status == Status.OK and not r.warmup]
    rounds = sum(len(r.token_times_s) - r.first_token for r in measured)
    assert bool(headline) == (rounds > 0)
    if headline:
        committed = sum(len(r.output_ids) - r.first_token for r in measured)
        assert headline[0].value == pytest.approx(committed / rounds)
