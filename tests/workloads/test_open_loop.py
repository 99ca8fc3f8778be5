"""Open loops, users who think, and mixes under the virtual clock: every time worked out on paper."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.backends.scripted import Script, ScriptedBackend
from specbench.engine.clock import VirtualClock
from specbench.errors import CapacityError
from specbench.metrics import latency, throughput
from specbench.metrics._identities import check_identities
from specbench.types import Prompt, Request, Sampling, Status
from specbench.workloads.closed import ClosedLoop, ClosedOptions
from specbench.workloads.driver import drive
from specbench.workloads.patterns import open_load


def prompt(name: str, turns: int = 1) -> Prompt:
    return Prompt(id=name, task="t", domain="d", turns=tuple(f"turn {i}" for i in range(turns)))


def request(name: str, *, new: int) -> Request:
    return Request(
        id=name, number=0, prompt_ids=(1, 2, 3), max_new_tokens=new, sampling=Sampling(), seed=0,
        stop_ids=frozenset(), ignore_eos=True, task="t", domain="d",
    )  # fmt: skip


def replay(tmp_path, times_s, script: Script, *, new: int = 1, lengths=None, warmups=()):
    """Prompts p0, p1, ... at the times of a trace file."""
    file = tmp_path / "arrivals.jsonl"
    file.write_text("".join(json.dumps({"time_s": at}) + "\n" for at in times_s))
    clock = VirtualClock()
    arrivals = open_load("trace", concurrency=script.max_rows, options={"file": str(file)}, seed=0)
    lengths = lengths or {}
    return drive(
        ScriptedBackend(script, clock=clock),
        conversations=[prompt(f"p{i}") for i in range(len(times_s))],
        build=lambda talk, answers: request(talk.id, new=lengths.get(talk.id, new)),
        arrivals=arrivals,
        clock=clock,
        warmups=warmups,
    )


def values(metric, trace):
    return {(e.metric, *(f"{k}={v}" for k, v in e.scope)): e.value for e in metric.PLUGIN.compute(trace)}


def test_one_row_slower_than_its_arrivals_by_hand(tmp_path):
    """Prefill 2 s, then a token a second; three tokens a request: 4 s of service, a request a second.

      request  arrives  admitted  first  ends   queue  TTFT  end to end
      p0         0         0        2      4      0      2       4
      p1         1         4        6      8      3      5       7
      p2         2         8       10     12      6      8      10
      p3         3        12       14     16      9     11      13
    A driver that waits with the next request until the engine is free would report a queue of 0 for all of them.
    """
    outcome = replay(tmp_path, [0, 1, 2, 3], Script(prefill_s=2, verify_s=1, max_rows=1), new=3)
    rows = [(r.arrival_s, r.admitted_s, r.first_token_s, r.finish_s) for r in outcome.trace.requests]
    assert rows == [(0, 0, 2, 4), (1, 4, 6, 8), (2, 8, 10, 12), (3, 12, 14, 16)]
    found = values(latency, outcome.trace)
    assert found["queue", "stat=mean"] == (0 + 3 + 6 + 9) / 4
    assert found["ttft", "stat=mean"] == (2 + 5 + 8 + 11) / 4
    assert found["ttft", "stat=p50"] == 6.5
    assert found["e2e", "stat=mean"] == (4 + 7 + 10 + 13) / 4
    assert found["tpot", "stat=mean"] == 1.0
    check_identities(outcome.trace)


def test_an_engine_faster_than_its_arrivals_idles_in_between(tmp_path):
    outcome = replay(tmp_path, [5, 9.5, 9.5, 20], Script(prefill_s=1, max_rows=1))
    rows = [(r.arrival_s, r.admitted_s, r.finish_s) for r in outcome.trace.requests]
    assert rows == [(0, 0, 1), (4.5, 4.5, 5.5), (4.5, 5.5, 6.5), (15, 15, 16)]  # times count from the first line
    assert outcome.trace.wall_s == 16


def test_open_loop_with_warm_up_and_two_failures_by_hand(tmp_path):
    """Recipe T12 in an open loop: two rows, prefill 1 s, rounds of 1 s that commit two tokens, five tokens a request.

    The warm-up takes [0, 1]; the load begins at 1. Steps, with who prefills (P) and who has a round (R):
      1-2   P0             p0 arrived at 1, has 1 token at 2
      2-4   R0 P1          p1 arrived at 2 and fails when its prefill is due; p0 has 3 tokens at 4
      4-6   R0 P2          p2 arrived at 3, has 1 token at 6; p0 ends with 5 tokens at 6
      6-8   R2 P3          p3 arrived at 4 and fails; p2 has 3 tokens at 8
      8-10  R2 P4          p4 arrived at 5, has 1 token at 10; p2 ends at 10
      10-12 R4 P5          p5 arrived at 6, has 1 token at 12; p4 has 3 tokens at 12
      12-13 R4 R5          p4 ends at 13, p5 has 3 tokens
      13-14 R5             p5 ends
    """
    script = Script(
        draft_length=3, accepted=lambda name, index: 1, prefill_s=1, draft_s=0.25, verify_s=0.75, max_rows=2,
        failures={"p1": "out of luck", "p3": "again"},
    )  # fmt: skip
    outcome = replay(tmp_path, [0, 1, 2, 3, 4, 5], script, new=5, warmups=[request("warm", new=1)])
    trace = outcome.trace
    check_identities(trace)
    ok = {r.id: r for r in trace.requests if r.status == Status.OK and not r.warmup}
    rows = {name: (r.arrival_s, r.admitted_s, r.token_times_s) for name, r in ok.items()}
    assert rows == {
        "p0": (1, 1, (2, 4, 6)),
        "p2": (3, 4, (6, 8, 10)),
        "p4": (5, 8, (10, 12, 13)),
        "p5": (6, 10, (12, 13, 14)),
    }
    assert [(r.id, r.finish_s, r.error) for r in trace.requests if r.status == Status.FAILED] == [
        ("p1", 4, "out of luck"), ("p3", 8, "again"),
    ]  # fmt: skip
    found = values(latency, trace)
    assert found["requests", "kind=warmup"] == 1
    assert found["requests", "kind=failed"] == 2
    assert found["queue", "stat=mean"] == (0 + 1 + 3 + 4) / 4
    assert found["ttft", "stat=mean"] == (1 + 3 + 5 + 6) / 4
    assert found["tpot", "stat=mean"] == (4 + 4 + 3 + 2) / 4 / 4
    assert found["e2e", "stat=mean"] == (5 + 7 + 8 + 8) / 4
    # the window begins with the first admission after a request was served, p3's at 6, and ends with p5's at 10
    assert trace.paced
    window = throughput.steady_window(trace)
    assert window is not None
    assert (window.start_s, window.end_s) == (6, 10)
    assert window.tokens == 2 + 2 + 1  # p2 at 8 and 10, p4 at 10
    speed = values(throughput, trace)
    assert speed["steady_tokens_per_s",] == 5 / 4
    assert (speed["steady_window", "edge=start"], speed["steady_window", "edge=end"]) == (6, 10)
    assert speed["failed_share",] == 2 / 6


def test_a_light_open_loop_has_a_window_though_its_rows_are_never_full(tmp_path):
    outcome = replay(tmp_path, [0, 10, 20, 30], Script(prefill_s=1, max_rows=8))
    window = throughput.steady_window(outcome.trace)
    assert window is not None
    assert (window.start_s, window.end_s) == (10, 30)
    assert window.tokens_per_s == 2 / 20  # a request of one token every ten seconds: the rate that arrived


def test_a_load_that_ends_before_anything_was_served_has_no_window(tmp_path):
    outcome = replay(tmp_path, [0, 0, 0], Script(prefill_s=1, max_rows=8))
    assert throughput.steady_window(outcome.trace) is None


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(0, 30, allow_subnormal=False), min_size=1, max_size=25).map(sorted),
    st.sampled_from([0.01, 0.5, 1.0, 7.0]),
)
def test_any_arrivals_wait_as_lindley_says(tmp_path_factory, times_s, service_s):
    folder = tmp_path_factory.mktemp("lindley")
    outcome = replay(folder, times_s, Script(prefill_s=service_s, max_rows=1))
    wait, before = 0.0, times_s[0]
    for at, done in zip(times_s, outcome.trace.requests, strict=True):
        wait = max(0.0, wait + service_s - (at - before)) if done.id != "p0" else 0.0
        before = at
        assert done.arrival_s == at - times_s[0]
        assert done.admitted_s - done.arrival_s == pytest.approx(wait, abs=1e-9)


def test_a_pattern_that_ends_early_leaves_the_rest_reported_not_lost(tmp_path):
    file = tmp_path / "two.jsonl"
    file.write_text("1\n3\n")
    clock = VirtualClock()
    outcome = drive(
        ScriptedBackend(Script(prefill_s=1), clock=clock),
        conversations=[prompt("a"), prompt("b"), prompt("c", turns=2)],
        build=lambda talk, answers: request(f"{talk.id}/{len(answers)}", new=1),
        arrivals=open_load("trace", concurrency=1, options={"file": str(file)}, seed=0),
        clock=clock,
    )
    assert [r.id for r in outcome.trace.requests] == ["a/0", "b/0"]
    assert [(s.prompt, s.turn) for s in outcome.skipped] == [("c", 0), ("c", 1)]
    assert "no further arrivals" in outcome.skipped[0].reason
    assert not outcome.interrupted


# ------------------------------------------------------------------------------------------------ users who think


def thinking(prompts, script: Script, *, users: int, think_time_s: float, limit: int = 10**9):
    clock = VirtualClock()

    def build(talk, answers):
        if len(answers) >= limit:
            raise CapacityError("too long")
        return request(f"{talk.id}/{len(answers)}", new=1)

    return drive(
        ScriptedBackend(script, clock=clock),
        conversations=prompts,
        build=build,
        arrivals=ClosedLoop(concurrency=users, options=ClosedOptions(think_time_s=think_time_s)),
        clock=clock,
    )


def test_users_think_between_turns_and_between_conversations():
    outcome = thinking([prompt("a", turns=2), prompt("b"), prompt("c")], Script(prefill_s=1), users=1, think_time_s=3)
    rows = [(r.id, r.arrival_s, r.finish_s) for r in outcome.trace.requests]
    assert rows == [("a/0", 0, 1), ("a/1", 4, 5), ("b/0", 8, 9), ("c/0", 12, 13)]
    assert outcome.trace.wall_s == 13  # nobody waits for a user who has nothing more to ask
    assert outcome.trace.paced


def test_a_pause_that_ends_while_the_engine_is_busy_keeps_its_time():
    """Two users, one row of 10 s, 3 s of thought: b is served from 10 to 20 while a's user comes back at 13."""
    outcome = thinking([prompt(name) for name in "abcd"], Script(prefill_s=10, max_rows=1), users=2, think_time_s=3)
    rows = [(r.arrival_s, r.admitted_s, r.finish_s) for r in outcome.trace.requests]
    assert rows == [(0, 0, 10), (0, 10, 20), (13, 20, 30), (23, 30, 40)]


