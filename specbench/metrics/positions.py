"""What happens at each draft position k = 1..gamma, and how well the verification budget is spent."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from specbench.metrics._bootstrap import ratio_estimate
from specbench.metrics._group import MetricGroup
from specbench.metrics._measured import Flags, Ints, Measured, Scope, measured
from specbench.types import Estimate, RunTrace


def accepted_histogram(accepted: Ints) -> Ints:
    """[max + 1], rounds by number of accepted drafts; sums to the rounds, its first moment to all accepted drafts."""
    return np.bincount(accepted).astype(np.int64)


def survival(rounds: Measured, k: int, *, chosen: Flags) -> tuple[Flags, Flags]:
    """[N] each: rounds with accepted >= k, among rounds with verified >= k."""
    base = rounds.of(chosen) & (rounds.verified >= k)
    return base & (rounds.accepted >= k), base


def conditional(rounds: Measured, k: int, *, chosen: Flags) -> tuple[Flags, Flags]:
    """[N] each: rounds with accepted >= k, among those with accepted >= k-1 and verified >= k (DSpark, Fig. 2)."""
    base = rounds.of(chosen) & (rounds.verified >= k) & (rounds.accepted >= k - 1)
    return base & (rounds.accepted >= k), base


def _per_position(rounds: Measured, gamma: int, *, chosen: Flags, scope: Scope) -> Iterator[Estimate]:
    for k in range(1, gamma + 1):
        for name, rule in (("survival", survival), ("conditional", conditional)):
            hits, base = rule(rounds, k, chosen=chosen)
            yield from ratio_estimate(
                name,
                unit="fraction",
                numerators=hits[base],
                denominators=base[base],
                cluster=rounds.round_cluster[base],
                n=int(base.sum()),
                n_of="rounds",
                scope=(*scope, ("k", str(k))),
            )


def _spending(rounds: Measured, gamma: int, *, chosen: Flags, scope: Scope) -> Iterator[Estimate]:
    """Acceptance rate and verify rate (never without gamma in their scope), budget, waste and means per round."""
    mask = rounds.of(chosen)
    count = int(mask.sum())
    if count == 0:
        return
    drafted, verified, accepted = rounds.drafted[mask], rounds.verified[mask], rounds.accepted[mask]
    with_gamma = (*scope, ("gamma", str(gamma)))
    if verified.sum():
        yield from ratio_estimate(
            "acceptance_rate",
            unit="fraction",
            numerators=accepted,
            denominators=verified,
            cluster=rounds.round_cluster[mask],
            n=int(verified.sum()),
            n_of="verified drafts",
            scope=with_gamma,
        )
    rate = float(rounds.committed[mask].sum() / (verified.sum() + count))
    yield Estimate("verify_rate", rate, "fraction", count, "rounds", with_gamma)
    per_round = "drafts per round"
    yield Estimate("verification_budget", float((verified + 1).mean()), "tokens per round", count, "rounds", scope)
    yield Estimate("waste", float((verified - accepted).mean()), per_round, count, "rounds", scope)
    yield Estimate("mean_drafted", float(drafted.mean()), per_round, count, "rounds", scope)
    yield Estimate("mean_verified", float(verified.mean()), per_round, count, "rounds", scope)
    zero = int((drafted == 0).sum())
    yield Estimate("zero_draft_rounds", float(zero), "rounds", count, "rounds", scope)
    yield Estimate("zero_draft_share", zero / count, "fraction", count, "rounds", scope)


def estimates(trace: RunTrace) -> Iterator[Estimate]:
    """Survival, conditional acceptance, histogram and spending: over the run, per domain and per task."""
    rounds = measured(trace)
    for scope, chosen in rounds.scopes():
        yield from _per_position(rounds, trace.draft_length, chosen=chosen, scope=scope)
        yield from _spending(rounds, trace.draft_length, chosen=chosen, scope=scope)
    for count, number in enumerate(accepted_histogram(rounds.accepted)):
        scope = (("accepted", str(count)),)
        yield Estimate("accepted_histogram", float(number), "rounds", len(rounds.rounds), "rounds", scope)


PLUGIN = MetricGroup("positions", "fraction", "higher", estimates)
