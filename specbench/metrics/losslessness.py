"""Does the method change the output? A verdict per cell from its trace and the control's: plain decoding.

At temperature 0 texts are compared token by token, above it their distributions are (metrics.md, "Losslessness").
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal

import numpy as np

from specbench.metrics import _chi_squared as chi_squared
from specbench.metrics._emissions import rounds_by_request
from specbench.metrics._group import MetricGroup
from specbench.metrics._measured import Measured, measured
from specbench.metrics._served_verdict import served_drafting, served_reason
from specbench.types import Estimate, RequestTrace, RoundTrace, RunTrace

MIN_ROUNDS = 30  # rounds that verified a draft; fewer prove nothing
MIN_COMPARED = 0.5  # share of tokens compared before the first tie
LEVEL = 0.001
TOTAL_VARIATION = 0.02
MIN_POWER = 0.99


class Outcome(StrEnum):
    """Only a pass is ranked."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a request's text first leaves the control's. ``position`` counts output tokens from 0."""

    request: str
    position: int
    token: int | None  # None: the text ended here
    control_token: int | None
    gap: float | None  # the target's top-2 gap there, from the control
    tie: bool


@dataclass(frozen=True, slots=True)
class Losslessness:
    """The verdict with its evidence; fields of the other rule are None."""

    outcome: Outcome
    rule: Literal["greedy", "sampled", "synthetic"]
    reason: str
    requests_compared: int
    rounds_with_drafts: int
    differences: tuple[Difference, ...] = ()
    noise_floor: float | None = None
    share_compared: float | None = None
    p_value: float | None = None
    power: float | None = None
    samples: tuple[tuple[int, int, int], ...] = field(default=())  # (output index from 1, ours, control's)
    degrees: tuple[int, ...] = ()  # of freedom, of each of these tests


# --------------------------------------------------------------------------------------------------- greedy


def output_gaps(request: RequestTrace, rounds: list[RoundTrace]) -> list[float | None]:
    """The target's top-2 gap at each output token, None where it was not recorded."""
    gaps: list[float | None] = [request.first_token_gap] * request.first_token
    for entry in rounds:
        gaps.extend(entry.top2_gap if entry.top2_gap is not None else [None] * entry.committed)
    return gaps


def first_difference(
    ours: RequestTrace, control: RequestTrace, *, gaps: list[float | None], noise_floor: float
) -> Difference | None:
    """The first position where the two texts differ, judged a tie if the target's gap there is below the floor."""
    left, right = ours.output_ids, control.output_ids
    shared = min(len(left), len(right))
    place = next((i for i in range(shared) if left[i] != right[i]), shared)
    if place == len(left) == len(right):
        return None
    mine = left[place] if place < len(left) else None
    theirs = right[place] if place < len(right) else None
    gap = gaps[place] if place < len(gaps) else None
    tie = mine is not None and theirs is not None and gap is not None and gap < noise_floor
    return Difference(ours.id, place, mine, theirs, gap, tie)


def _paired(method: RunTrace, control: RunTrace) -> tuple[Measured, list[tuple[RequestTrace, RequestTrace]]]:
    ours = measured(method)
    theirs = {request.id: request for request in measured(control).requests}
    pairs = [(r, theirs[r.id]) for r in ours.requests if r.id in theirs and theirs[r.id].prompt_hash == r.prompt_hash]
    return ours, pairs


def _drafting(method: RunTrace, ours: Measured) -> int | None:
    """Rounds that verified a draft; of a server's run at least that many steps did, None where it does not tell."""
    return int((ours.verified >= 1).sum()) if method.server is None else served_drafting(method)


def _thin(drafting: int | None, pairs: int) -> str | None:
    """Why the evidence can never be a pass, or None."""
    if pairs == 0:
        return "no request finished in both arms"
    if drafting is None:
        return "the server does not tell whether it drafted"
    if drafting == 0:
        return "nothing was drafted"
    if drafting < MIN_ROUNDS:
        return f"only {drafting} rounds verified a draft, {MIN_ROUNDS} are needed"
    return None


