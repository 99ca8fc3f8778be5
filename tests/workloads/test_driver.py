from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.backends.scripted import Script, ScriptedBackend, scripted_token
from specbench.engine.clock import VirtualClock
from specbench.errors import CapacityError
from specbench.metrics._all import compute_all
from specbench.metrics._identities import check_identities
from specbench.metrics.throughput import steady_window
from specbench.types import Prompt, Request, Sampling, Status
from specbench.workloads.closed import ClosedLoop
from specbench.workloads.driver import drive


@dataclass
class Fixed:
    """Arrivals at given times."""

    open_loop = True
    think_time_s = 0.0
    times_s: list[float] = field(default_factory=list)

    def due(self, now_s: float, *, in_flight: int) -> int:
        count = sum(t <= now_s for t in self.times_s)
        del self.times_s[:count]
        return count

    def next_s(self) -> float | None:
        return self.times_s[0] if self.times_s else None


def prompt(name: str, turns: int = 1) -> Prompt:
    return Prompt(id=name, task="t", domain="d", turns=tuple(f"turn {i}" for i in range(turns)))


def request(name: str, *, number: int = 0, new: int = 4, ids: tuple[int, ...] = (1, 2, 3)) -> Request:
    return Request(
        id=name, number=number, prompt_ids=ids, max_new_tokens=new, sampling=Sampling(), seed=0,
        stop_ids=frozenset({0}), ignore_eos=False, task="t", domain="d",
    )  # fmt: skip


class Builder:
    def __init__(self, new: int = 4, limit: int = 10**9):
        self.new, self.limit = new, limit
        self.seen: list[tuple[str, int, tuple[tuple[int, ...], ...]]] = []

    def __call__(self, talk: Prompt, answers) -> Request:
        self.seen.append((talk.id, len(answers), tuple(answers)))
        ids = (1, 2, 3, *(token for answer in answers for token in answer))
        if len(ids) > self.limit:
            raise CapacityError(f"{len(ids)} tokens")
        return request(f"{talk.id}/{len(answers)}", number=sum(map(ord, talk.id)), new=self.new, ids=ids)


def run(script: Script, prompts, *, users=1, arrivals=None, builder=None, **more):
    clock = VirtualClock()
    backend = ScriptedBackend(script, clock=clock)
    builder = builder or Builder()
    arrivals = arrivals or ClosedLoop(concurrency=users)
    return drive(backend, conversations=prompts, build=builder, arrivals=arrivals, clock=clock, **more), builder


def test_closed_loop_keeps_exactly_n_in_flight():
    outcome, _ = run(Script(verify_s=1.0, prefill_s=1.0, max_rows=8), [prompt(f"p{i}") for i in range(7)], users=3)
    events = sorted(
        [(r.arrival_s, 1) for r in outcome.trace.requests] + [(r.finish_s, -1) for r in outcome.trace.requests]
    )
    level, most = 0, 0
    for _, change in events:  # at equal times the completion sorts first
        level += change
        most = max(most, level)
    assert most == 3
    assert all(r.status == Status.OK for r in outcome.trace.requests)


def test_second_turn_is_built_from_the_first_answer():
    outcome, builder = run(Script(verify_s=1.0), [prompt("a", turns=2)])
    assert [(name, turn) for name, turn, _ in builder.seen] == [("a", 0), ("a", 1)]
    first = outcome.trace.requests[0]
    assert builder.seen[1][2] == (first.output_ids,)
    assert outcome.trace.requests[1].arrival_s == first.finish_s


def test_arrival_times_are_kept_when_the_server_is_late():
    script = Script(prefill_s=10.0, max_rows=1)
    outcome, _ = run(script, [prompt("a"), prompt("b")], arrivals=Fixed([1.0, 2.0]), builder=Builder(new=1))
    a, b = outcome.trace.requests
    assert (a.arrival_s, a.admitted_s, a.finish_s) == (1.0, 1.0, 11.0)
    assert (b.arrival_s, b.admitted_s, b.finish_s) == (2.0, 11.0, 21.0)


