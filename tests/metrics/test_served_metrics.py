"""Figures of served runs from hand-made counts: tau over all steps beside vLLM's, bounds, counters, clock, verdicts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specbench.errors import RecordError
from specbench.metrics._all import compute_all
from specbench.metrics._identities import check_identities
from specbench.metrics.losslessness import verdict
from specbench.metrics.served import step_range
from specbench.records import rounds
from specbench.server_trace import ServedTrace, ServerCounts, ServerTrace
from specbench.types import Estimate, RequestTrace, RunTrace, Sampling


def answer(name: str, ids: tuple[int, ...], *, times: tuple[float, ...], tokens: int | None = None) -> RequestTrace:
    return RequestTrace(
        id=name, number=1, task="t", domain="d", prompt_tokens=4, prompt_hash=f"hash-{name}", max_new_tokens=99, seed=0,
        status="ok", error=None, warmup=False, arrival_s=0.0, admitted_s=0.0, first_token_s=times[0],
        finish_s=times[-1], token_times_s=times, first_token=1, first_token_gap=None, output_ids=ids,
        stop_reason="length", tokens=len(ids) if tokens is None else tokens,
    )  # fmt: skip


def entry(name: str, chunks: tuple[int, ...], **counts: object) -> ServedTrace:
    return ServedTrace(name, "server", chunks, 1, 200, "length", **counts)  # type: ignore[arg-type]


def trace(
    *pairs: tuple[RequestTrace, ServedTrace],
    counts: ServerCounts | None = None,
    method: str = "ngram",
    dtype: str = "float32",
    temperature: float = 0.0,
) -> RunTrace:
    return RunTrace(
        requests=tuple(request for request, _ in pairs),
        rounds=(),
        steps=(),
        method=method,
        draft_length=4,
        sampling=Sampling(temperature=temperature),
        concurrency=1,
        wall_s=9.0,
        served=tuple(served for _, served in pairs),
        server=ServerTrace("vllm", "0.32.0", dtype, counts),
    )


def found(run: RunTrace, metric: str, **scope: str) -> Estimate | None:
    wanted = tuple(scope.items())
    return next((e for e in compute_all(run) if e.metric == metric and e.scope == wanted), None)


def value(run: RunTrace, metric: str, **scope: str) -> float:
    estimate = found(run, metric, **scope)
    assert estimate is not None, metric
    return estimate.value


SPEC = {"draft_steps": 7, "drafted": 28, "accepted": 18, "accepted_histogram": (1, 0, 2, 2, 2),
        "step_accepted": (4, 4, 3, 3, 2, 2, 0), "step_drafted": (4,) * 7}  # fmt: skip


def ngram(**more: object) -> RunTrace:
    """64 tokens, 7 steps with a draft, 18 accepted: 45 decode steps, of which vLLM shows 7."""
    request = answer("a", tuple(range(100, 164)), times=(1.0, 2.0, 4.15))
    return trace((request, entry("a", (1, 40, 23), **{**SPEC, **more})))


def test_the_known_trap_has_both_figures():
    run = ngram()
    assert value(run, "tau") == pytest.approx(63 / 45)
    assert value(run, "tau_counters") == pytest.approx(1 + 18 / 7)
    assert found(run, "tau_at_least") is None  # the last step with a draft accepted none: nothing can have been cut
    assert value(run, "zero_draft_rounds") == 45 - 7
    assert value(run, "survival", k="2") == pytest.approx(6 / 7)
    assert value(run, "acceptance_rate", gamma="4") == pytest.approx(18 / 28)
    assert [found(run, name) for name in ("decode_tokens_per_s", "tau_tokens", "tau_chunks", "inter_round_gap")] == [
        None
    ] * 4


def test_tokens_cut_at_the_end_leave_a_range():
    run = ngram(step_accepted=(0, 2, 2, 3, 3, 4, 4), accepted_histogram=None)
    assert value(run, "tau") == pytest.approx(63 / 45)
    assert value(run, "tau_at_least") == pytest.approx(63 / 49)


def test_a_drafter_that_always_drafts_is_exact():
    request = answer("a", tuple(range(12)), times=(1.0, 2.0))
    whole = entry("a", (1, 11), draft_steps=3, drafted=12, accepted=12, step_accepted=(4, 4, 4), step_drafted=(4, 4, 4))
    steps = step_range(request, whole, draft_length=4)
    assert steps is not None
    assert (steps.decoded, steps.low, steps.high) == (11, 3, 3)  # 4 of the 15 tokens were cut


def test_every_step_of_sglang_is_counted():
    request = answer("a", tuple(range(13)), times=(1.0, 2.0))
    run = trace((request, entry("a", (1, 12), steps=4, draft_steps=4, drafted=12, accepted=9)))
    assert value(run, "tau") == 3.0
    assert found(run, "tau_at_least") is None


def test_counters_agree_with_the_fields_or_are_not_used():
    counts = ServerCounts(64, None, 7, 28, 18, (6, 6, 4, 2))
    run = replace(ngram(), server=ServerTrace("vllm", "0.32.0", "float32", counts))
    place = {"from": "server counters"}
    assert value(run, "tau", **place) == pytest.approx(value(run, "tau"))
    assert value(run, "tau_counters", **place) == pytest.approx(value(run, "tau_counters"))
    assert value(run, "accepted_share", **place, k="3") == pytest.approx(4 / 7)
    others = replace(run, server=ServerTrace("vllm", None, "float32", replace(counts, generated=90)))
    assert found(others, "tau", **place) is None
    assert value(others, "foreign_tokens") == 26


def test_without_fields_the_counters_give_the_headline_and_without_both_there_is_none():
    request, bare = answer("a", tuple(range(64)), times=(1.0, 2.0, 4.0)), entry("a", (1, 40, 23))
    alone = trace((request, bare), counts=ServerCounts(64, None, 7, 28, 18, (6, 6, 4, 2)))
    assert value(alone, "tau") == pytest.approx(63 / 45)
    nothing = trace((request, bare))
    assert found(nothing, "tau") is None
    assert value(nothing, "requests_without_counts") == 1


def test_the_clock_counts_tokens_and_chunks_apart():
    run = ngram()
    assert value(run, "tpot", stat="mean") == pytest.approx(3.15 / 63)
    assert value(run, "inter_chunk_gap", stat="mean") == pytest.approx(3.15 / 2)
    assert value(run, "client_tokens_per_s") == pytest.approx(63 / 3.15)
    text = answer("a", (1, 2), times=(1.0, 2.0), tokens=11)  # the server counts 11, its text gives 2
    assert value(trace((text, entry("a", (1, 10)))), "tpot", stat="mean") == pytest.approx(0.1)


def test_speed_up_is_by_the_clock_over_the_same_requests():
    plain = trace((answer("a", tuple(range(64)), times=(1.0, 7.3)), entry("a", (1, 63))), method="vanilla")
    held = [e for e in compute_all(ngram(), baseline=plain) if e.metric == "client_speed_up"]
    assert held[0].value == pytest.approx(2.0)


def test_a_cached_prompt_is_shown():
    assert value(ngram(prompt_tokens=4, cached_tokens=3), "cached_prompt_share") == 0.75


# ------------------------------------------------------------------------------------------------------- verdicts


def many(offset: int, *, drafted: int = 4, dtype: str = "float32", temperature: float = 0.0) -> RunTrace:
    pairs = []
    for i in range(40):
        ids = (7, 8, 9 + (offset if i == 3 else 0))
        spec = {"draft_steps": 1, "drafted": drafted, "accepted": 1} if drafted else {}
        pairs.append((answer(f"r{i}", ids, times=(1.0, 2.0)), entry(f"r{i}", (1, 2), **spec)))
    return trace(*pairs, dtype=dtype, temperature=temperature)


def test_equal_ids_pass_and_a_difference_fails_in_full_precision():
    same, other = verdict(many(0), many(0), noise_floor=None), verdict(many(1), many(0), noise_floor=None)
    assert (same.outcome, other.outcome) == ("pass", "fail")
    assert "compared: the servers' token ids" in same.reason
    assert other.differences[0].request == "r3"


def test_in_fewer_digits_a_difference_proves_nothing():
    found_ = verdict(many(1, dtype="bfloat16"), many(0), noise_floor=None)
    assert found_.outcome == "inconclusive"
    assert "ties cannot be told" in found_.reason


def test_a_server_that_tells_no_drafts_never_passes():
    assert verdict(many(0, drafted=0), many(0), noise_floor=None).outcome == "inconclusive"


# --------------------------------------------------------------------------------------------- identities and file


def test_a_served_trace_survives_its_file():
    run = replace(ngram(), server=ServerTrace("vllm", None, "float32", ServerCounts(64, None, 7, 28, 18, (6, 6, 4, 2))))
    assert rounds.decode(rounds.encode(run, check=check_identities), where="here") == run


@pytest.mark.parametrize(
    ("chunks", "counts", "says"),
    [
        ((1, 40), {}, "a time for each"),
        ((1, 40, 3), {}, "hold its 64 tokens"),
        ((1, 40, 23), {"accepted": 40}, "at most the drafted"),
    ],
)
def test_a_broken_trace_is_refused(chunks, counts, says):
    run = ngram()
    broken = replace(run, served=(entry("a", chunks, **{**SPEC, **counts}),))
    with pytest.raises(RecordError, match=says):
        check_identities(broken)
