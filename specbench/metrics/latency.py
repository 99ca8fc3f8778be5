"""What a user waits for: queue, time to first token, time per output token, gaps, end to end.

Warm-up, failed and interrupted requests are counted and left out of every average and percentile.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from specbench.metrics._bootstrap import mean_estimate
from specbench.metrics._group import MetricGroup
from specbench.metrics._measured import Ints, Measured, Scope, measured
from specbench.types import Estimate, RequestTrace, RunTrace, Status

PERCENTILES = (50, 90, 99)


def queue_s(request: RequestTrace) -> float | None:
    """Seconds from arrival to admission."""
    return None if request.admitted_s is None else request.admitted_s - request.arrival_s


def ttft_s(request: RequestTrace) -> float | None:
    """Time to first token: seconds from arrival to the first visible token, queue included."""
    return None if request.first_token_s is None else request.first_token_s - request.arrival_s


def tpot_s(request: RequestTrace) -> float | None:
    """Time per output token: (last - first) / (output - 1) in seconds; undefined below two tokens."""
    if request.first_token_s is None or request.num_tokens < 2:
        return None
    return (request.token_times_s[-1] - request.first_token_s) / (request.num_tokens - 1)


def tokens_per_s_user(request: RequestTrace) -> float | None:
    """1 / TPOT; undefined where TPOT is, or where all tokens became visible at once."""
    tpot = tpot_s(request)
    return 1.0 / tpot if tpot else None


def e2e_s(request: RequestTrace) -> float | None:
    """Seconds from arrival to the end of the request."""
    return None if request.finish_s is None else request.finish_s - request.arrival_s


def gaps_s(request: RequestTrace) -> list[float]:
    """Seconds between emissions, one per round after the first emission; TTFT is never among them."""
    return [later - earlier for earlier, later in pairwise(request.token_times_s)]


PER_REQUEST = {
    "queue": ("s", queue_s),
    "ttft": ("s", ttft_s),
    "tpot": ("s", tpot_s),
    "e2e": ("s", e2e_s),
    "tokens_per_s_user": ("tokens/s", tokens_per_s_user),
}


def _summary(
    metric: str, *, unit: str, values: list[float], cluster: Ints, n_of: str, scope: Scope
) -> Iterator[Estimate]:
    """Mean (with its interval over prompts) and percentiles (linear between order statistics) of a list."""
    if not values:
        return
    yield from mean_estimate(
        metric, unit=unit, values=values, cluster=cluster, n_of=n_of, scope=(*scope, ("stat", "mean"))
    )
    for percent, value in zip(PERCENTILES, np.percentile(values, PERCENTILES)):
        yield Estimate(metric, float(value), unit, len(values), n_of, (*scope, ("stat", f"p{percent}")))


def _scoped(rounds: Measured, *, gap: str) -> Iterator[Estimate]:
    for scope, chosen in rounds.scopes():
        members = [i for i, included in enumerate(chosen) if included]
        for metric, (unit, value_of) in PER_REQUEST.items():
            found = [(i, value_of(rounds.requests[i])) for i in members]
            defined = [(i, value) for i, value in found if value is not None]
            yield from _summary(
                metric,
                unit=unit,
                values=[value for _, value in defined],
                cluster=rounds.cluster[[i for i, _ in defined]],
                n_of="requests",
                scope=scope,
            )
        gaps = [(i, seconds) for i in members for seconds in gaps_s(rounds.requests[i])]
        yield from _summary(
            gap,
            unit="s",
            values=[seconds for _, seconds in gaps],
            cluster=rounds.cluster[[i for i, _ in gaps]],
            n_of="gaps",
            scope=scope,
        )


def request_counts(trace: RunTrace) -> dict[str, int]:
    """Requests by what became of them: warm-up first, then the status of the rest."""
    judged = [request for request in trace.requests if not request.warmup]
    counts = {"warmup": len(trace.requests) - len(judged)}
    for word, status in (("measured", Status.OK), ("failed", Status.FAILED), ("interrupted", Status.INTERRUPTED)):
        counts[word] = sum(request.status == status for request in judged)
    return counts


def estimates(trace: RunTrace) -> Iterator[Estimate]:
    """Request counts, then mean and percentiles of every latency: over the run, per domain and per task."""
    for word, count in request_counts(trace).items():
        yield Estimate("requests", float(count), "requests", len(trace.requests), "requests", (("kind", word),))
    preempted = sum(request.preemptions for request in trace.requests)
    yield Estimate("preemptions", float(preempted), "preemptions", len(trace.requests), "requests")
    # a server's chunks are no rounds: several may come as one, and one in parts
    yield from _scoped(measured(trace), gap="inter_round_gap" if trace.server is None else "inter_chunk_gap")


PLUGIN = MetricGroup("latency", "s", "lower", estimates)
