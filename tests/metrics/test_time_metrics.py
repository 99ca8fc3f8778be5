"""Latency, throughput, time split and speed-up of hand-made traces: every value worked out on paper."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support_traces import Round, make_request, make_trace, plain_trace, simulate_trace

from specbench.metrics import latency, throughput, verification
from specbench.types import Estimate, RunTrace, Status


def values(estimates: list[Estimate]) -> dict[tuple[str, ...], float]:
    return {(e.metric, *(f"{name}={value}" for name, value in e.scope)): e.value for e in estimates}


def served(id: str, arrival: float, admitted: float, times: list[float], *, step: int, status: str = Status.OK,
           warmup: bool = False) -> tuple:  # fmt: skip
    """A request that emits its first token at times[0] and two tokens at each later time."""
    rounds = [Round(1)] * (len(times) - 1)
    return make_request(
        rounds,
        id=id,
        arrival_s=arrival,
        admitted_s=admitted,
        times=times,
        first_step=step,
        status=status,
        warmup=warmup,
    )


def load_trace() -> RunTrace:
    """Two users. One warm-up, two failures, three measured requests.

    Arrivals, admissions and emissions, in seconds:
      warm   0.0  0.0   1, 2
      a      2.0  2.0   3, 4, 5        (5 tokens)
      b      2.0  3.0   5, 6, 8        (5 tokens)
      c      5.0  6.0   9              (1 token)
      x, y   failed at 7 and 8 after one token
    """
    broken = [served(name, at, at, [at + 1], step=0, status=Status.FAILED) for name, at in (("x", 6.0), ("y", 7.0))]
    return make_trace(
        [
            served("warm", 0.0, 0.0, [1.0, 2.0], step=1, warmup=True),
            served("a", 2.0, 2.0, [3.0, 4.0, 5.0], step=2),
            served("b", 2.0, 3.0, [5.0, 6.0, 8.0], step=5),
            served("c", 5.0, 6.0, [9.0], step=9),
            *broken,
        ],
        concurrency=2,
    )


def test_every_latency_equals_the_hand_made_value() -> None:
    found = values(latency.PLUGIN.compute(load_trace()))
    assert found["requests", "kind=warmup"] == 1
    assert found["requests", "kind=measured"] == 3
    assert found["requests", "kind=failed"] == 2
    assert found["requests", "kind=interrupted"] == 0
    assert found["queue", "stat=mean"] == pytest.approx((0 + 1 + 1) / 3)
    assert found["ttft", "stat=mean"] == pytest.approx((1 + 3 + 4) / 3)
    assert found["ttft", "stat=p50"] == 3.0
    assert found["ttft", "stat=p90"] == pytest.approx(3.8)  # linear between 3 and 4
    assert found["tpot", "stat=mean"] == pytest.approx((0.5 + 0.75) / 2)  # 2 s / 4 and 3 s / 4; c has one token
    assert found["e2e", "stat=p50"] == 4.0
    assert found["tokens_per_s_user", "stat=mean"] == pytest.approx((2.0 + 4 / 3) / 2)
    assert found["inter_round_gap", "stat=mean"] == pytest.approx((1 + 1 + 1 + 2) / 4)
    assert found["inter_round_gap", "stat=p99"] == pytest.approx(1.97)


def test_tpot_of_one_token_is_undefined_not_zero() -> None:
    alone = make_trace([served("c", 0.0, 0.0, [1.0], step=1)])
    found = {e.metric for e in latency.PLUGIN.compute(alone)}
    assert "ttft" in found
    assert not found & {"tpot", "tokens_per_s_user", "inter_round_gap"}


def test_steady_window_counts_partial_requests() -> None:
    window = throughput.steady_window(load_trace())
    # two in flight first when b is admitted at 3; the last admission is y's at 7
    assert window is not None
    assert (window.start_s, window.end_s) == (3.0, 7.0)
    # inside (3, 7]: a at 4 and 5, b at 5 and 6; failed requests' tokens do not count
    assert window.tokens == 2 + 2 + 1 + 2
    assert window.tokens_per_s == 7 / 4
    found = values(throughput.PLUGIN.compute(load_trace()))
    assert found["steady_tokens_per_s",] == 7 / 4
    assert found["steady_window", "edge=start"] == 3.0
    assert found["steady_window", "edge=end"] == 7.0


def test_full_load_never_reached_gives_no_window() -> None:
    trace = replace(load_trace(), concurrency=9)
    assert throughput.steady_window(trace) is None
    assert "steady_tokens_per_s" not in {e.metric for e in throughput.PLUGIN.compute(trace)}


def test_too_many_failures_make_the_row_invalid() -> None:
    trace = load_trace()
    assert values(throughput.PLUGIN.compute(trace))["failed_share",] == 2 / 5
    assert "2 of 5 requests failed" in str(throughput.invalid_reason(trace))
    assert throughput.invalid_reason(trace, max_failed_share=0.5) is None
    assert "no measured request finished" in str(throughput.invalid_reason(make_trace([])))


def test_a_step_is_shared_by_its_rows_so_that_each_second_counts_once() -> None:
    one = make_request([Round(3), Round(1)], id="one", steps=[1, 2], domain="math")
    two = make_request([Round(0), Round(0), Round(0)], id="two", steps=[1, 2, 3], domain="code")
    found = values(throughput.PLUGIN.compute(make_trace([one, two])))  # steps of 50 ms
    assert found["seconds_per_decode_token",] == pytest.approx(0.15 / 9)
    assert found["decode_tokens_per_s",] == pytest.approx(9 / 0.15)
    assert found["seconds_per_decode_token", "domain=math"] == pytest.approx(0.05 / 6)
    assert found["seconds_per_decode_token", "domain=code"] == pytest.approx(0.10 / 3)


def test_steps_with_prompt_tokens_are_kept_apart() -> None:
    trace = make_trace([make_request([Round(3), Round(1), Round(0)])], mixed_steps=[2])
    found = values(throughput.PLUGIN.compute(trace))
    assert found["seconds_per_decode_token",] == pytest.approx(0.10 / 5)
    assert found["pure_decode_share",] == pytest.approx(5 / 7)
    split = values(verification.PLUGIN.compute(trace))
    counts = {dict(e.scope)["steps"]: e.n for e in verification.PLUGIN.compute(trace) if e.metric == "T_draft"}
    assert counts == {"decode": 2, "with prefill": 1}
    assert split["L",] == pytest.approx(0.10 / 5)


def test_time_split_adds_up_and_reports_medians() -> None:
    slow = [
        replace(step, verify_s=1.03) if step.step == 4 else step
        for step in simulate_trace(0.5, gamma=2, rounds=40).steps
    ]
    trace = replace(simulate_trace(0.5, gamma=2, rounds=40), steps=tuple(slow))
    found = values(verification.PLUGIN.compute(trace))

    def mean(name: str) -> float:
        return found[name, "steps=decode", "stat=mean"]

    assert mean("T_draft") == pytest.approx(0.010)
    assert mean("T_verify") == pytest.approx(0.030 + 1 / 40)
    assert found["T_verify", "steps=decode", "stat=median"] == pytest.approx(0.030)
    parts = ("T_draft", "T_schedule", "T_verify", "T_accept", "T_other")
    assert sum(mean(name) for name in parts) == pytest.approx(mean("T_round"))
    assert found["mean_batch_rows",] == 1.0


def test_speed_up_is_the_ratio_of_seconds_per_token() -> None:
    trace = simulate_trace(0.8, gamma=3, rounds=400)
    base = plain_trace(trace)  # 35 ms a token
    found = {e.metric: e for e in throughput.compare(trace, base) if not e.scope}
    tau = sum(r.committed for r in trace.rounds) / len(trace.rounds)
    speed = found["speed_up"]
    assert speed.value == pytest.approx(0.035 / (0.05 / tau))
    assert speed.low is not None
    assert speed.high is not None
    assert speed.low < speed.value < speed.high
    assert speed.interval == "paired bootstrap over prompts"
    assert found["break_even_tau"].value == pytest.approx(0.05 / 0.035)
    assert found["unpaired_requests"].value == 0


def test_a_faster_baseline_prompt_by_prompt_narrows_a_paired_interval() -> None:
    """Both arms slow on the same prompts: pairing removes what they share."""
    trace = simulate_trace(0.8, gamma=3, rounds=400)
    same = [e for e in throughput.compare(trace, trace) if e.metric == "speed_up" and not e.scope]
    assert (same[0].value, same[0].low, same[0].high) == pytest.approx((1.0, 1.0, 1.0))


def test_requests_whose_prompt_differs_between_the_arms_are_counted_not_compared() -> None:
    trace = simulate_trace(0.8, gamma=3, rounds=40, requests=4)
    base = plain_trace(trace)
    other = tuple(replace(r, prompt_hash="another") if r.id == "r1" else r for r in base.requests)
    found = {e.metric: e for e in throughput.compare(trace, replace(base, requests=other)) if not e.scope}
    assert found["unpaired_requests"].value == 1
    assert found["speed_up"].n == 3
    none = tuple(replace(r, seed=7) for r in base.requests)
    assert "speed_up" not in {e.metric for e in throughput.compare(trace, replace(base, requests=none))}
