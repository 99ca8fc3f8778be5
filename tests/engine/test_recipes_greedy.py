"""Recipes T1, T2, T4, T5, T7, T11, T16, T17 of the metrics definition: greedy, float32, tiny random targets."""

from __future__ import annotations

from functools import cache

import pytest
from specbench_drafters.ngram import NgramDrafter
from specbench_drafters.vanilla import VanillaDrafter
from support_drafters import ScriptDrafter, SilentDrafter
from support_engine import outputs, prompts, request, serve
from support_targets import tiny_model

from specbench.engine.policies.fixed import FixedPolicy
from specbench.engine.target import Target
from specbench.errors import CapacityError
from specbench.types import Request, RunTrace


@cache
def llama() -> Target:
    return Target(tiny_model("llama", scale=10.0))  # this spread gives texts that do not loop at once


def plain(requests: list[Request], **options: object) -> RunTrace:
    return serve(llama(), VanillaDrafter(), requests, k=0, **options)  # type: ignore[arg-type]


def texts(requests: list[Request]) -> dict[int, list[int]]:
    done = outputs(plain(requests))
    return {r.number: [*r.prompt_ids, *done[r.id]] for r in requests}


def varied(length: int, *, distinct: int) -> tuple[Request, tuple[int, ...]]:
    """A request whose greedy text of ``length`` tokens has at least ``distinct`` different ones, and that text."""
    requests = [request(n, p, max_new_tokens=length) for n, p in enumerate(prompts(40, seed=3))]
    done = outputs(plain(requests, rows=40))
    best = max(requests, key=lambda r: len(set(done[r.id])))
    assert len(set(done[best.id])) >= distinct
    return request(0, best.prompt_ids, max_new_tokens=length), done[best.id]


def check_rounds(trace: RunTrace) -> None:
    for r in trace.rounds:
        assert r.accepted <= r.verified <= r.planned <= r.drafted
        cut = r.stop_reason is not None and r.committed <= r.accepted
        assert r.committed + r.discarded == r.accepted + (0 if cut else 1)
    for q in trace.requests:
        assert q.first_token + sum(r.committed for r in trace.rounds if r.request == q.id) == len(q.output_ids)


def test_t2_wrong_and_silent_drafters_change_nothing() -> None:
    requests = [request(n, p) for n, p in enumerate(prompts(3))]
    known = texts(requests)
    expected = outputs(plain(requests))
    wrong = serve(llama(), ScriptDrafter(known, a=0.0), requests, k=4)
    assert outputs(wrong) == expected
    assert {r.committed for r in wrong.rounds} == {1}
    assert max(r.drafted for r in wrong.rounds) == 4
    silent = serve(llama(), SilentDrafter(), requests, k=4)
    assert outputs(silent) == expected
    assert {r.drafted for r in silent.rounds} == {0}
    check_rounds(wrong)
    check_rounds(silent)


def test_t4_stop_tokens_anywhere_in_a_block() -> None:
    base, out = varied(20, distinct=15)
    text = texts([base])
    seen = set()
    for gamma in (3, 5):
        for m in range(len(out)):
            stop = frozenset({out[m]})
            first = out.index(out[m])
            stopped = request(0, base.prompt_ids, max_new_tokens=20, stop_ids=stop)
            trace = serve(llama(), ScriptDrafter(text), [stopped], k=gamma)
            assert trace.requests[0].output_ids == out[: first + 1]
            assert trace.requests[0].stop_reason == "stop"
            check_rounds(trace)
            if trace.rounds:
                last = trace.rounds[-1]
                seen.add((gamma, last.committed - 1, last.accepted))
                bonus = last.committed == last.accepted + 1
                assert last.discarded == (0 if bonus else last.accepted - last.committed)
            else:
                assert first == 0  # the prefill's token was the stop
            ignoring = serve(
                llama(),
                ScriptDrafter(text),
                [request(0, base.prompt_ids, max_new_tokens=20, stop_ids=stop, ignore_eos=True)],
                k=gamma,
            )
            assert ignoring.requests[0].output_ids == out
    assert {offset for gamma, offset, _ in seen if gamma == 3} == {0, 1, 2, 3}  # every place, the bonus included


def test_t4_two_stop_ids_and_the_example() -> None:
    base, out = varied(20, distinct=15)
    late, early = out[9], out[6]
    trace = serve(
        llama(),
        ScriptDrafter(texts([base])),
        [request(0, base.prompt_ids, max_new_tokens=20, stop_ids=frozenset({late, early}))],
        k=3,
    )
    first = min(out.index(late), out.index(early))
    assert trace.requests[0].output_ids == out[: first + 1]


@pytest.mark.parametrize("limit", [0, 1, 3, 4, 5, 17])
def test_t5_exact_lengths(limit: int) -> None:
    base = request(0, prompts(1, seed=7)[0], max_new_tokens=30)
    known = texts([base])
    trace = serve(llama(), ScriptDrafter(known), [request(0, base.prompt_ids, max_new_tokens=limit)], k=3)
    assert trace.requests[0].output_ids == tuple(known[0][len(base.prompt_ids) :][:limit])
    assert trace.requests[0].stop_reason == "length"
    assert all(r.discarded == 0 for r in trace.rounds)
    check_rounds(trace)