def greedy_verdict(method: RunTrace, control: RunTrace, *, noise_floor: float) -> Losslessness:
    """Temperature 0: the method's text against plain decoding of the same prompts by the same target.

    ``noise_floor`` is in logits: twice the largest difference between two exact ways of computing the control's top-2
    logits. A first difference is a tie when the control's top-2 gap there is below it, else (or unknown) a failure.
    """
    ours, pairs = _paired(method, control)
    control_rounds = rounds_by_request(control)
    differences: list[Difference] = []
    compared = 0
    total = sum(len(request.output_ids) for request in measured(control).requests)
    for request, other in pairs:
        gaps = output_gaps(other, control_rounds[other.id])
        found = first_difference(request, other, gaps=gaps, noise_floor=noise_floor)
        compared += len(other.output_ids) if found is None else min(found.position, len(other.output_ids))
        if found is not None:
            differences.append(found)
    share = compared / total if total else None
    drafting = _drafting(method, ours)
    thin = _thin(drafting, len(pairs))
    wrong = [d for d in differences if not d.tie]
    if wrong:
        first = wrong[0]
        gap = "not recorded" if first.gap is None else f"{first.gap:.3g}"
        outcome = Outcome.FAIL
        reason = (
            f"{len(wrong)} of {len(pairs)} texts differ, first {first.request!r} at output token {first.position}: "
            f"gap {gap}, noise floor {noise_floor:.3g}"
        )
    elif thin is not None:
        outcome, reason = Outcome.INCONCLUSIVE, thin
    elif share is None or share < MIN_COMPARED:
        outcome = Outcome.INCONCLUSIVE
        reason = f"{share or 0.0:.0%} of the tokens could be compared before a tie, {MIN_COMPARED:.0%} are needed"
    else:
        outcome = Outcome.PASS
        ties = ", ".join(f"tie in {d.request!r} at {d.position}, gap {d.gap:.3g}" for d in differences)
        reason = f"{len(pairs)} texts equal plain decoding"
        if ties:
            reason += f" up to {len(differences)} ties: {ties}"
    return Losslessness(
        outcome=outcome,
        rule="greedy",
        reason=reason,
        requests_compared=len(pairs),
        rounds_with_drafts=drafting or 0,
        differences=tuple(differences),
        noise_floor=noise_floor,
        share_compared=share,
    )


# -------------------------------------------------------------------------------------------------- sampled


def _tokens_at(requests: list[RequestTrace], index: int) -> list[int]:
    return [r.output_ids[index - 1] for r in requests if len(r.output_ids) >= index]


def _position_tests(
    pairs: list[tuple[RequestTrace, RequestTrace]], gamma: int
) -> list[tuple[int, int, int, chi_squared.ChiSquared]]:
    """A two-sample test at each output index 2..gamma+1 (from 1) that both arms reach."""
    tests = []
    for index in range(2, gamma + 2):
        ours, theirs = _tokens_at([a for a, _ in pairs], index), _tokens_at([b for _, b in pairs], index)
        test = chi_squared.two_sample(ours, theirs)
        if test is not None:
            tests.append((index, len(ours), len(theirs), test))
    return tests


