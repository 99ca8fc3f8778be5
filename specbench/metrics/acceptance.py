"""Accepted length: the headline tau and, by name, the numbers that other projects would print for the same trace.

Every variant counts the same rounds differently; metrics.md, "Accepted length", defines each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from specbench.metrics._bootstrap import mean_estimate, ratio_estimate
from specbench.metrics._group import MetricGroup
from specbench.metrics._measured import Flags, Floats, Measured, Scope, measured
from specbench.types import Estimate, RoundTrace, RunTrace, StopReason

PER_ROUND = "tokens per round"


def deepspec_rounds(trace: RunTrace, limit: int) -> RunTrace:
    """The trace cut to the rounds that DeepSpec's loop runs for ``limit`` new tokens, each kept whole.

    Its loop starts a round while the tokens generated so far, the prefill's included, do not exceed the limit, and
    drafts in full to the end. To reproduce its numbers, run with max_new_tokens = limit + draft length + 1 and select
    here. The result breaks the output-length identities on purpose: it is for counting, not for records.
    """
    generated = {request.id: request.first_token for request in trace.requests}
    kept: list[RoundTrace] = []
    for entry in sorted(trace.rounds, key=lambda r: (r.request, r.round)):
        if generated[entry.request] <= limit:
            kept.append(entry)
        generated[entry.request] += entry.committed
    return replace(trace, rounds=tuple(kept))


def tau(rounds: Measured, *, chosen: Flags, scope: Scope = ()) -> list[Estimate]:
    """Headline accepted length: sum of committed over rounds, bonus included, prefill token excluded, pooled."""
    mask = rounds.of(chosen)
    return ratio_estimate(
        "tau",
        unit=PER_ROUND,
        numerators=rounds.committed[mask],
        denominators=np.ones(int(mask.sum())),
        cluster=rounds.round_cluster[mask],
        n=int(mask.sum()),
        n_of="rounds",
        scope=scope,
    )


def _macro(rounds: Measured) -> Iterator[Estimate]:
    """Plain means of the pooled tau of each task, and of each domain."""
    for word in ("task", "domain"):
        values = [
            float(rounds.committed[rounds.of(chosen)].mean())
            for scope, chosen in rounds.scopes()
            if scope and scope[0][0] == word and rounds.of(chosen).any()
        ]
        if values:
            name, n_of = f"tau_macro_{word}s", f"{word}s"
            average = (("average", f"macro over {word}s"),)
            yield Estimate(name, float(np.mean(values)), PER_ROUND, len(values), n_of, average)


def deepspec_counts(rounds: Measured) -> tuple[Floats, Floats, Floats]:
    """[N] each: entry, proposal and accepted drafts of every round as DeepSpec counts them.

    An accepted stop token at draft i makes all three i (no bonus); else accepted + 1, verified, accepted.
    """
    stopped = rounds.stop_draft > 0
    entry = np.where(stopped, rounds.stop_draft, rounds.accepted + 1)
    proposal = np.where(stopped, rounds.stop_draft, rounds.verified)
    accepted = np.where(stopped, rounds.stop_draft, rounds.accepted)
    return entry.astype(np.float64), proposal.astype(np.float64), accepted.astype(np.float64)


def _deepspec(rounds: Measured, gamma: int) -> Iterator[Estimate]:
    entry, proposal, accepted = deepspec_counts(rounds)
    count = len(entry)
    if count == 0:
        return
    yield Estimate("tau_deepspec", float(entry.sum() / count), PER_ROUND, count, "rounds")
    verify_rate = float(entry.sum() / (proposal.sum() + count))
    yield Estimate("verify_rate_deepspec", verify_rate, "fraction", count, "rounds", (("gamma", str(gamma)),))
    for k in range(1, gamma + 1):
        proposed = int((proposal >= k).sum())
        if proposed:
            rate = float((accepted >= k).sum() / proposed)
            yield Estimate("accept_rate_deepspec@k", rate, "fraction", proposed, "rounds", (("k", str(k)),))


def _counters(rounds: Measured) -> Iterator[Estimate]:
    """vLLM's counters: a draft round is one that verified something; drafts after the stop count."""
    speculated = rounds.verified >= 1
    count = int(speculated.sum())
    if count:
        value = 1.0 + float(rounds.accepted.sum()) / count
        yield Estimate("tau_counters", value, PER_ROUND, count, "rounds with drafts")


def _tokens(rounds: Measured) -> Iterator[Estimate]:
    """SGLang's: every output token, the prefill's included, over rounds."""
    count = len(rounds.rounds)
    if count:
        outputs = sum(len(request.output_ids) for request in rounds.requests)
        yield Estimate("tau_tokens", outputs / count, PER_ROUND, count, "rounds")


def _chunks(rounds: Measured) -> Iterator[Estimate]:
    """Mean length of what a streaming client receives: the prefill's chunk counts, a final stop token is stripped.

    A last chunk that held only the stop token stays a chunk, of length zero.
    """
    count = len(rounds.rounds) + sum(request.first_token for request in rounds.requests)
    if count:
        outputs = sum(len(request.output_ids) for request in rounds.requests)
        stripped = sum(request.stop_reason == StopReason.STOP_TOKEN for request in rounds.requests)
        yield Estimate("tau_chunks", (outputs - stripped) / count, "tokens per chunk", count, "chunks")


def _request_mean(rounds: Measured) -> list[Estimate]:
    """Mean over requests of each request's own tau."""
    size = len(rounds.requests)
    number = np.bincount(rounds.request, minlength=size)
    total = np.bincount(rounds.request, weights=rounds.committed, minlength=size)
    has = number > 0
    return mean_estimate(
        "tau_request_mean",
        unit=PER_ROUND,
        values=total[has] / number[has],
        cluster=rounds.cluster[has],
        n_of="requests",
        scope=(("average", "macro over requests"),),
    )


def estimates(trace: RunTrace) -> Iterator[Estimate]:
    """Headline tau by scope, its macro averages, and every named variant that the trace has data for."""
    if trace.server is not None:  # shows no rounds: see the group "served"
        return
    rounds = measured(trace)
    for scope, chosen in rounds.scopes():
        yield from tau(rounds, chosen=chosen, scope=scope)
    yield from _macro(rounds)
    yield from _deepspec(rounds, trace.draft_length)
    yield from _counters(rounds)
    yield from _tokens(rounds)
    yield from _chunks(rounds)
    yield from _request_mean(rounds)


PLUGIN = MetricGroup("acceptance", PER_ROUND, "higher", estimates)