def test_t5_prompt_near_the_end_of_the_context() -> None:
    limit = llama().context_limit
    prompt = prompts(1, seed=8, longest=5)[0] * 200
    for room in (1, 2, 3, 9):
        base = request(0, prompt[: limit - room], max_new_tokens=50)
        expected = plain([base], max_context=limit).requests[0].output_ids
        assert len(expected) == room
        trace = serve(llama(), ScriptDrafter({0: [*base.prompt_ids, *expected]}), [base], k=5, max_context=limit)
        assert trace.requests[0].output_ids == expected
        check_rounds(trace)
    with pytest.raises(CapacityError, match="does not fit"):
        plain([request(0, prompt[:limit])], max_context=limit)


def test_t5_drafter_with_a_shorter_context_stops_drafting() -> None:
    base = request(0, prompts(1, seed=9)[0], max_new_tokens=30)
    drafter = ScriptDrafter(texts([base]))
    drafter.max_context = len(base.prompt_ids) + 10
    trace = serve(llama(), drafter, [base], k=4)
    assert outputs(trace) == outputs(plain([base]))
    reach = [r.anchor_position + r.drafted for r in trace.rounds if r.drafted]
    assert max(reach) < drafter.max_context
    assert trace.rounds[-1].drafted == 0


@pytest.mark.parametrize("name", ["script", "ngram"])
def test_t7_same_rounds_in_any_batch(name: str) -> None:
    limits = [24, 9, 30, 17, 24]
    requests = [
        request(n, p, max_new_tokens=m) for n, (p, m) in enumerate(zip(prompts(5, seed=2), limits, strict=True))
    ]
    known = texts(requests)

    def rounds(rows: int, joins: dict[int, int] | None = None) -> dict[tuple[str, int], object]:
        view = llama().view(max_rows=rows, max_context=200)

        class Positional(ScriptDrafter):
            """Wrong at positions that depend on the text only, so that every batch sees the same drafts."""

            def propose(self, rows, *, limits, rng):  # type: ignore[no-untyped-def]
                found = super().propose(rows, limits=limits, rng=rng)
                at = rows.lengths[:, None] + 1 + rows.lengths.new_tensor(range(found.tokens.shape[1]))
                wrong = (at * 7 + rows.number[:, None]) % 5 == 0
                found.tokens[wrong] = (found.tokens[wrong] + 1) % 90 + 3
                return found

        drafter = Positional(known) if name == "script" else NgramDrafter(view, max_ngram=2, min_ngram=1)
        trace = serve(llama(), drafter, requests, k=3, rows=rows, joins=joins)
        check_rounds(trace)
        return {(r.request, r.round): (r.draft_ids, r.accepted, r.committed_ids) for r in trace.rounds}

    alone = rounds(1)
    for rows_at_once in (2, 3, 5):
        assert rounds(rows_at_once) == alone
    assert rounds(5, joins={1: 4, 3: 9}) == alone


def test_t11_twice_and_preempted() -> None:
    requests = [request(n, p, max_new_tokens=60) for n, p in enumerate(prompts(4, seed=4))]
    known = texts(requests)
    roomy = serve(llama(), ScriptDrafter(known, wrong_at=(2,)), requests, k=3)
    again = serve(llama(), ScriptDrafter(known, wrong_at=(2,)), requests, k=3)
    tight = serve(
        llama(),
        ScriptDrafter(known, wrong_at=(2,)),
        requests,
        k=3,
        max_context=100,
        kv_memory_bytes=9 * 16 * llama().lm.layer_shapes[0].bytes_per_token(llama().lm.dtype) * 3,
    )

    def key(trace: RunTrace) -> set[tuple[object, ...]]:
        return {(r.request, r.round, r.draft_ids, r.accepted, r.committed_ids) for r in trace.rounds}

    assert key(roomy) == key(again)
    assert sum(q.preemptions for q in tight.requests) > 0
    assert key(tight) == key(roomy)
    assert outputs(tight) == outputs(roomy)
    assert all(q.first_token == 1 for q in tight.requests)


@pytest.mark.parametrize("gamma", [0, 1, 2, 3, 5, 8])
@pytest.mark.parametrize("rows", [1, 3, 7])
def test_t16_every_draft_length_and_batch(gamma: int, rows: int) -> None:
    requests = [request(n, p, max_new_tokens=18) for n, p in enumerate(prompts(7, seed=6))]
    expected = outputs(plain(requests))
    trace = serve(llama(), ScriptDrafter(texts(requests), a=0.7), requests, k=gamma, rows=rows)
    assert outputs(trace) == expected
    check_rounds(trace)


def test_t17_warm_up_does_not_leak_into_the_measurement() -> None:
    good, bad = (request(n, p) for n, p in enumerate(prompts(2, seed=10)))
    known = texts([good, bad])

    class Turncoat(ScriptDrafter):
        def propose(self, rows, *, limits, rng):  # type: ignore[no-untyped-def]
            self.a = 1.0 if rows.number.tolist() == [0] else 0.0
            return super().propose(rows, limits=limits, rng=rng)

    trace = serve(llama(), Turncoat(known), [good, bad], k=3, rows=1)
    measured = [r for r in trace.rounds if r.request == "r1"]
    assert sum(r.committed for r in measured) / len(measured) == 1.0
    assert any(r.committed == 4 for r in trace.rounds if r.request == "r0")


def test_fixed_policy_draws_its_own_length() -> None:
    requests = [request(0, prompts(1)[0])]
    trace = serve(llama(), ScriptDrafter(texts(requests)), requests, policy=FixedPolicy(7, "2"))
    assert {r.drafted for r in trace.rounds[:-1]} == {2}
