"""What a server's own counts say of acceptance, and its users' clocks of speed; nothing where it counts nothing.

A server shows no rounds: steps without a draft are missing from the counts of most engines, so the accepted length is
given over all decode steps (as everywhere here) and, named apart, over the steps that had a draft (as vLLM prints it).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from specbench.metrics._bootstrap import INTERVAL, cluster_sums, interval, ratio_estimate
from specbench.metrics._group import MetricGroup
from specbench.metrics._measured import Flags, Floats, Measured, Scope, clusters, measured
from specbench.metrics.acceptance import PER_ROUND
from specbench.server_trace import ServedTrace, ServerCounts
from specbench.types import Estimate, RequestTrace, RunTrace

COUNTERS: Scope = (("from", "server counters"),)


@dataclass(frozen=True, slots=True)
class StepRange:
    """Decode steps of one request: ``low`` at least, ``high`` at most; equal where the server's counts leave no doubt.

    Each step commits its accepted drafts and one token, so steps = tokens after the first - accepted + tokens that were
    cut at the end. Only the last step can have lost tokens, and no more of them than drafts that it accepted.
    """

    decoded: int
    low: int
    high: int


def step_range(request: RequestTrace, entry: ServedTrace, *, draft_length: int) -> StepRange | None:
    """None where the server tells neither its steps nor its accepted drafts, or nothing was decoded."""
    decoded = request.num_tokens - 1  # the first token is the prefill's
    if decoded < 1:
        return None
    if entry.steps is not None:
        return StepRange(decoded, entry.steps, entry.steps) if entry.steps else None
    if entry.accepted is None:
        return None
    lost = draft_length
    if entry.step_accepted is not None:
        lost = entry.step_accepted[-1] if entry.step_accepted else 0
    elif entry.draft_steps == 0 or entry.accepted == 0:
        lost = 0
    steps = decoded - entry.accepted
    low = max(steps, entry.draft_steps or 0, 1)
    return StepRange(decoded, low, max(low, min(steps + lost, decoded)))


@dataclass(frozen=True, slots=True)
class _Counted:
    """The measured requests [M], what the server said of each, and the steps of those that it counted."""

    rounds: Measured
    entries: tuple[ServedTrace, ...]
    steps: tuple[StepRange | None, ...]

    @property
    def known(self) -> Flags:
        """[M], whose acceptance the server told."""
        return np.array([found is not None for found in self.steps], dtype=bool)


def counted(trace: RunTrace) -> _Counted:
    """The measured requests with their counts."""
    rounds = measured(trace)
    by_name = {entry.request: entry for entry in trace.served}
    entries = tuple(by_name[request.id] for request in rounds.requests)
    steps = tuple(step_range(r, e, draft_length=trace.draft_length) for r, e in zip(rounds.requests, entries))
    return _Counted(rounds, entries, steps)


def _tau(found: _Counted) -> Iterator[Estimate]:
    known = found.known
    for scope, chosen in found.rounds.scopes():
        members = np.flatnonzero(chosen & known)
        ranges = [steps for i in members if (steps := found.steps[i]) is not None]
        for metric, bottom in (("tau", [s.low for s in ranges]), ("tau_at_least", [s.high for s in ranges])):
            if metric == "tau_at_least" and all(s.low == s.high for s in ranges):
                continue
            yield from ratio_estimate(
                metric,
                unit=PER_ROUND,
                numerators=[s.decoded for s in ranges],
                denominators=bottom,
                cluster=found.rounds.cluster[members],
                n=sum(bottom),
                n_of="decode steps",
                scope=scope,
            )
    alone = int((~known).sum())
    if alone:
        yield Estimate("requests_without_counts", float(alone), "requests", len(known), "requests")


def _speculation(found: _Counted, gamma: int) -> Iterator[Estimate]:
    """tau as vLLM counts it, acceptance rate and drafts a step, from the requests whose drafts are counted."""
    held = [i for i, e in enumerate(found.entries) if e.accepted is not None and e.drafted]
    entries = [found.entries[i] for i in held]
    accepted, drafted = [e.accepted for e in entries], [e.drafted for e in entries]
    cluster = found.rounds.cluster[held]
    yield from ratio_estimate(
        "acceptance_rate",
        unit="fraction",
        numerators=np.array(accepted, dtype=np.float64),
        denominators=np.array(drafted, dtype=np.float64),
        cluster=cluster,
        n=sum(d for d in drafted if d is not None),
        n_of="drafts",
        scope=(("gamma", str(gamma)),),
    )
    steps = [e.draft_steps for e in entries if e.draft_steps]
    if not steps or len(steps) < len(entries):
        return
    total = sum(steps)
    value = 1.0 + sum(a for a in accepted if a is not None) / total
    yield Estimate("tau_counters", value, PER_ROUND, total, "steps with drafts")
    yield from _zero_drafts(found)
    yield from _positions(entries, gamma)


def _zero_drafts(found: _Counted) -> Iterator[Estimate]:
    pairs = [(s, e.draft_steps) for s, e in zip(found.steps, found.entries) if s is not None]
    known = [(s.low, drafting) for s, drafting in pairs if drafting is not None]
    if known:
        steps = sum(low for low, _ in known)
        idle = steps - sum(drafting for _, drafting in known)
        yield Estimate("zero_draft_rounds", float(idle), "rounds", steps, "decode steps")
        yield Estimate("zero_draft_share", idle / steps, "fraction", steps, "decode steps")


def _positions(entries: Sequence[ServedTrace], gamma: int) -> Iterator[Estimate]:
    """Survival where it is known how many steps proposed k drafts; else nothing."""
    lists = [(e.step_accepted, e.step_drafted) for e in entries]
    pairs = [(a, d) for ours, theirs in lists if ours is not None and theirs is not None for a, d in zip(ours, theirs)]
    complete = all(ours is not None and theirs is not None for ours, theirs in lists)
    for k in range(1, gamma + 1) if complete else ():
        base = [a for a, d in pairs if d >= k]
        if base:
            share = sum(a >= k for a in base) / len(base)
            yield Estimate("survival", share, "fraction", len(base), "steps with drafts", (("k", str(k)),))
    histograms = [e.accepted_histogram for e in entries]
    if histograms and all(h is not None for h in histograms):
        for value in range(gamma + 1):
            count = sum(h[value] for h in histograms if h is not None and value < len(h))
            scope = (("accepted", str(value)), ("steps", "with drafts"))
            yield Estimate("accepted_histogram", float(count), "rounds", len(entries), "requests", scope)


# ------------------------------------------------------------------------------------------------------ counters


def own_tokens(trace: RunTrace) -> tuple[int, int]:
    """(output tokens, requests that got any) of everything that was asked in the measured part."""
    asked = [request for request in trace.requests if not request.warmup and request.num_tokens]
    return sum(request.num_tokens for request in asked), len(asked)


def _counters(trace: RunTrace, counts: ServerCounts, *, headline: bool) -> Iterator[Estimate]:
    """The same figures from the differences of the server's counters; absent where others used it meanwhile."""
    tokens, prefills = own_tokens(trace)
    if counts.generated is None or not tokens:
        return
    foreign = counts.generated - tokens
    yield Estimate("foreign_tokens", float(foreign), "tokens", counts.generated, "output tokens of the server")
    if foreign:
        return
    if counts.draft_steps and counts.accepted is not None:
        value = 1.0 + counts.accepted / counts.draft_steps
        yield Estimate("tau_counters", value, PER_ROUND, counts.draft_steps, "steps with drafts", COUNTERS)
    if counts.draft_steps and counts.accepted_at is not None:
        for k, count in enumerate(counts.accepted_at, start=1):
            scope = (*COUNTERS, ("k", str(k)))
            share = count / counts.draft_steps
            yield Estimate("accepted_share", share, "fraction", counts.draft_steps, "steps with drafts", scope)
    steps = counts.steps
    if steps is None and counts.accepted is not None:
        steps = max(tokens - prefills - counts.accepted, counts.draft_steps or 0)
    if steps:
        tau = (tokens - prefills) / steps
        yield Estimate("tau", tau, PER_ROUND, steps, "decode steps", COUNTERS)
        if headline:
            yield Estimate("tau", tau, PER_ROUND, steps, "decode steps, by the server's counters")


