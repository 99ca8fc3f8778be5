"""The verdict: ties, real differences, thin evidence, and distributions at temperature above 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from support_traces import Round, make_request, make_trace

from specbench.metrics.losslessness import PLUGIN, Outcome, greedy_verdict, sampled_verdict, verdict
from specbench.types import RunTrace, Status

FLOOR = 1e-4


def control(texts: Sequence[Sequence[int]], *, gaps: float = 2.0, special: dict[tuple[int, int], float] | None = None
            ) -> RunTrace:  # fmt: skip
    """Plain decoding with a top-2 gap of ``gaps`` everywhere but at ``special`` (text, position)."""
    special = special or {}
    made, step = [], 1
    for number, text in enumerate(texts):
        rounds = [Round(0, verified=0, gaps=(special.get((number, i), gaps),)) for i in range(1, len(text))]
        first = special.get((number, 0), gaps)
        made.append(make_request(rounds, id=f"r{number}", tokens=text, first_step=step, first_gap=first))
        step += len(rounds)
    return make_trace(made, draft_length=0, method="vanilla")


def method(texts: Sequence[Sequence[int]], *, verified: int = 1) -> RunTrace:
    """The same texts, two tokens a round where possible."""
    made, step = [], 1
    for number, text in enumerate(texts):
        pairs, odd = divmod(len(text) - 1, 2)
        rounds = [Round(1, verified=1)] * pairs + [Round(0, verified=1)] * odd
        if verified == 0:
            rounds = [Round(0, verified=0)] * (len(text) - 1)
        made.append(make_request(rounds, id=f"r{number}", tokens=text, first_step=step))
        step += len(rounds)
    return make_trace(made, draft_length=1)


TEXTS = [[100 * n + i for i in range(41)] for n in range(1, 5)]


def changed(number: int, position: int) -> list[list[int]]:
    return [[*t[:position], 7, *t[position + 1 :]] if n == number else t for n, t in enumerate(TEXTS)]


def test_equal_texts_pass() -> None:
    found = greedy_verdict(method(TEXTS), control(TEXTS), noise_floor=FLOOR)
    assert found.outcome is Outcome.PASS
    assert found.share_compared == 1.0
    assert found.requests_compared == 4


def test_a_difference_at_a_tie_is_recorded_with_position_and_gap() -> None:
    found = greedy_verdict(method(changed(2, 30)), control(TEXTS, special={(2, 30): 1e-6}), noise_floor=FLOOR)
    assert found.outcome is Outcome.PASS
    (tie,) = found.differences
    assert (tie.request, tie.position, tie.gap, tie.tie) == ("r2", 30, 1e-6, True)
    assert (tie.token, tie.control_token) == (7, 330)
    assert "tie in 'r2' at 30, gap 1e-06" in found.reason
    assert found.share_compared == pytest.approx((3 * 41 + 30) / (4 * 41))


def test_a_really_wrong_token_fails() -> None:
    found = greedy_verdict(method(changed(2, 30)), control(TEXTS), noise_floor=FLOOR)
    assert found.outcome is Outcome.FAIL
    assert not found.differences[0].tie
    assert "output token 30" in found.reason


def test_one_wrong_text_fails_whatever_ties_there_are() -> None:
    wrong = [*changed(0, 1)[:1], *changed(3, 40)[1:]]
    found = greedy_verdict(method(wrong), control(TEXTS, special={(0, 1): 1e-6}), noise_floor=FLOOR)
    assert [d.tie for d in found.differences] == [True, False]
    assert found.outcome is Outcome.FAIL


def test_a_difference_of_the_first_token_uses_the_prefills_gap() -> None:
    found = greedy_verdict(method(changed(1, 0)), control(TEXTS, special={(1, 0): 1e-6}), noise_floor=FLOOR)
    assert found.differences[0].position == 0
    assert found.differences[0].tie
    assert found.outcome is Outcome.PASS  # three of four texts were compared in full


def test_a_gap_that_was_not_recorded_is_no_tie() -> None:
    bare = control(TEXTS)
    bare = replace(bare, rounds=tuple(replace(r, top2_gap=None) for r in bare.rounds))
    found = greedy_verdict(method(changed(0, 9)), bare, noise_floor=FLOOR)
    assert found.outcome is Outcome.FAIL
    assert "gap not recorded" in found.reason


def test_a_text_that_ends_early_fails() -> None:
    short = [TEXTS[0][:31], *TEXTS[1:]]
    found = greedy_verdict(method(short), control(TEXTS), noise_floor=FLOOR)
    assert found.outcome is Outcome.FAIL
    assert found.differences[0].token is None
    longer = greedy_verdict(method(TEXTS), control(short), noise_floor=FLOOR)
    assert longer.outcome is Outcome.FAIL
    assert longer.differences[0].control_token is None


def test_early_ties_leave_too_little_compared() -> None:
    texts = [[7 if i == 3 else token for i, token in enumerate(text)] for text in TEXTS]
    ties = {(n, 3): 1e-6 for n in range(4)}
    found = greedy_verdict(method(texts), control(TEXTS, special=ties), noise_floor=FLOOR)
    assert found.outcome is Outcome.INCONCLUSIVE
    assert found.share_compared == pytest.approx(3 / 41)


def test_nothing_drafted_is_inconclusive() -> None:
    found = greedy_verdict(method(TEXTS, verified=0), control(TEXTS), noise_floor=FLOOR)
    assert (found.outcome, found.reason) == (Outcome.INCONCLUSIVE, "nothing was drafted")


def test_too_few_rounds_are_inconclusive_but_a_wrong_token_still_fails() -> None:
    few = [TEXTS[0]]
    found = greedy_verdict(method(few), control(few), noise_floor=FLOOR)
    assert found.outcome is Outcome.INCONCLUSIVE
    assert "only 20 rounds" in found.reason
    wrong = greedy_verdict(method(changed(0, 5)[:1]), control(few), noise_floor=FLOOR)
    assert wrong.outcome is Outcome.FAIL


def test_unfinished_requests_are_not_compared_but_their_tokens_are_missing() -> None:
    ours = method(TEXTS)
    cut = tuple(replace(r, status=Status.INTERRUPTED) if r.id != "r0" else r for r in ours.requests)
    found = greedy_verdict(replace(ours, requests=cut), control(TEXTS), noise_floor=FLOOR)
    assert found.requests_compared == 1
    assert found.share_compared == pytest.approx(1 / 4)
    assert found.outcome is Outcome.INCONCLUSIVE


def test_no_common_request_is_inconclusive() -> None:
    found = greedy_verdict(make_trace([]), control(TEXTS), noise_floor=FLOOR)
    assert found.outcome is Outcome.INCONCLUSIVE


def test_without_a_noise_floor_nothing_is_a_tie() -> None:
    found = verdict(method(changed(2, 30)), control(TEXTS, special={(2, 30): 1e-6}), noise_floor=None)
    assert found.outcome is Outcome.FAIL


# ------------------------------------------------------------------------------------------------- sampled

SHARES = np.array([0.6, 0.4])  # two tokens need the fewest samples for 99 % power
COUNT = 42_000


def drawn(count: int, seed: int, *, drafts: int = 1) -> RunTrace:
    """Requests of two tokens drawn from SHARES; the second is speculated."""
    generator = np.random.default_rng(seed)
    first, second = (generator.choice(2, size=count, p=SHARES).tolist() for _ in range(2))
    entry = Round(1, verified=1, committed=1, stop="length") if drafts else Round(0, verified=0)
    made = [
        make_request([entry], id=f"r{i}", tokens=[10 + a, 10 + b], first_step=1 + i)
        for i, (a, b) in enumerate(zip(first, second))
    ]
    return make_trace(made, draft_length=drafts, temperature=1.0)


def biased(trace: RunTrace, share: float) -> RunTrace:
    """The same run with ``share`` of all second tokens turned from the first token into the other."""
    turned = [r.id for r in trace.requests if r.output_ids[1] == 10][: round(share * len(trace.requests))]
    wrong = set(turned)
    requests = [replace(r, output_ids=(r.output_ids[0], 11)) if r.id in wrong else r for r in trace.requests]
    return replace(trace, requests=tuple(requests))


@pytest.fixture(scope="module")
def plain() -> RunTrace:
    return drawn(COUNT, 1, drafts=0)


@pytest.fixture(scope="module")
def speculated() -> RunTrace:
    return drawn(COUNT, 2)


def test_equal_distributions_pass_with_enough_samples(plain: RunTrace, speculated: RunTrace) -> None:
    found = sampled_verdict(speculated, plain)
    assert found.outcome is Outcome.PASS, found.reason
    assert found.power is not None
    assert found.power >= 0.99
    assert found.samples == ((2, COUNT, COUNT),)


def test_a_planted_bias_fails(plain: RunTrace, speculated: RunTrace) -> None:
    found = sampled_verdict(biased(speculated, 0.02), plain)
    assert found.outcome is Outcome.FAIL
    assert found.p_value is not None
    assert found.p_value < 0.001


def test_too_few_samples_are_inconclusive_and_say_how_many_are_needed() -> None:
    found = sampled_verdict(drawn(200, 4), drawn(200, 5, drafts=0))
    assert found.outcome is Outcome.INCONCLUSIVE
    assert "requests an arm" in found.reason


def test_sampled_without_drafts_is_inconclusive() -> None:
    found = verdict(drawn(200, 4, drafts=0), drawn(200, 5, drafts=0), noise_floor=None)
    assert found.rule == "sampled"
    assert found.outcome is Outcome.INCONCLUSIVE


# --------------------------------------------------------------------------------------- one trace's evidence


def judged(scale: float, *, rounds: int = 3000) -> RunTrace:
    """Rounds of one draft accepted with ``scale`` times the probability that the rule prescribes."""
    generator = np.random.default_rng(11)
    specs = []
    for _ in range(rounds):
        p, q = generator.uniform(0.05, 0.9), generator.uniform(0.3, 0.9)
        hit = generator.random() < min(1.0, scale * min(1.0, p / q))
        specs.append(Round(int(hit), verified=1, log_p_target=(float(np.log(p)),), log_p_draft=(float(np.log(q)),)))
    return make_trace([make_request(specs)], draft_length=1, temperature=1.0)


def excess(trace: RunTrace) -> float:
    return next(e.value for e in PLUGIN.compute(trace) if e.metric == "acceptance_excess")


def test_exact_acceptance_has_no_excess_and_a_lenient_rule_shows() -> None:
    assert abs(excess(judged(1.0))) < 3
    assert excess(judged(1.15)) > 6


def test_smallest_gap_is_reported_at_temperature_zero() -> None:
    found = PLUGIN.compute(control(TEXTS, special={(2, 30): 1e-6}))
    assert [(e.metric, e.value) for e in found] == [("smallest_top2_gap", 1e-6)]
