"""When tokens became visible, and what machine time each round was charged with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from specbench.metrics._measured import Measured, steps_by_number
from specbench.types import RequestTrace, RoundTrace, RunTrace, Status, StepTrace


def rounds_by_request(trace: RunTrace) -> dict[str, list[RoundTrace]]:
    """Rounds of each request in their order; every request has an entry."""
    found: dict[str, list[RoundTrace]] = {request.id: [] for request in trace.requests}
    for entry in trace.rounds:
        found[entry.request].append(entry)
    return {name: sorted(entries, key=lambda r: r.round) for name, entries in found.items()}


def emissions(request: RequestTrace, rounds: list[RoundTrace]) -> list[tuple[float, int]]:
    """(seconds since the run's origin, tokens) of each emission: the prefill's token, then each round's."""
    sizes = [1] * request.first_token + [entry.committed for entry in rounds]
    return list(zip(request.token_times_s, sizes, strict=True))


def tokens_between(trace: RunTrace, start_s: float, end_s: float) -> int:
    """Output tokens that became visible in (start, end], the prefill's included.

    Tokens of every request that did not fail count, partial requests and warm-up ones included: the machine made them
    then.
    """
    return sum(
        size
        for request, emitted in all_emissions(trace)
        if request.status != Status.FAILED
        for at, size in emitted
        if start_s < at <= end_s
    )


def all_emissions(trace: RunTrace) -> Iterator[tuple[RequestTrace, list[tuple[float, int]]]]:
    """Every request with its emissions; a server's are the chunks of its stream."""
    if trace.server is not None:
        chunks = {served.request: served.chunk_tokens for served in trace.served}
        for request in trace.requests:
            yield request, list(zip(request.token_times_s, chunks[request.id], strict=True))
        return
    rounds = rounds_by_request(trace)
    for request in trace.requests:
        yield request, emissions(request, rounds[request.id])


def pure_decode(step: StepTrace) -> bool:
    """Whether the step held no prompt tokens: only such steps time a decoding round."""
    return step.prefill_tokens == 0


def decode_costs(trace: RunTrace, rounds: Measured) -> dict[str, tuple[float, int]]:
    """Per measured request: (machine seconds, tokens committed) over its rounds in pure decode steps.

    A step's time is shared equally by its decode rows, so that the sum over requests is machine time, each second
    once. Requests without such a round are left out.
    """
    steps = steps_by_number(trace)
    seconds: Mapping[str, list[float]] = defaultdict(list)
    tokens: dict[str, int] = defaultdict(int)
    for entry in rounds.rounds:
        step = steps[entry.step]
        if pure_decode(step):
            seconds[entry.request].append(step.total_s / step.decode_rows)
            tokens[entry.request] += entry.committed
    return {name: (sum(parts), tokens[name]) for name, parts in seconds.items()}