# ------------------------------------------------------------------------------------------------- clock and cache


def decode_seconds(request: RequestTrace) -> tuple[float, int] | None:
    """(seconds from the first visible token to the last, tokens after the first).

    None below two tokens, or where all became visible at once: then nothing was timed.
    """
    if request.first_token_s is None or request.num_tokens < 2 or request.token_times_s[-1] <= request.first_token_s:
        return None
    return request.token_times_s[-1] - request.first_token_s, request.num_tokens - 1


def _clock(rounds: Measured) -> Iterator[Estimate]:
    for scope, chosen in rounds.scopes():
        members = [i for i in np.flatnonzero(chosen) if decode_seconds(rounds.requests[i]) is not None]
        pairs = [pair for i in members if (pair := decode_seconds(rounds.requests[i])) is not None]
        yield from ratio_estimate(
            "client_tokens_per_s",
            unit="tokens/s",
            numerators=[tokens for _, tokens in pairs],
            denominators=[seconds for seconds, _ in pairs],
            cluster=rounds.cluster[members],
            n=sum(tokens for _, tokens in pairs),
            n_of="tokens after the first",
            scope=scope,
        )
    ends = [r.finish_s for r in rounds.requests if r.finish_s is not None]
    if ends:
        span = max(ends) - min(r.arrival_s for r in rounds.requests)
        tokens = sum(r.num_tokens for r in rounds.requests)
        if span > 0:
            yield Estimate("whole_run_tokens_per_s", tokens / span, "tokens/s", tokens, "output tokens")


