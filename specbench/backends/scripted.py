"""A backend without a model: scripted service times, acceptance and failures under any clock.

It serves requests as the engine does (slots, one prefill step, then rounds) and leaves honest rounds, so whatever is
computed from a trace can be checked by hand. Texts depend on the request alone, never on the script's speed.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from specbench.api import Clock
from specbench.types import (
    Request,
    RequestTrace,
    RoundTrace,
    RunTrace,
    Sampling,
    Status,
    StepTrace,
    StopReason,
    TokenEvent,
)


@dataclass(frozen=True, slots=True)
class Script:
    """What happens. Times in seconds; a step lasts the prefills in it plus, with rows decoding, one round.

    ``accepted`` gives how many of a round's drafts are accepted, from the request's id and the round; more than were
    drafted means all. ``failures`` maps request ids to the error that ends them when their prefill is due.
    ``stops`` maps request ids to the 0-based output position that holds their first stop token.
    """

    draft_length: int = 0
    accepted: Callable[[str, int], int] = lambda request, round_index: 0
    prefill_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    max_rows: int = 1
    failures: Mapping[str, str] = field(default_factory=dict)
    stops: Mapping[str, int] = field(default_factory=dict)


@lru_cache(maxsize=4096)
def scripted_token(number: int, position: int, *, avoid: frozenset[int] = frozenset()) -> int:
    """The output token of request ``number`` at output position ``position``; below 4096 unless those are avoided."""
    value = int.from_bytes(hashlib.sha256(f"{number}/{position}".encode()).digest()[:4], "little") % 4096
    while value in avoid:
        value += 1
    return value


@lru_cache(maxsize=4096)
def _prompt_hash(prompt_ids: tuple[int, ...]) -> str:
    return hashlib.sha256(",".join(map(str, prompt_ids)).encode()).hexdigest()


@dataclass(slots=True)
class _Row:
    request: Request
    warmup: bool
    arrival_s: float
    admitted_s: float | None = None
    finish_s: float | None = None
    times_s: list[float] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    first_token: int = 0
    rounds: int = 0
    status: str = Status.INTERRUPTED
    error: str | None = None
    stop_reason: str | None = None

    def trace(self) -> RequestTrace:
        request = self.request
        return RequestTrace(
            id=request.id,
            number=request.number,
            task=request.task,
            domain=request.domain,
            prompt_tokens=len(request.prompt_ids),
            prompt_hash=_prompt_hash(request.prompt_ids),
            max_new_tokens=request.max_new_tokens,
            seed=request.seed,
            status=self.status,
            error=self.error,
            warmup=self.warmup,
            arrival_s=self.arrival_s,
            admitted_s=self.admitted_s,
            first_token_s=self.times_s[0] if self.times_s else None,
            finish_s=self.finish_s,
            token_times_s=tuple(self.times_s),
            first_token=self.first_token,
            first_token_gap=None,
            output_ids=tuple(self.output),
            stop_reason=self.stop_reason,
            stop_ids=() if request.ignore_eos else tuple(sorted(request.stop_ids)),
        )


class ScriptedBackend:
    """Serves requests by a `Script`. A step advances the clock by what it costs."""

    def __init__(self, script: Script, *, clock: Clock, method: str = "scripted", sampling: Sampling | None = None):
        self._script = script
        self._clock = clock
        self._method = method
        self._sampling = sampling or Sampling()
        self._all: list[_Row] = []
        self._queue: deque[_Row] = deque()
        self._running: list[_Row] = []
        self._rounds: list[RoundTrace] = []
        self._steps: list[StepTrace] = []

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self._queue or self._running)

    def submit(self, request: Request, *, warmup: bool = False, arrival_s: float | None = None) -> None:
        """Queue a request; it arrived at ``arrival_s``, or now."""
        row = _Row(request, warmup, self._clock.now() if arrival_s is None else arrival_s)
        self._all.append(row)
        self._queue.append(row)

    def poll(self) -> Sequence[TokenEvent]:
        """One step: admit into free slots and prefill, one round for every row that was decoding already."""
        start_s = self._clock.now()
        decoding = list(self._running)
        admitted: list[_Row] = []
        while self._queue and len(self._running) + len(admitted) < self._script.max_rows:
            admitted.append(self._queue.popleft())
        if not decoding and not admitted:
            return []
        cost_s = len(admitted) * self._script.prefill_s
        if decoding:
            cost_s += self._script.draft_s + self._script.verify_s
        self._clock.sleep_until(start_s + cost_s)
        events = [self._round(row) for row in decoding]
        events += [self._prefill(row, admitted_s=start_s) for row in admitted]
        self._running = [row for row in decoding + admitted if row.finish_s is None]
        self._record_step(start_s, decoding, admitted)
        return events

    def close(self) -> RunTrace:
        """The trace so far; whatever is unfinished is marked interrupted."""
        rows = [row.trace() for row in self._all]
        return RunTrace(
            requests=tuple(rows),
            rounds=tuple(self._rounds),
            steps=tuple(self._steps),
            method=self._method,
            draft_length=self._script.draft_length,
            sampling=self._sampling,
            concurrency=self._script.max_rows,
            wall_s=self._clock.now(),
            status=Status.INTERRUPTED if self.has_work else Status.OK,
        )

    # ------------------------------------------------------------------------------------------------ one row

    def _token(self, row: _Row, position: int) -> int:
        request = row.request
        stop_at = self._script.stops.get(request.id)
        if stop_at == position and request.stop_ids:
            return min(request.stop_ids)
        return scripted_token(request.number, position, avoid=request.stop_ids)

    def _is_stop(self, row: _Row, token: int) -> bool:
        return not row.request.ignore_eos and token in row.request.stop_ids

    def _emit(self, row: _Row, tokens: list[int]) -> TokenEvent:
        now_s = self._clock.now()
        row.output += tokens
        if tokens:
            row.times_s.append(now_s)
        if tokens and self._is_stop(row, tokens[-1]):
            row.stop_reason = StopReason.STOP_TOKEN
        elif len(row.output) == row.request.max_new_tokens:
            row.stop_reason = StopReason.LENGTH
        if row.stop_reason is not None:
            row.finish_s, row.status = now_s, Status.OK
        return TokenEvent(row.request.id, tuple(tokens), finished=row.finish_s is not None)

    def _prefill(self, row: _Row, *, admitted_s: float) -> TokenEvent:
        row.admitted_s = admitted_s
        failure = self._script.failures.get(row.request.id)
        if failure is not None:
            row.finish_s, row.status, row.error = self._clock.now(), Status.FAILED, failure
            return TokenEvent(row.request.id, (), finished=True, error=failure)
        row.first_token = min(row.request.max_new_tokens, 1)
        return self._emit(row, [self._token(row, 0)][: row.first_token])

    def _round(self, row: _Row) -> TokenEvent:
        done, room = len(row.output), row.request.max_new_tokens - len(row.output)
        drafted = min(self._script.draft_length, room - 1)
        accepted = min(self._script.accepted(row.request.id, row.rounds), drafted)
        right = [self._token(row, done + k) for k in range(drafted + 1)]
        drafts = [token if k < accepted else token + 1 for k, token in enumerate(right[:drafted])]
        committed = right[: accepted + 1]
        stop = next((k for k, token in enumerate(committed) if self._is_stop(row, token)), None)
        if stop is not None:
            committed = committed[: stop + 1]
        event = self._emit(row, committed)
        self._rounds.append(
            RoundTrace(
                request=row.request.id,
                round=row.rounds,
                step=len(self._steps),
                anchor_position=len(row.request.prompt_ids) + done - 1,
                drafted=drafted,
                planned=drafted,
                verified=drafted,
                accepted=accepted,
                committed=len(committed),
                discarded=max(accepted - len(committed), 0),
                stop_reason=row.stop_reason,
                draft_ids=tuple(drafts),
                committed_ids=tuple(committed),
                policy_state="scripted",
            )
        )
        row.rounds += 1
        return event

    def _record_step(self, start_s: float, decoding: list[_Row], admitted: list[_Row]) -> None:
        drafts = sum(record.verified for record in self._rounds[-len(decoding) :]) if decoding else 0
        self._steps.append(
            StepTrace(
                step=len(self._steps),
                start_s=start_s,
                draft_s=self._script.draft_s if decoding else 0.0,
                schedule_s=0.0,
                verify_s=len(admitted) * self._script.prefill_s + (self._script.verify_s if decoding else 0.0),
                accept_s=0.0,
                other_s=0.0,
                decode_rows=len(decoding),
                decode_tokens=len(decoding) + drafts,
                prefill_rows=len(admitted),
                prefill_tokens=sum(len(row.request.prompt_ids) for row in admitted),
            )
        )


PLUGIN = ScriptedBackend
