"""Identities that every trace satisfies; checked before a run is written (metrics.md, "The round record").

A violation is an error that names the request and round: a number computed from such a trace would be wrong.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import isnan

import numpy as np

from specbench.errors import RecordError
from specbench.metrics._served_identities import check_served
from specbench.metrics.positions import accepted_histogram
from specbench.types import RequestTrace, RoundTrace, RunTrace, Status, StepTrace, StopReason

TIME_TOLERANCE_S = 1e-6
_PHASES = ("draft_s", "schedule_s", "verify_s", "accept_s", "other_s")


def _fail(where: str, what: str, seen: object) -> RecordError:
    return RecordError(f"{where}: {what}, seen {seen}; the trace is inconsistent and was not used: report this")


def check_identities(trace: RunTrace) -> None:
    """Raise RecordError for the first identity that the trace breaks; return silently when all hold."""
    requests = _unique(trace.requests)
    if trace.server is not None:
        for served in check_served(trace):
            _check_moments(served)
        return
    _check_steps(trace.steps)
    by_request: dict[str, list[RoundTrace]] = defaultdict(list)
    for entry in trace.rounds:
        where = f"request {entry.request!r} round {entry.round}"
        if entry.request not in requests:
            raise _fail(where, "its request is in the trace", "none")
        _check_counts(entry, where, trace.draft_length)
        _check_ending(entry, where)
        _check_lists(entry, where)
        by_request[entry.request].append(entry)
    for request in trace.requests:
        entries = by_request[request.id]
        _check_sequence(request, entries)
        _check_output(request, entries)
        _check_stop(request, entries)
        _check_times(request, len(entries))
    _check_histogram(trace.rounds)
    _check_batches(trace)


def _unique(requests: Sequence[RequestTrace]) -> dict[str, RequestTrace]:
    found: dict[str, RequestTrace] = {}
    for request in requests:
        if request.id in found:
            raise _fail(f"request {request.id!r}", "its id is unique in the run", "a second one")
        found[request.id] = request
    return found


def _check_steps(steps: Sequence[StepTrace]) -> None:
    for step in steps:
        where = f"step {step.step}"
        for phase in _PHASES:
            seconds = getattr(step, phase)
            if not 0 <= seconds < float("inf"):
                raise _fail(where, f"{phase} is a finite time of at least 0", seconds)
        counts = (step.decode_rows, step.decode_tokens, step.prefill_rows, step.prefill_tokens)
        if min(counts) < 0 or step.decode_tokens < step.decode_rows:
            raise _fail(where, "every decode row sends at least its anchor", counts)
    for earlier, later in pairwise(steps):
        if later.step <= earlier.step or later.start_s < earlier.start_s:
            raise _fail(f"step {later.step}", "steps are in order of number and time", f"step {earlier.step} before it")


def _check_counts(entry: RoundTrace, where: str, draft_length: int) -> None:
    chain = (entry.accepted, entry.verified, entry.planned, entry.drafted, draft_length)
    if entry.accepted < 0 or any(a > b for a, b in pairwise(chain)):
        raise _fail(where, "0 <= accepted <= verified <= planned <= drafted <= draft length", chain)


def _check_ending(entry: RoundTrace, where: str) -> None:
    """committed + discarded = accepted + 1, or accepted when a stop or the limit cut before the target's token."""
    seen = f"committed {entry.committed}, discarded {entry.discarded}, accepted {entry.accepted}"
    if entry.committed < 1 or entry.discarded < 0:
        raise _fail(where, "a round commits at least one token and discards none or more", seen)
    total = entry.committed + entry.discarded
    if entry.stop_reason is None:
        if entry.committed != entry.accepted + 1 or entry.discarded:
            raise _fail(where, "a round that nothing ended commits accepted + 1 and discards nothing", seen)
        return
    if entry.stop_reason not in (StopReason.STOP_TOKEN, StopReason.LENGTH):
        raise _fail(where, "stop reason is 'stop' or 'length'", repr(entry.stop_reason))
    wanted = entry.accepted if entry.committed <= entry.accepted else entry.accepted + 1
    if total != wanted:
        raise _fail(where, "committed + discarded = accepted + 1, or accepted when cut", seen)


def _check_lists(entry: RoundTrace, where: str) -> None:
    lengths: tuple[tuple[str, Sequence[float] | None, int], ...] = (
        ("draft_ids", entry.draft_ids, entry.drafted),
        ("committed_ids", entry.committed_ids, entry.committed),
        ("confidence", entry.confidence, entry.drafted),
        ("top2_gap", entry.top2_gap, entry.committed),
        ("log_p_target", entry.log_p_target, entry.verified),
        ("log_p_draft", entry.log_p_draft, entry.verified),
    )
    for name, values, length in lengths:
        if values is None:
            continue
        if len(values) != length:
            raise _fail(where, f"{name} has {length} entries", len(values))
        if any(isnan(value) for value in values):
            raise _fail(where, f"{name} holds numbers", "NaN")
    if entry.confidence is not None and any(not 0 <= c <= 1 for c in entry.confidence):
        raise _fail(where, "confidences are in [0, 1]", entry.confidence)
    shared = min(entry.accepted, entry.committed)
    if entry.committed_ids[:shared] != entry.draft_ids[:shared]:
        raise _fail(where, "accepted drafts are what is committed", (entry.committed_ids, entry.draft_ids))