def _cache(found: _Counted) -> Iterator[Estimate]:
    held = [(e.cached_tokens, e.prompt_tokens) for e in found.entries if e.cached_tokens is not None]
    prompts = sum(p for _, p in held if p is not None)
    if prompts:
        cached = sum(c for c, _ in held if c is not None)
        yield Estimate("cached_prompt_share", cached / prompts, "fraction", prompts, "prompt tokens")


def compare_served(trace: RunTrace, baseline: RunTrace) -> Iterator[Estimate]:
    """Speed-up by the client's clock: decode seconds per token of plain decoding over ours, over the same prompts."""
    other = {request.id: request for request in measured(baseline).requests}
    paired: list[RequestTrace] = []
    columns: list[tuple[float, int, float, int]] = []
    ours = measured(trace).requests
    for request in ours:
        partner = other.get(request.id)
        if partner is None or partner.prompt_hash != request.prompt_hash:
            continue
        mine, theirs = decode_seconds(request), decode_seconds(partner)
        if mine is not None and theirs is not None:
            paired.append(request)
            columns.append((*mine, *theirs))
    yield Estimate("unpaired_requests", float(len(ours) - len(paired)), "requests", len(ours), "requests")
    sums = np.array(columns, dtype=np.float64).reshape(-1, 4).sum(axis=0)
    if (sums == 0).any():
        return
    bounds = interval(cluster_sums(clusters(paired), *np.array(columns, dtype=np.float64).T), _ratio)
    low, high = bounds if bounds is not None else (None, None)
    value = float(_ratio(sums[None])[0])
    named = f"paired {INTERVAL}" if bounds is not None else None
    yield Estimate("client_speed_up", value, "ratio", len(paired), "requests in both arms", (), low, high, named)


def _ratio(totals: Floats) -> Floats:
    """[R] from [R, 4]: the baseline's seconds per token over ours."""
    quotient: Floats = (totals[:, 2] / totals[:, 3]) / (totals[:, 0] / totals[:, 1])
    return quotient


def estimates(trace: RunTrace) -> Iterator[Estimate]:
    """Acceptance by the server's counts, speed by the client's clock, and the prompt tokens that a cache gave."""
    if trace.server is None:
        return
    found = counted(trace)
    yield from _tau(found)
    yield from _speculation(found, trace.draft_length)
    if trace.server.counts is not None:
        yield from _counters(trace, trace.server.counts, headline=not found.known.any())
    yield from _clock(found.rounds)
    yield from _cache(found)


PLUGIN = MetricGroup("served", PER_ROUND, "higher", estimates)