def sampled_verdict(method: RunTrace, control: RunTrace, *, level: float = LEVEL) -> Losslessness:
    """Temperature above 0: the distribution of output tokens 2..gamma+1 against plain decoding's.

    One two-sample chi-squared test per output index, rare tokens binned; the p-value is the smallest times the number
    of tests (Bonferroni). A pass needs 99 % power at every index against a total-variation error of .02 of the binned
    distribution. Both arms must use independent draws: other seeds, or draws keyed by purpose as the engine's are.
    """
    ours, pairs = _paired(method, control)
    tests = _position_tests(pairs, method.draft_length)
    drafting = _drafting(method, ours)
    thin = _thin(drafting, len(pairs))
    p_value = min(1.0, len(tests) * min(t.p_value for *_, t in tests)) if tests else None
    single = level / len(tests) if tests else level
    reached = [
        chi_squared.power(effective_n=t.effective_n, degrees=t.degrees, level=single, total_variation=TOTAL_VARIATION)
        for *_, t in tests
    ]
    power = min(reached) if reached else None
    if p_value is not None and p_value < level:
        outcome, reason = Outcome.FAIL, f"token distributions differ, p = {p_value:.2g} below {level:g}"
    elif thin is not None or power is None:
        outcome, reason = Outcome.INCONCLUSIVE, thin or "no output token that was speculated was reached in both arms"
    elif power < MIN_POWER:
        degrees = max(t.degrees for *_, t in tests)
        needed = 2 * chi_squared.needed_n(
            degrees=max(degrees, 1), level=single, total_variation=TOTAL_VARIATION, wanted_power=MIN_POWER
        )
        outcome = Outcome.INCONCLUSIVE
        reason = (
            f"power {power:.2f} for a total-variation error of {TOTAL_VARIATION:g}, {MIN_POWER:g} is needed: "
            f"about {needed} requests an arm"
        )
    else:
        outcome, reason = Outcome.PASS, f"token distributions agree, p = {p_value:.2g}, power {power:.3f}"
    return Losslessness(
        outcome=outcome,
        rule="sampled",
        reason=reason,
        requests_compared=len(pairs),
        rounds_with_drafts=drafting or 0,
        p_value=p_value,
        power=power,
        samples=tuple((index, a, b) for index, a, b, _ in tests),
        degrees=tuple(t.degrees for *_, t in tests),
    )


def verdict(method: RunTrace, control: RunTrace, *, noise_floor: float | None) -> Losslessness:
    """The verdict by the rule that the run's temperature asks for.

    At temperature 0 without a noise floor nothing can be called a tie: the floor is taken as 0. A server's verdict says
    what was compared; in reduced precision a difference that may be a tie is inconclusive.
    """
    if method.sampling.temperature == 0:
        found = greedy_verdict(method, control, noise_floor=noise_floor or 0.0)
    else:
        found = sampled_verdict(method, control)
    if method.server is None:
        return found
    outcome, reason = served_reason(method, control, failed=found.outcome is Outcome.FAIL, reason=found.reason)
    return replace(found, outcome=Outcome(outcome) if outcome is not None else found.outcome, reason=reason)


# ---------------------------------------------------------------------------------------- what one trace can tell


def _acceptance_excess(rounds: Measured) -> Iterator[Estimate]:
    """Accepted drafts beyond what exact rejection sampling predicts, in standard deviations.

    Each judged draft is accepted with probability min(1, p / q) (Leviathan et al. 2023), so observed minus expected is
    a sum of martingale differences. |z| far above 3 means that another rule, or other probabilities, were at work.
    """
    expected: list[float] = []
    observed = 0
    for entry in rounds.rounds:
        if entry.log_p_target is None:
            continue
        for k in range(min(entry.accepted + 1, entry.verified)):
            log_q = entry.log_p_draft[k] if entry.log_p_draft is not None else 0.0
            expected.append(float(np.exp(min(0.0, entry.log_p_target[k] - log_q))))
            observed += k < entry.accepted
    p = np.array(expected)
    spread = float(np.sqrt((p * (1 - p)).sum()))
    if spread > 0:
        scale = "standard deviations"
        yield Estimate("acceptance_excess", (observed - float(p.sum())) / spread, scale, len(p), "judged drafts")
        yield Estimate("expected_acceptance", float(p.mean()), "fraction", len(p), "judged drafts")


def estimates(trace: RunTrace) -> Iterator[Estimate]:
    """Evidence in a single trace: the smallest top-2 gap (T = 0) and the acceptance excess (T > 0)."""
    rounds = measured(trace)
    entries = rounds_by_request(trace)
    gaps = [g for r in rounds.requests for g in output_gaps(r, entries[r.id]) if g is not None]
    if gaps:
        yield Estimate("smallest_top2_gap", float(min(gaps)), "logits", len(gaps), "output tokens")
    yield from _acceptance_excess(rounds)


PLUGIN = MetricGroup("losslessness", "verdict", "neither", estimates)
