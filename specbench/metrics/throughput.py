"""Tokens per second: of decoding alone, in the steady window, and against a baseline over the same prompts."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from specbench.metrics._bootstrap import INTERVAL, cluster_sums, interval, ratio_estimate
from specbench.metrics._emissions import decode_costs, pure_decode, tokens_between
from specbench.metrics._group import MetricGroup
from specbench.metrics._measured import Floats, Measured, Scope, clusters, is_measured, measured, steps_by_number
from specbench.types import Estimate, RequestTrace, RunTrace, Status

MAX_FAILED_SHARE = 0.01  # above it a row is invalid


@dataclass(frozen=True, slots=True)
class Window:
    """The steady part of a run, in seconds since its origin, and the tokens that became visible in (start, end]."""

    start_s: float
    end_s: float
    tokens: int

    @property
    def tokens_per_s(self) -> float:
        """Output tokens, the prefill's included, per second of the window."""
        return self.tokens / (self.end_s - self.start_s)


def _full_load(requests: Sequence[RequestTrace], moments: Sequence[float], rows: int) -> list[float]:
    """The moments at which at least ``rows`` requests were admitted and not finished (one that ends then is out)."""
    admitted = sorted(r.admitted_s for r in requests if r.admitted_s is not None)
    finished = sorted(r.finish_s for r in requests if r.admitted_s is not None and r.finish_s is not None)
    return [at for at in moments if bisect_right(admitted, at) - bisect_right(finished, at) >= rows]


def _after_first(trace: RunTrace, moments: Sequence[float]) -> list[float]:
    """The moments since a measured request has been served to its end: by then a whole service time of others came."""
    ended = [r.finish_s for r in trace.requests if is_measured(r) and r.finish_s is not None]
    return [at for at in moments if at >= min(ended, default=inf)]


def steady_window(trace: RunTrace) -> Window | None:
    """From the first admission of a measured request at full load to the last admission (metrics.md, "Time and load").

    Full load is ``concurrency`` requests in flight, warm-up ones included. Where requests come at a pace of their own
    it may never take all rows: there it is reached when the first measured request has been served to its end. Tokens
    of every request that did not fail count while they fall inside, partial requests and the tail of warm-up ones
    included: the machine made them then. None where full load is never reached or the window is empty.
    """
    admissions = sorted(r.admitted_s for r in trace.requests if not r.warmup and r.admitted_s is not None)
    if trace.paced:
        full = _after_first(trace, admissions)
    else:
        full = _full_load(trace.requests, admissions, trace.concurrency)
    if not full or admissions[-1] <= full[0]:
        return None
    start, end = full[0], admissions[-1]
    return Window(start_s=start, end_s=end, tokens=tokens_between(trace, start, end))


def failed_share(trace: RunTrace) -> tuple[int, int]:
    """(failed, all) of the requests that were not warm-up."""
    judged = [request for request in trace.requests if not request.warmup]
    return sum(request.status == Status.FAILED for request in judged), len(judged)


def invalid_reason(trace: RunTrace, *, max_failed_share: float = MAX_FAILED_SHARE) -> str | None:
    """Why the row must not be used, or None: too many failed requests, or none that finished."""
    failed, judged = failed_share(trace)
    if judged == 0 or not measured(trace).requests:
        return f"no measured request finished ({judged} were asked for)"
    if failed / judged > max_failed_share:
        return f"{failed} of {judged} requests failed, more than the stated share of {max_failed_share:.0%}"
    return None


def _decode_speed(trace: RunTrace, rounds: Measured) -> Iterator[Estimate]:
    """Decode tokens/s, its reciprocal, and the share of tokens that pure decode steps made."""
    costs = decode_costs(trace, rounds)
    for scope, chosen in rounds.scopes():
        members = [i for i, r in enumerate(rounds.requests) if chosen[i] and r.id in costs]
        seconds = [costs[rounds.requests[i].id][0] for i in members]
        tokens = [costs[rounds.requests[i].id][1] for i in members]
        if sum(seconds) == 0 or sum(tokens) == 0:
            continue
        for metric, unit, top, bottom in (
            ("decode_tokens_per_s", "tokens/s", tokens, seconds),
            ("seconds_per_decode_token", "s/token", seconds, tokens),
        ):
            yield from ratio_estimate(
                metric,
                unit=unit,
                numerators=top,
                denominators=bottom,
                cluster=rounds.cluster[members],
                n=sum(tokens),
                n_of="tokens committed in pure decode steps",
                scope=scope,
            )
        total = int(rounds.committed[rounds.of(chosen)].sum())
        yield Estimate("pure_decode_share", sum(tokens) / total, "fraction", total, "tokens committed", scope)