def test_scripted_times_by_hand():
    """Recipe T12: two users, a warm-up, two failures; every time is worked out on paper."""
    script = Script(
        draft_length=3, accepted=lambda request, r: 1, prefill_s=2.0, draft_s=0.25, verify_s=0.75, max_rows=2,
        failures={"b/0": "out of luck", "d/0": "again"},
    )  # fmt: skip
    prompts = [prompt(name) for name in "abcd"]
    outcome, _ = run(script, prompts, users=2, builder=Builder(new=5), warmups=[request("w", new=1)])
    trace = outcome.trace
    by_id = {r.id: r for r in trace.requests}
    assert by_id["w"].warmup
    assert by_id["w"].finish_s == 2.0
    # origin 2.0: a and b prefill together until 6.0; b fails there; c arrives at 6.0
    a, b, c, d = (by_id[f"{name}/0"] for name in "abcd")
    assert (a.arrival_s, a.first_token_s) == (2.0, 6.0)
    assert (b.status, b.error, b.finish_s, b.output_ids) == (Status.FAILED, "out of luck", 6.0, ())
    # 6.0 to 9.0: a's round (1 s) and c's prefill (2 s); a then holds 1 + 2 tokens
    assert c.first_token_s == 9.0
    # 9.0 to 10.0: a and c commit two each: a is done with 5
    assert a.token_times_s == (6.0, 9.0, 10.0)
    assert a.finish_s == 10.0
    # d arrives at 10.0, prefills beside c's last round until 13.0 and fails
    assert (c.finish_s, c.token_times_s) == (13.0, (9.0, 10.0, 13.0))
    assert (d.status, d.finish_s) == (Status.FAILED, 13.0)
    assert trace.wall_s == 13.0
    assert sum(s.total_s for s in trace.steps) == 13.0
    check_identities(trace)
    means = {e.metric: e.value for e in compute_all(trace) if e.scope == (("stat", "mean"),)}
    assert means["queue"] == 0.0
    assert means["ttft"] == (4.0 + 3.0) / 2
    assert means["tpot"] == ((10.0 - 6.0) / 4 + (13.0 - 9.0) / 4) / 2
    assert means["e2e"] == (8.0 + 7.0) / 2
    failed = next(e for e in compute_all(trace) if e.metric == "failed_share")
    assert (failed.value, failed.n) == (0.5, 4)
    # both rows are taken from 2.0 on and the last admission is d's at 10.0: a gave 1 + 2 + 2 tokens by then, c 1 + 2
    window = steady_window(trace)
    assert window is not None
    assert (window.start_s, window.end_s, window.tokens, window.tokens_per_s) == (2.0, 10.0, 8, 1.0)
    speed = next(e for e in compute_all(trace) if e.metric == "decode_tokens_per_s" and not e.scope)
    assert (speed.value, speed.n) == (4.0, 4)  # the step from 9.0 to 10.0 is the only one without a prefill


def test_turns_after_a_failure_are_reported_not_lost():
    outcome, _ = run(Script(failures={"a/0": "boom"}), [prompt("a", turns=3), prompt("b")])
    assert [(s.prompt, s.turn) for s in outcome.skipped] == [("a", 1), ("a", 2)]
    assert all("boom" in s.reason for s in outcome.skipped)
    assert [r.status for r in outcome.trace.requests] == [Status.FAILED, Status.OK]


def test_turn_that_does_not_fit_is_skipped_with_its_reason():
    outcome, _ = run(Script(), [prompt("a", turns=3)], builder=Builder(limit=8))
    assert [(s.turn, s.reason) for s in outcome.skipped] == [(2, "11 tokens")]


def test_stop_closes_with_everything_finished_so_far():
    seen: list[int] = []

    def stop() -> bool:
        return len(seen) > 0 and seen[-1] >= 2

    outcome, _ = run(
        Script(verify_s=1.0), [prompt(f"p{i}") for i in range(5)], stop=stop, on_progress=lambda p: seen.append(p.done)
    )
    assert outcome.interrupted
    assert [r.status for r in outcome.trace.requests].count(Status.OK) == 2


def test_stop_in_the_middle_marks_the_request_interrupted():
    polls: list[int] = []
    outcome, _ = run(
        Script(verify_s=1.0), [prompt("a")], stop=lambda: len(polls) > 1, on_progress=lambda p: polls.append(1)
    )
    assert outcome.trace.status == Status.INTERRUPTED
    assert [r.status for r in outcome.trace.requests] == [Status.INTERRUPTED]


def test_stop_token_cuts_a_round():
    script = Script(draft_length=3, accepted=lambda request, r: 3, stops={"a/0": 2})
    outcome, _ = run(script, [prompt("a")], builder=Builder(new=20))
    (only,) = outcome.trace.rounds
    assert (only.accepted, only.committed, only.discarded, only.stop_reason) == (3, 2, 1, "stop")
    assert outcome.trace.requests[0].output_ids[-1] == 0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=6),
    st.integers(1, 4), st.integers(1, 3), st.integers(0, 5), st.integers(0, 12),
    st.lists(st.integers(0, 5), min_size=1, max_size=7),
    st.none() | st.integers(0, 12),
)  # fmt: skip
def test_identities_hold_on_any_script(turns, users, rows, gamma, new, accepts, stop_at):
    prompts = [prompt(f"p{i}", turns=n) for i, n in enumerate(turns)]
    stops = {} if stop_at is None else {"p0/0": stop_at}
    script = Script(
        draft_length=gamma, accepted=lambda request, r: accepts[r % len(accepts)], prefill_s=0.5, verify_s=0.1,
        max_rows=rows, stops=stops,
    )  # fmt: skip
    outcome, _ = run(script, prompts, users=users, builder=Builder(new=new))
    trace = outcome.trace
    check_identities(trace)
    assert len(trace.requests) == sum(turns)
    for record in trace.requests:
        rounds = [r for r in trace.rounds if r.request == record.id]
        assert [r.round for r in rounds] == list(range(len(rounds)))
        assert record.first_token + sum(r.committed for r in rounds) == len(record.output_ids) <= new
        assert record.output_ids[record.first_token :] == tuple(t for r in rounds for t in r.committed_ids)
        assert len(record.token_times_s) == len(rounds) + record.first_token
        if record.id not in stops:
            assert record.output_ids == tuple(
                scripted_token(record.number, i, avoid=frozenset({0})) for i in range(new)
            )
        for r in rounds:
            assert 0 <= r.accepted <= r.verified <= r.planned <= r.drafted
            cut = r.stop_reason == "stop"
            assert r.committed + r.discarded == r.accepted + (0 if cut and r.committed <= r.accepted else 1)


def test_same_request_twice_in_flight_is_our_own_fault():
    with pytest.raises(AssertionError, match="twice"):
        run(Script(), [prompt("a"), prompt("a")], users=2)
