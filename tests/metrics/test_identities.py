"""Valid traces pass; each single falsification is caught and names the place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support_traces import Round, example_trace, make_request, make_trace, plain_trace, simulate_trace, traces

from specbench.errors import RecordError
from specbench.metrics._identities import check_identities
from specbench.types import RequestTrace, RoundTrace, RunTrace, Status, StepTrace, StopReason


def test_hand_made_and_simulated_traces_are_valid() -> None:
    for trace in (example_trace(), simulate_trace(0.7, gamma=4, rounds=200), make_trace([])):
        check_identities(trace)
        check_identities(plain_trace(trace))


@settings(max_examples=60, deadline=None)
@given(traces())
def test_generated_traces_are_valid(trace: RunTrace) -> None:
    check_identities(trace)


RoundChange = Callable[[RoundTrace], RoundTrace | None]
RequestChange = Callable[[RequestTrace], RequestTrace | None]
StepChange = Callable[[StepTrace], StepTrace | None]

ROUND_CHANGES: dict[str, RoundChange] = {
    "accepted + 1": lambda r: replace(r, accepted=r.accepted + 1),
    # where only the target's token was cut off, one acceptance less is a valid round too
    "accepted - 1": lambda r: replace(r, accepted=r.accepted - 1) if r.committed != r.accepted else None,
    "verified + 1": lambda r: replace(r, verified=r.verified + 1),
    "verified - 1": lambda r: replace(r, verified=r.verified - 1),
    "planned below verified": lambda r: replace(r, planned=r.verified - 1),
    "planned above drafted": lambda r: replace(r, planned=r.drafted + 1),
    "drafted + 1": lambda r: replace(r, drafted=r.drafted + 1),
    "drafted - 1": lambda r: replace(r, drafted=r.drafted - 1),
    "committed + 1": lambda r: replace(r, committed=r.committed + 1),
    "committed - 1": lambda r: replace(r, committed=r.committed - 1),
    "discarded + 1": lambda r: replace(r, discarded=r.discarded + 1),
    "discarded - 1": lambda r: replace(r, discarded=r.discarded - 1),
    "anchor moved": lambda r: replace(r, anchor_position=r.anchor_position + 1),
    "round number": lambda r: replace(r, round=r.round + 1),
    "unknown step": lambda r: replace(r, step=r.step + 1000),
    "unknown request": lambda r: replace(r, request="nobody"),
    "committed id": lambda r: replace(r, committed_ids=(-1, *r.committed_ids[1:])),
    "accepted draft id": lambda r: replace(r, draft_ids=(-1, *r.draft_ids[1:])) if r.accepted else None,
    "draft ids cut": lambda r: replace(r, draft_ids=r.draft_ids[:-1]) if r.drafted else None,
    "confidence cut": lambda r: replace(r, confidence=r.confidence[:-1]) if r.confidence else None,
    "confidence above 1": lambda r: replace(r, confidence=(1.5, *r.confidence[1:])) if r.confidence else None,
    "gaps cut": lambda r: replace(r, top2_gap=r.top2_gap[:-1]) if r.top2_gap else None,
    "gap NaN": lambda r: replace(r, top2_gap=(float("nan"), *r.top2_gap[1:])) if r.top2_gap else None,
    "target logs cut": lambda r: replace(r, log_p_target=r.log_p_target[:-1]) if r.log_p_target else None,
    "draft logs longer": lambda r: replace(r, log_p_draft=(*r.log_p_draft, 0.0)) if r.log_p_draft is not None else None,
    "stop reason misspelt": lambda r: replace(r, stop_reason="eos") if r.stop_reason else None,
}

REQUEST_CHANGES: dict[str, RequestChange] = {
    "output longer": lambda r: replace(r, output_ids=(*r.output_ids, 5)),
    "output shorter": lambda r: replace(r, output_ids=r.output_ids[:-1]) if r.output_ids else None,
    "output token": lambda r: replace(r, output_ids=(*r.output_ids[:-1], -5)) if r.token_times_s[1:] else None,
    "first token 2": lambda r: replace(r, first_token=2),
    "no first token": lambda r: replace(r, first_token=0) if r.first_token else None,
    "prompt length": lambda r: replace(r, prompt_tokens=r.prompt_tokens + 1) if r.token_times_s[1:] else None,
    "beyond the limit": lambda r: replace(r, max_new_tokens=len(r.output_ids) - 1) if r.output_ids else None,
    "times cut": lambda r: replace(r, token_times_s=r.token_times_s[:-1]) if r.token_times_s else None,
    "first time": lambda r: replace(r, first_token_s=r.first_token_s + 1) if r.first_token_s is not None else None,
    "no first time": lambda r: replace(r, first_token_s=None) if r.first_token_s is not None else None,
    "admitted before arrival": lambda r: replace(r, admitted_s=r.arrival_s - 1),
    "finished early": lambda r: replace(r, finish_s=r.arrival_s - 1),
    "times reversed": lambda r: (
        replace(r, token_times_s=r.token_times_s[::-1], first_token_s=r.token_times_s[-1])
        if r.token_times_s[1:]
        else None
    ),
    "stop ids": lambda r: replace(r, stop_ids=(-99,)) if r.stop_reason == StopReason.STOP_TOKEN else None,
    "early stop token": lambda r: (
        replace(r, stop_ids=(*r.stop_ids, r.output_ids[0]))
        if r.stop_reason == StopReason.STOP_TOKEN and len(r.output_ids) > 1
        else None
    ),
    "other stop reason": lambda r: (
        replace(r, stop_reason=None) if r.stop_reason is not None and r.status == Status.OK else None
    ),
}

STEP_CHANGES: dict[str, StepChange] = {
    "negative time": lambda s: replace(s, verify_s=-0.1),
    "infinite time": lambda s: replace(s, other_s=float("inf")),
    "NaN time": lambda s: replace(s, draft_s=float("nan")),
    "rows": lambda s: replace(s, decode_rows=s.decode_rows + 1, decode_tokens=s.decode_tokens + 1),
    "tokens": lambda s: replace(s, decode_tokens=s.decode_tokens + 1),
    "number": lambda s: replace(s, step=s.step + 1000),
    "negative prefill": lambda s: replace(s, prefill_tokens=-1),
}


def falsify(trace: RunTrace, table: str, change: Callable[[Any], Any], data: st.DataObject) -> RunTrace:
    rows = getattr(trace, table)
    options = [i for i, row in enumerate(rows) if change(row) is not None]
    assume(options)
    place = data.draw(st.sampled_from(options))
    return replace(trace, **{table: (*rows[:place], change(rows[place]), *rows[place + 1 :])})


CHANGES = [
    *((f"round: {name}", "rounds", change) for name, change in ROUND_CHANGES.items()),
    *((f"request: {name}", "requests", change) for name, change in REQUEST_CHANGES.items()),
    *((f"step: {name}", "steps", change) for name, change in STEP_CHANGES.items()),
]


@pytest.mark.parametrize(("table", "change"), [c[1:] for c in CHANGES], ids=[c[0] for c in CHANGES])
@settings(max_examples=8, deadline=None)
@given(trace=traces(min_requests=1, min_rounds=1), data=st.data())
def test_every_falsification_is_caught(table: str, change: Callable[[Any], Any], trace: RunTrace, data: Any) -> None:
    broken = falsify(trace, table, change, data)
    if broken == trace:
        return
    with pytest.raises(RecordError) as caught:
        check_identities(broken)
    assert "\n" not in str(caught.value)


def test_lost_rounds_and_doubled_requests_are_caught() -> None:
    trace = simulate_trace(0.6, gamma=3, rounds=60, requests=3)
    with pytest.raises(RecordError, match="round"):
        check_identities(replace(trace, rounds=trace.rounds[:5] + trace.rounds[6:]))
    with pytest.raises(RecordError, match="unique"):
        check_identities(replace(trace, requests=(*trace.requests, trace.requests[0])))
    with pytest.raises(RecordError, match="step"):
        check_identities(replace(trace, steps=trace.steps[::-1]))


def test_the_message_names_request_and_round() -> None:
    trace = example_trace()
    rounds = (*trace.rounds[:2], replace(trace.rounds[2], accepted=9), trace.rounds[3])
    with pytest.raises(RecordError, match=r"request 'a' round 2: 0 <= accepted"):
        check_identities(replace(trace, rounds=rounds))


def test_a_stop_may_only_end_the_last_round() -> None:
    early = [Round(3, committed=2, stop=StopReason.LENGTH), Round(1)]
    with pytest.raises(RecordError, match="only the last round"):
        check_identities(make_trace([make_request(early)]))


def test_an_interrupted_run_may_miss_the_rounds_of_requests_in_flight() -> None:
    one = make_request([Round(1), Round(0)], id="one", steps=[1, 2])
    two = make_request([Round(1), Round(2)], id="two", steps=[1, 2])
    whole = make_trace([one, two])
    cut = replace(whole, requests=whole.requests[:1], rounds=whole.rounds[:2])
    with pytest.raises(RecordError, match="rows"):
        check_identities(cut)
    check_identities(replace(cut, status=Status.INTERRUPTED))