def _check_sequence(request: RequestTrace, entries: Sequence[RoundTrace]) -> None:
    where = f"request {request.id!r}"
    numbers = [entry.round for entry in entries]
    if numbers != list(range(len(entries))):
        raise _fail(where, f"its rounds are numbered 0..{len(entries) - 1} in order", numbers[:8])
    anchor = request.prompt_tokens + request.first_token - 1
    for entry in entries:
        if entry.anchor_position != anchor:
            raise _fail(f"{where} round {entry.round}", f"the anchor is at position {anchor}", entry.anchor_position)
        anchor += entry.committed
    for earlier, later in pairwise(entries):
        if later.step <= earlier.step:
            raise _fail(f"{where} round {later.round}", "rounds of a request are in different steps", later.step)


def _check_output(request: RequestTrace, entries: Sequence[RoundTrace]) -> None:
    """first_token + sum committed = output tokens, and the output is what was committed."""
    where = f"request {request.id!r}"
    if request.first_token not in (0, 1):
        raise _fail(where, "the prefill emits 0 or 1 tokens", request.first_token)
    total = request.first_token + sum(entry.committed for entry in entries)
    if total != len(request.output_ids):
        raise _fail(where, f"first token + committed = {total} output tokens", len(request.output_ids))
    committed = tuple(token for entry in entries for token in entry.committed_ids)
    if request.output_ids[request.first_token :] != committed:
        raise _fail(where, "the output is the committed tokens in order", "other tokens")
    if len(request.output_ids) > request.max_new_tokens:
        raise _fail(where, f"at most {request.max_new_tokens} new tokens", len(request.output_ids))


def _check_stop(request: RequestTrace, entries: Sequence[RoundTrace]) -> None:
    where = f"request {request.id!r}"
    for entry in entries[:-1]:
        if entry.stop_reason is not None:
            raise _fail(f"{where} round {entry.round}", "only the last round stops a request", entry.stop_reason)
    last = entries[-1].stop_reason if entries else request.stop_reason
    if request.status == Status.OK and last != request.stop_reason:
        raise _fail(where, f"the request stops as its last round does ({last})", request.stop_reason)
    if request.stop_reason == StopReason.STOP_TOKEN and request.stop_ids and request.output_ids:
        inner, final = request.output_ids[:-1], request.output_ids[-1]
        if final not in request.stop_ids or any(token in request.stop_ids for token in inner):
            raise _fail(where, "the stop token is the last token and the first of its kind", request.output_ids[-4:])


def _ordered(values: Iterable[float | None]) -> bool:
    known = [value for value in values if value is not None]
    return all(a <= b + TIME_TOLERANCE_S for a, b in pairwise(known))


def _check_times(request: RequestTrace, rounds: int) -> None:
    where = f"request {request.id!r}"
    if len(request.token_times_s) != request.first_token + rounds:
        wanted = f"a time for each of {request.first_token + rounds} emissions"
        raise _fail(where, wanted, len(request.token_times_s))
    first = request.token_times_s[0] if request.token_times_s else None
    stated = request.first_token_s
    if first is None or stated is None:
        agree = first is stated
    else:
        agree = abs(first - stated) <= TIME_TOLERANCE_S
    if not agree:
        raise _fail(where, f"the first token became visible at {first}", stated)
    _check_moments(request)


def _check_moments(request: RequestTrace) -> None:
    moments = (request.arrival_s, request.admitted_s, *request.token_times_s, request.finish_s)
    if not _ordered(moments):
        raise _fail(f"request {request.id!r}", "arrival, admission, tokens and finish are in order", moments[:6])


def _check_histogram(rounds: Sequence[RoundTrace]) -> None:
    """Sum over the histogram of accepted = rounds, and its first moment = all accepted drafts."""
    histogram = accepted_histogram(np.array([entry.accepted for entry in rounds], dtype=np.int64))
    accepted = sum(entry.accepted for entry in rounds)
    seen = (int(histogram.sum()), int(histogram @ np.arange(len(histogram))))
    if seen != (len(rounds), accepted):
        raise _fail("histogram of accepted", f"(rounds, accepted drafts) are {(len(rounds), accepted)}", seen)


def _check_batches(trace: RunTrace) -> None:
    """Each step's decode rows and tokens are those of its rounds; a run that was cut short may have lost some."""
    rows: Counter[int] = Counter()
    tokens: Counter[int] = Counter()
    for entry in trace.rounds:
        rows[entry.step] += 1
        tokens[entry.step] += entry.verified + 1
    known = {step.step for step in trace.steps}
    for missing in sorted(set(rows) - known):
        raise _fail(f"step {missing}", f"its {rows[missing]} rounds have a step in the trace", "none")
    for step in trace.steps:
        seen, held = (rows[step.step], tokens[step.step]), (step.decode_rows, step.decode_tokens)
        if seen != held and not (trace.status != Status.OK and seen <= held):
            raise _fail(f"step {step.step}", f"(rows, tokens) of its rounds are {seen}", held)
