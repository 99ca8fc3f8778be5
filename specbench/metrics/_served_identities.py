"""Identities of a run that a server answered: its chunks hold its tokens, and its own counts agree with each other.

The sums over a request's histogram and lists of steps are those that AIPerf checks too: the steps, and the accepted.
"""

from __future__ import annotations

from collections.abc import Iterator

from specbench.errors import RecordError
from specbench.server_trace import ServedTrace
from specbench.types import RequestTrace, RunTrace, Status


def _fail(name: str, what: str, seen: object) -> RecordError:
    return RecordError(
        f"request {name!r}: {what}, seen {seen}; the server's counts or the trace are inconsistent, nothing was used"
    )


def check_served(trace: RunTrace) -> Iterator[RequestTrace]:
    """Every request, once its identities hold. Errors: RecordError for the first that does not."""
    if trace.rounds or trace.steps:
        raise _fail("any", "a server shows neither rounds nor steps", (len(trace.rounds), len(trace.steps)))
    entries = {entry.request: entry for entry in trace.served}
    names = [request.id for request in trace.requests]
    if len(entries) != len(trace.served) or list(entries) != names:
        raise _fail("any", "each request has what its server said, in order", (len(trace.served), len(names)))
    for request in trace.requests:
        entry = entries[request.id]
        _check_chunks(request, entry)
        trouble = count_trouble(entry)
        if trouble is not None:
            raise _fail(request.id, *trouble)
        yield request


def _check_chunks(request: RequestTrace, entry: ServedTrace) -> None:
    if len(entry.chunk_tokens) != len(request.token_times_s):
        wanted = f"a time for each of {len(entry.chunk_tokens)} chunks"
        raise _fail(request.id, wanted, len(request.token_times_s))
    if any(size < 0 for size in entry.chunk_tokens):
        raise _fail(request.id, "a chunk holds no fewer than 0 tokens", entry.chunk_tokens)
    if request.status == Status.OK and sum(entry.chunk_tokens) != request.num_tokens:
        raise _fail(request.id, f"the chunks hold its {request.num_tokens} tokens", sum(entry.chunk_tokens))
    first = request.token_times_s[0] if request.token_times_s else None
    if first != request.first_token_s:
        raise _fail(request.id, f"the first token became visible at {first}", request.first_token_s)


def count_trouble(entry: ServedTrace) -> tuple[str, object] | None:
    """The first contradiction in a server's counts of one request, and the values seen; None where they agree."""
    steps, drafted, accepted = entry.draft_steps, entry.drafted, entry.accepted
    counts = [value for value in (steps, drafted, accepted, entry.steps) if value is not None]
    if any(value < 0 for value in counts):
        return "its counts are not negative", counts
    if drafted is not None and accepted is not None and accepted > drafted:
        return "accepted drafts are at most the drafted", (accepted, drafted)
    if entry.steps is not None and steps is not None and steps > entry.steps:
        return "steps with drafts are at most all steps", (steps, entry.steps)
    histogram = entry.accepted_histogram
    if histogram is not None:
        seen = (sum(histogram), sum(i * count for i, count in enumerate(histogram)))
        if (steps is not None and seen[0] != steps) or (accepted is not None and seen[1] != accepted):
            return f"its histogram sums to {steps} steps and {accepted} accepted drafts", seen
    for name, values, total in (("accepted", entry.step_accepted, accepted), ("drafted", entry.step_drafted, drafted)):
        if values is not None and total is not None and sum(values) != total:
            return f"its steps' {name} drafts sum to {total}", sum(values)
    return None
