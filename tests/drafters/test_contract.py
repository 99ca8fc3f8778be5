"""What every registered drafter must do, through the real engine: recipes T6, T7, T8, T10, T11 and T16 for each method.

A drafter module is found by its file name; `support_contestants` says where a method that needs a checkpoint adds its
makers. Failures say what the author of a drafter has to mend.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from support_checkpoints import VOCAB
from support_contest import asked, contest, is_plain, plain
from support_contestants import (
    CONTEXT,
    OWN,
    PUBLISHED,
    TOY_VOCAB,
    Case,
    Stable,
    main_cases,
    own_cases,
    published_cases,
    toy_model,
    toy_target,
)
from support_contract import Patchy, Replay, Watched, difference
from support_distribution import continuations, marginal, p_value
from support_engine import outputs, request, serve

from specbench import registry
from specbench.backends.engine import check_options
from specbench.engine.target import Target
from specbench.errors import UnknownNameError
from specbench.types import Request, RunTrace, Sampling, Taps

OWN_CASES, EVERY_CASE, MAIN_CASES = own_cases(), [*own_cases(), *published_cases()], main_cases()
pytestmark = pytest.mark.filterwarnings("ignore:.*drafts a round asked of a drafter:UserWarning")


@pytest.fixture(scope="module")
def stable(tmp_path_factory: pytest.TempPathFactory) -> Stable:
    return Stable(tmp_path_factory.mktemp("contestants"))


def rounds_of(trace: RunTrace) -> dict[tuple[str, int], Any]:
    return {(r.request, r.round): (r.draft_ids, r.accepted, r.committed_ids) for r in trace.rounds}


# ------------------------------------------------------------------------------------------ what a drafter declares


def test_makers_belong_to_registered_drafters() -> None:
    stray = (set(OWN) | set(PUBLISHED)) - set(registry.names("drafters"))
    assert not stray, f"tests/support_contestants.py makes checkpoints for {stray}, which are no registered drafters"


@pytest.mark.parametrize("case", MAIN_CASES, ids=str)
def test_declarations(case: Case, stable: Stable) -> None:
    drafter = stable.drafter(case, rows=2)
    assert isinstance(drafter.taps, Taps), "taps must be a specbench.types.Taps, empty where nothing is read"
    assert isinstance(drafter.trained_length, int)
    assert drafter.trained_length >= 0, "trained_length is the default number of drafts a round"
    assert drafter.max_context is None or drafter.max_context > 0, "max_context is None where it is unlimited"
    for name, line in drafter.options.items():
        assert line.strip(), f"option '{name}' has no line of help"
        assert "\n" not in line, f"option '{name}': the help is one line"


@pytest.mark.parametrize("case", MAIN_CASES, ids=str)
def test_an_unknown_option_is_refused(case: Case) -> None:
    known = registry.load("drafters", case.method).options
    check_options(case.method, dict.fromkeys(known, ""))
    with pytest.raises(UnknownNameError, match="no_such_option") as error:
        check_options(case.method, {"no_such_option": "1"})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("case", OWN_CASES, ids=str)
def test_state_is_counted(case: Case, stable: Stable) -> None:
    _, watched = contest(stable, case, asked(2, vocab=VOCAB, seed=1))
    proposed = any(found.tokens for found in watched.rounds.values())
    size = watched.state_bytes()
    assert isinstance(size, int)
    assert size > 0 or not proposed, "state_bytes() is 0 for a drafter that proposes: count its weights and caches"


# ------------------------------------------------------------------------------------------ the text is the target's


@pytest.mark.parametrize("case", EVERY_CASE, ids=str)
def test_greedy_text_is_plain_decodings(case: Case, stable: Stable) -> None:
    """Three rows for five requests: slots are used again, rows join late, limits change and reach 0."""
    requests = asked(5, vocab=VOCAB, seed=2)
    k = stable.drafter(case, rows=1).trained_length or 3
    trace, watched = contest(stable, case, requests, rows=3, policy=Patchy(k), joins={1: 2, 4: 3})
    is_plain(stable, case, requests, trace)
    assert case.method == "vanilla" or any(found.tokens for found in watched.rounds.values()), (
        f"{case} proposed nothing in {len(watched.rounds)} rounds"
    )


@pytest.mark.parametrize("case", MAIN_CASES, ids=str)
@pytest.mark.parametrize("gamma", [0, 1, 2, 3, 5, 8])
def test_t16_every_draft_length_and_batch(case: Case, gamma: int, stable: Stable) -> None:
    requests = asked(7, vocab=TOY_VOCAB, seed=6, tokens=(5, 3, 7, 2, 6, 2, 4))
    runs = {
        rows: contest(stable, case, requests, rows=rows, k=gamma, vocab=TOY_VOCAB, joins={2: 2} if rows > 1 else None)
        for rows in (1, 3, 7)
    }
    for rows, (trace, watched) in runs.items():
        is_plain(stable, case, requests, trace, vocab=TOY_VOCAB)
        if gamma == 0:
            assert {found.drafted for found in trace.rounds} == {0}
        unequal = difference(runs[1][1].rounds, watched.rounds)
        assert unequal is None, f"{case}: a batch of {rows} is not served as each request alone; {unequal}"
        assert rounds_of(trace) == rounds_of(runs[1][0])


@pytest.mark.parametrize("case", OWN_CASES, ids=str)
def test_nothing_is_drafted_past_a_stop(case: Case, stable: Stable) -> None:
    requests = asked(3, vocab=TOY_VOCAB, seed=3, tokens=(20,))
    whole = plain(toy_target(), tuple(requests))
    ((stop, _),) = Counter(t for text in whole.values() for t in text[3:]).most_common(1)
    stops = frozenset({stop})
    stopped = [replace(r, stop_ids=stops) for r in requests]
    trace, _ = contest(stable, case, stopped, k=5, vocab=TOY_VOCAB, stop_ids=stops)
    is_plain(stable, case, stopped, trace, vocab=TOY_VOCAB)
    assert any(r.stop_reason == "stop" for r in trace.requests)


# ------------------------------------------------------------------------------------------ rollback


def replayed(
    stable: Stable, case: Case, requests: Sequence[Request], trace: RunTrace, watched: Watched, **options: Any
) -> Watched:
    """A fresh drafter gets each round's committed text as a prompt, and proposes once with the round's own limit."""
    text = {r.number: (*requests[r.number].prompt_ids, *r.output_ids) for r in trace.requests}
    limits = {key: found.limit for key, found in watched.rounds.items()}
    again = [
        replace(requests[number], id=f"{number}@{anchor}", prompt_ids=text[number][:anchor], max_new_tokens=limit + 2)
        for (number, anchor), limit in limits.items()
    ]
    anew, fresh = contest(
        stable, case, again, rows=len(again), policy=Replay(limits), prefill_budget=len(again) * CONTEXT, **options
    )
    for found, asked_for in zip(anew.requests, again, strict=True):
        place = len(asked_for.prompt_ids)
        assert found.output_ids[0] == text[asked_for.number][place], "the two runs must have the same anchors"
    return fresh


MIXED = "some drafts accepted, sampled"
SCENARIOS = {
    "every draft wrong": ((0.0,) * 8, 0.0),
    MIXED: ((0.7,) * 8, 1.0),
    "all drafts accepted": ((1.0,) * 8, 0.0),
}


ROLLBACKS = [(case, name) for case in EVERY_CASE for name in SCENARIOS if name == MIXED or not case.published]


@pytest.mark.parametrize(("case", "scenario"), ROLLBACKS, ids=str)
def test_t10_after_any_verdict_the_state_is_that_of_the_committed_text(
    case: Case, scenario: str, stable: Stable
) -> None:
    rates, temperature = SCENARIOS[scenario]
    requests = asked(3, vocab=VOCAB, seed=4, tokens=(11, 7, 9), sampling=Sampling(temperature))
    k = min(stable.drafter(case, rows=1).trained_length or 3, 5)
    trace, watched = contest(
        stable, case, requests, rows=3, policy=Patchy(k), synthetic=rates, joins={2: 3}, prefill_budget=9
    )
    fresh = replayed(stable, case, requests, trace, watched, synthetic=rates)
    unequal = difference(watched.rounds, fresh.rounds)
    assert unequal is None, (
        f"{case}, {scenario}: after rounds of drafts a proposal differs from that of a fresh drafter with the same "
        f"text (kept state, fresh state): {unequal}. commit() must leave exactly the committed tokens' state: also for "
        "rows whose limit was 0, also where fewer drafts were verified than proposed"
    )


@pytest.mark.parametrize("case", MAIN_CASES, ids=str)
def test_t10_second_draft_always_wrong(case: Case, stable: Stable) -> None:
    """200 rounds in eight rows."""
    rates = (1.0, 0.0, 0.0, 0.0)
    requests = asked(8, vocab=VOCAB, seed=5, tokens=(50,))
    trace, watched = contest(stable, case, requests, rows=8, k=4, synthetic=rates)
    assert len(trace.rounds) >= 195 or case.method in ("ngram", "vanilla")
    fresh = replayed(stable, case, requests, trace, watched, synthetic=rates)
    unequal = difference(watched.rounds, fresh.rounds)
    assert unequal is None, f"{case}: rejected drafts stay behind in the state (kept, fresh): {unequal}"


# ------------------------------------------------------------------------------------------ slots, joins, preemption

SERVED: dict[str, dict[str, Any]] = {
    "one slot for all, one after the other": {"rows": 1},
    "prompts in chunks of five tokens and rows that join late": {
        "rows": 5,
        "prefill_budget": 5,
        "joins": {0: 3, 2: 5, 4: 8},
    },
    "so little memory that rows are preempted": {"rows": 5, "pages": 3, "context": 48},
}


@pytest.mark.parametrize("case", OWN_CASES, ids=str)
def test_t7_t11_same_rounds_however_requests_are_served(case: Case, stable: Stable) -> None:
    requests = asked(5, vocab=TOY_VOCAB, seed=8, tokens=(16, 4, 18, 7, 5), sampling=Sampling(1.0, top_p=0.95))
    trace, watched = contest(stable, case, requests, rows=5, vocab=TOY_VOCAB, k=3)
    for what, how in SERVED.items():
        options = dict(how)
        if "pages" in options:
            options["kv_memory_bytes"] = options.pop("pages") * page_bytes(toy_target())
        other, seen = contest(stable, case, requests, vocab=TOY_VOCAB, k=3, **options)
        assert bool(sum(r.preemptions for r in other.requests)) == ("kv_memory_bytes" in options)
        unequal = difference(watched.rounds, seen.rounds)
        assert unequal is None, (
            f"{case}: served with {what}, a request gets other rounds: {unequal}. A row's proposals may depend on its "
            "own tokens alone: begin() must make a used slot new, prefill() goes on where the last chunk ended, and "
            "nothing may be written outside a row's own slot"
        )
        assert outputs(other) == outputs(trace)


def page_bytes(target: Target) -> int:
    """Bytes of one page of the key-value pool over all layers."""
    return 16 * sum(shape.bytes_per_token(target.lm.dtype) for shape in target.lm.layer_shapes)


# ------------------------------------------------------------------------------------------ the ends of the context


@pytest.mark.parametrize("case", OWN_CASES, ids=str)
def test_the_context_can_be_filled(case: Case, stable: Stable) -> None:
    room = 22
    requests = [*asked(4, vocab=VOCAB, seed=9, tokens=(60,)), request(4, (5,) * (room - 1), max_new_tokens=60)]
    trace, _ = contest(stable, case, requests, k=8, context=room)
    is_plain(stable, case, requests, trace, context=room)
    assert {len(r.prompt_ids) + len(outputs(trace)[r.id]) for r in requests} == {room}


@pytest.mark.parametrize("case", OWN_CASES, ids=str)
def test_a_drafter_with_a_shorter_context_says_so_and_stops_drafting(case: Case, stable: Stable) -> None:
    limit = 20
    requests = [*asked(3, vocab=VOCAB, seed=10, tokens=(24,)), request(3, tuple(range(30)))]
    if case.maker is None:
        drafter = stable.drafter(case, rows=4)
        assert drafter.max_context is None, "a drafter without a checkpoint needs a test of its own limit"
        return
    with pytest.warns(UserWarning, match=f"made for {limit} positions and the run allows {CONTEXT}"):
        trace, watched = contest(stable, case, requests, limit=limit, k=5)
    assert watched.max_context == limit, "max_context must be the limit that the checkpoint names"
    reach = [r.anchor_position + r.drafted for r in trace.rounds if r.drafted]
    assert reach
    assert max(reach) < limit
    is_plain(stable, case, requests, trace)


# ------------------------------------------------------------------------------------------ sampled text

PROMPT = (3, 1, 4)
SAMPLINGS = {Sampling(1.0): 3000, Sampling(1.0, top_p=0.85, top_k=6): 1000}  # and the number of draws
SAMPLED_CASES = [case for case in OWN_CASES if case in MAIN_CASES or case.method == "dspark"]


@cache
def exact(sampling: Sampling) -> dict[tuple[int, ...], float]:
    return continuations(toy_model(), PROMPT, sampling, length=4)


@pytest.mark.parametrize("case", SAMPLED_CASES, ids=str)
def test_t6_sampled_text_has_the_targets_distribution(case: Case, stable: Stable) -> None:
    samplings = [sampling for sampling, count in SAMPLINGS.items() for _ in range(count)]
    requests = [request(n, PROMPT, max_new_tokens=4, sampling=s) for n, s in enumerate(samplings)]
    drafter = stable.drafter(case, rows=100, vocab=TOY_VOCAB, context=16)
    trace = serve(toy_target(), drafter, requests, k=3, rows=100, max_context=16)
    drafted, accepted = (sum(getattr(r, name) for r in trace.rounds) for name in ("drafted", "accepted"))
    if any(p < 0 for r in trace.rounds for p in r.log_p_draft or ()):
        assert 0.05 < accepted / drafted < 0.95, "the test needs drafts that are accepted and drafts that are not"
    for sampling in SAMPLINGS:
        texts = [r.output_ids for r, s in zip(trace.requests, samplings, strict=True) if s == sampling]
        for start, stop in ((1, 4), (1, 2), (2, 3), (3, 4)):
            p = p_value(Counter(t[start:stop] for t in texts), marginal(exact(sampling), start, stop))
            assert p > 1e-4, (
                f"{case}: tokens {start}..{stop - 1} at {sampling} do not follow the target (p = {p:.1e}): DraftLogits "
                "must be the distribution that the drafts were really drawn from, draft after draft"
            )