def test_a_user_whose_next_turn_does_not_fit_starts_another_conversation():
    prompts = [prompt("a", turns=3), prompt("b")]
    outcome = thinking(prompts, Script(prefill_s=1), users=1, think_time_s=2, limit=1)
    assert [(r.id, r.arrival_s) for r in outcome.trace.requests] == [("a/0", 0), ("b/0", 3)]
    assert [(s.prompt, s.turn) for s in outcome.skipped] == [("a", 1), ("a", 2)]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=8), st.integers(1, 4), st.integers(1, 3),
    st.sampled_from([0.0, 0.25, 2.0]),
)  # fmt: skip
def test_no_user_has_two_requests_at_once_and_none_is_lost(turns, users, rows, think_time_s):
    prompts = [prompt(f"p{i}", turns=n) for i, n in enumerate(turns)]
    outcome = thinking(prompts, Script(prefill_s=0.5, max_rows=rows), users=users, think_time_s=think_time_s)
    done = outcome.trace.requests
    assert len(done) == sum(turns)
    assert all(r.status == Status.OK for r in done)
    events = sorted([(r.arrival_s, 1) for r in done] + [(r.finish_s + think_time_s, -1) for r in done])
    level, most = 0, 0
    for _, change in events:
        level += change
        most = max(most, level)
    assert most <= users
    by_id = {r.id: r for r in done}
    for talk in prompts:
        for turn in range(1, len(talk.turns)):
            before = by_id[f"{talk.id}/{turn - 1}"]
            assert by_id[f"{talk.id}/{turn}"].arrival_s == before.finish_s + think_time_s
