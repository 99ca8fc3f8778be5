"""What the users of a load got in one run or in several repeats of it, and how full the machine was meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from specbench.metrics._bootstrap import INTERVAL, mean_estimate
from specbench.metrics._measured import clusters, measured
from specbench.metrics._resampled import RUN_TO_RUN, percentile_bounds, resampled_percentile, run_to_run
from specbench.metrics.latency import PER_REQUEST, PERCENTILES
from specbench.metrics.throughput import invalid_reason, steady_window
from specbench.types import Estimate, RequestTrace, RunTrace

MIN_SERVED = 0.9  # share of the arrival rate that must be admitted for a load to be steady


@dataclass(frozen=True, slots=True)
class Service:
    """One run of a load. ``requests`` are the measured ones; ``trouble`` says why the run must not be used."""

    requests: tuple[RequestTrace, ...]
    throughput: float | None  # tokens/s of the steady window; None where there is none
    in_flight: float | None  # mean number of admitted requests in the window
    served: float | None  # admission rate over arrival rate; None for fewer than two requests
    trouble: str | None


def service(trace: RunTrace) -> Service:
    """What a trace says of the service it gave."""
    window = steady_window(trace)
    kept = measured(trace).requests
    return Service(
        requests=kept,
        throughput=None if window is None else window.tokens_per_s,
        in_flight=None if window is None else _in_flight(trace, window.start_s, window.end_s),
        served=_served(kept),
        trouble=invalid_reason(trace),
    )


def _in_flight(trace: RunTrace, start_s: float, end_s: float) -> float:
    held = 0.0
    for request in trace.requests:
        if request.admitted_s is not None:
            last = end_s if request.finish_s is None else min(request.finish_s, end_s)
            held += max(0.0, last - max(request.admitted_s, start_s))
    return held / (end_s - start_s)


def _served(requests: Sequence[RequestTrace]) -> float | None:
    """How fast requests were admitted against how fast they came: below 1 the queue grew."""
    arrivals = [request.arrival_s for request in requests]
    admissions = [request.admitted_s for request in requests if request.admitted_s is not None]
    if len(admissions) < 2 or max(admissions) <= min(admissions):
        return None
    return (max(arrivals) - min(arrivals)) / (max(admissions) - min(admissions))


def unsteady(runs: Sequence[Service]) -> str | None:
    """Why an open loop's runs are no steady state, or None: the queue grew from the first request to the last."""
    served = [run.served for run in runs if run.served is not None]
    if not served or float(np.mean(served)) >= MIN_SERVED:
        return None
    return f"the queue grows: requests are admitted at {np.mean(served):.0%} of the rate at which they arrive"


OVER_RUNS = ("over", "runs")
"""In the scope of an estimate that is a mean of the runs' own figures, with its interval from run to run."""


def pooled(runs: Sequence[Service]) -> Iterator[Estimate]:
    """Estimates of a load over its runs: latencies and speed of all requests together, throughput over the runs.

    The mean of tok/s/user and the percentiles of TTFT and TPOT have intervals over prompts (a prompt's repeats are one
    cluster); the same figures once more, as means over the runs, have one from run to run, as steady throughput has.
    """
    requests = [request for run in runs for request in run.requests]
    cluster = clusters(requests)
    for metric in ("tokens_per_s_user", "ttft", "tpot"):
        unit, value_of = PER_REQUEST[metric]
        found = [(i, value_of(request)) for i, request in enumerate(requests)]
        defined = [(i, value) for i, value in found if value is not None]
        if not defined:
            continue
        values, members = [value for _, value in defined], cluster[[i for i, _ in defined]]
        yield from mean_estimate(
            metric, unit=unit, values=values, cluster=members, n_of="requests", scope=(("stat", "mean"),)
        )
        for percent in PERCENTILES:
            value = float(np.percentile(values, percent))
            count = int(cluster.max()) + 1
            spread = resampled_percentile(values, members, percent=percent, clusters=count)
            bounds = percentile_bounds(spread) if count > 1 else None
            scope = (("stat", f"p{percent}"),)
            yield _estimate(metric, value, unit, len(values), "requests", scope=scope, bounds=bounds, named=INTERVAL)
        yield from _from_run_to_run(metric, runs)
    yield from _throughput(runs)


def _from_run_to_run(metric: str, runs: Sequence[Service]) -> Iterator[Estimate]:
    unit, value_of = PER_REQUEST[metric]
    each = [[value for value in map(value_of, run.requests) if value is not None] for run in runs]
    if len(runs) < 2 or not all(each):
        return
    stats: list[tuple[str, list[float]]] = [("mean", [float(np.mean(values)) for values in each])]
    stats += [(f"p{p}", [float(np.percentile(values, p)) for values in each]) for p in PERCENTILES]
    for stat, values in stats:
        scope = (("stat", stat), OVER_RUNS)
        mean, bounds = float(np.mean(values)), run_to_run(values)
        yield _estimate(metric, mean, unit, len(values), "runs", scope=scope, bounds=bounds, named=RUN_TO_RUN)


def _throughput(runs: Sequence[Service]) -> Iterator[Estimate]:
    rates = [run.throughput for run in runs if run.throughput is not None]
    if rates and len(rates) == len(runs):
        mean = float(np.mean(rates))
        yield _estimate(
            "steady_tokens_per_s", mean, "tokens/s", len(rates), "runs", bounds=run_to_run(rates), named=RUN_TO_RUN
        )
    held = [run.in_flight for run in runs if run.in_flight is not None]
    if held:
        mean = float(np.mean(held))
        yield _estimate("requests_in_flight", mean, "requests", len(held), "runs", bounds=run_to_run(held),
                        named=RUN_TO_RUN)  # fmt: skip


def _estimate(
    metric: str,
    value: float,
    unit: str,
    n: int,
    n_of: str,
    *,
    named: str,
    bounds: tuple[float, float] | None,
    scope: tuple[tuple[str, str], ...] = (),
) -> Estimate:
    low, high = bounds if bounds is not None else (None, None)
    return Estimate(metric, value, unit, n, n_of, scope, low, high, named if bounds is not None else None)