def _window(trace: RunTrace) -> Iterator[Estimate]:
    window = steady_window(trace)
    if window is not None:
        unit, n_of = "tokens/s", "output tokens in the window"
        yield Estimate("steady_tokens_per_s", window.tokens_per_s, unit, window.tokens, n_of)
        for edge, value in (("start", window.start_s), ("end", window.end_s)):
            yield Estimate("steady_window", value, "s", window.tokens, n_of, (("edge", edge),))
    failed, judged = failed_share(trace)
    if judged:
        yield Estimate("failed_share", failed / judged, "fraction", judged, "requests")


def estimates(trace: RunTrace) -> Iterator[Estimate]:
    """Decode speed by scope, the steady window and its output tokens/s, the share of failed requests."""
    yield from _decode_speed(trace, measured(trace))
    yield from _window(trace)


# ------------------------------------------------------------------------------------------- against a baseline


def _same_prompt(ours: RequestTrace, theirs: RequestTrace | None) -> bool:
    """Paired on prompt and seed. A later turn whose history differs between the arms is another prompt."""
    return theirs is not None and (ours.prompt_hash, ours.seed) == (theirs.prompt_hash, theirs.seed)


def _pairs(trace: RunTrace, baseline: RunTrace) -> tuple[Measured, dict[str, tuple[float, int, float, int]]]:
    """Per request measured in both arms: our seconds and tokens, the baseline's seconds and tokens."""
    ours, theirs = measured(trace), measured(baseline)
    other = {request.id: request for request in theirs.requests}
    same = [request.id for request in ours.requests if _same_prompt(request, other.get(request.id))]
    mine, base = decode_costs(trace, ours), decode_costs(baseline, theirs)
    return ours, {name: (*mine[name], *base[name]) for name in same if name in mine and name in base}


def _speed_up_of(totals: Floats) -> Floats:
    """[R] from [R, 4]: baseline seconds per token over our seconds per token."""
    quotient: Floats = (totals[:, 2] / totals[:, 3]) / (totals[:, 0] / totals[:, 1])
    return quotient


def _speed_up(
    chosen: Sequence[RequestTrace], pairs: dict[str, tuple[float, int, float, int]], scope: Scope
) -> Iterator[Estimate]:
    paired = [request for request in chosen if request.id in pairs]
    if not paired:
        return
    columns = np.array([pairs[request.id] for request in paired], dtype=np.float64)  # [M, 4]
    totals = columns.sum(axis=0, keepdims=True)
    if (totals == 0).any():
        return
    bounds = interval(cluster_sums(clusters(paired), *columns.T), _speed_up_of)
    low, high = bounds if bounds is not None else (None, None)
    named = f"paired {INTERVAL}" if bounds is not None else None
    value = float(_speed_up_of(totals)[0])
    yield Estimate("speed_up", value, "ratio", len(paired), "requests in both arms", scope, low, high, named)


def round_time_s(trace: RunTrace, rounds: Measured) -> tuple[float, int] | None:
    """(mean seconds, count) of the pure decode steps that held a measured row; None where there is none."""
    steps = steps_by_number(trace)
    numbers = sorted({entry.step for entry in rounds.rounds})
    times = [steps[number].total_s for number in numbers if pure_decode(steps[number])]
    return (float(np.mean(times)), len(times)) if times else None


def compare(trace: RunTrace, baseline: RunTrace) -> Iterator[Estimate]:
    """Speed-up by scope, how many requests had no partner, break-even tau, and the output lengths of both arms.

    Speed-up is the ratio of seconds per committed decode token over the requests measured in both arms with the same
    prompt and seed; break-even tau is our mean round time over the baseline's mean step time: the tau below which
    drafting loses.
    """
    ours, pairs = _pairs(trace, baseline)
    alone = len(ours.requests) - len(pairs)
    yield Estimate("unpaired_requests", float(alone), "requests", len(ours.requests), "requests")
    for scope, chosen in ours.scopes():
        yield from _speed_up([r for i, r in enumerate(ours.requests) if chosen[i]], pairs, scope)
    mine, theirs = round_time_s(trace, ours), round_time_s(baseline, measured(baseline))
    if mine is not None and theirs is not None and theirs[0] > 0:
        yield Estimate("break_even_tau", mine[0] / theirs[0], "tokens per round", mine[1], "pure decode steps")
    for arm, run in (("method", trace), ("baseline", baseline)):
        lengths = [request.num_tokens for request in measured(run).requests if request.id in pairs]
        if lengths:
            mean = float(np.mean(lengths))
            yield Estimate("mean_output_tokens", mean, "tokens", len(lengths), "requests", (("arm", arm),))


PLUGIN = MetricGroup("throughput", "tokens/s", "higher", estimates)
