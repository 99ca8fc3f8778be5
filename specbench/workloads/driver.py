"""One driver for every load pattern: starts conversations when they are due and carries them turn by turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from specbench.api import Arrivals, Backend, Clock
from specbench.errors import CapacityError
from specbench.types import Prompt, Request, RunTrace

BuildRequest = Callable[[Prompt, Sequence[tuple[int, ...]]], Request]
"""The request of a conversation's next turn, from the output tokens of its earlier turns."""

_NAP_S = 0.25  # longest sleep between two looks at the stop flag


@dataclass(frozen=True, slots=True)
class Skipped:
    """A turn that was never submitted, and why."""

    task: str
    prompt: str
    turn: int  # 0-based
    reason: str


@dataclass(frozen=True, slots=True)
class DriveProgress:
    """How far a cell is. Turns that were skipped count as done; warm-up requests count as nothing."""

    done: int
    total: int
    tokens: int
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the backend measured and what was never asked of it."""

    trace: RunTrace
    skipped: tuple[Skipped, ...]
    interrupted: bool


@dataclass(slots=True)
class _Talk:
    prompt: Prompt
    answers: list[tuple[int, ...]] = field(default_factory=list)
    output: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _State:
    """What is in flight while one cell is driven."""

    waiting: deque[Prompt]
    total: int
    talks: dict[str, _Talk] = field(default_factory=dict)  # by the id of the outstanding request
    skipped: list[Skipped] = field(default_factory=list)
    done: int = 0
    tokens: int = 0

    def skip_rest(self, talk: _Talk, *, first: int, reason: str) -> None:
        for turn in range(first, len(talk.prompt.turns)):
            self.skipped.append(Skipped(talk.prompt.task, talk.prompt.id, turn, reason))
            self.done += 1


def drive(
    backend: Backend,
    *,
    conversations: Sequence[Prompt],
    build: BuildRequest,
    arrivals: Arrivals,
    clock: Clock,
    warmups: Sequence[Request] = (),
    on_progress: Callable[[DriveProgress], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Run all conversations to their end, or until ``stop`` says so, and close the backend.

    Warm-up requests run first and to their end; arrival times count from then on. A request arrives when the pattern
    says, however late the backend is; a later turn arrives when the turn before it has ended. A turn that does not fit
    the context, and the turns after one that failed, are skipped and reported.
    """
    _warm_up(backend, warmups, stop)
    state = _State(deque(conversations), total=sum(len(prompt.turns) for prompt in conversations))
    origin = clock.now()
    while (state.waiting or state.talks) and not stop():
        _admit(backend, state, build, arrivals, now_s=clock.now(), origin_s=origin)
        if state.talks:
            _advance(backend, state, build)
        elif state.waiting:
            _sleep(clock, arrivals, origin_s=origin)
        if on_progress is not None:
            on_progress(DriveProgress(state.done, state.total, state.tokens, clock.now() - origin))
    interrupted = bool(state.waiting or state.talks)
    return Outcome(backend.close(), tuple(state.skipped), interrupted)


def _warm_up(backend: Backend, warmups: Sequence[Request], stop: Callable[[], bool]) -> None:
    for request in warmups:
        backend.submit(request, warmup=True)
    pending = {request.id for request in warmups}
    while pending and not stop():
        pending -= {event.request_id for event in backend.poll() if event.finished}


def _admit(
    backend: Backend, state: _State, build: BuildRequest, arrivals: Arrivals, *, now_s: float, origin_s: float
) -> None:
    while state.waiting:
        due_s = arrivals.next_s()
        at_s = now_s - origin_s if due_s is None else due_s
        if at_s > now_s - origin_s:
            return
        count = arrivals.due(at_s, in_flight=len(state.talks))
        if count == 0:
            return
        for _ in range(min(count, len(state.waiting))):
            talk = _Talk(state.waiting.popleft())
            _submit(backend, state, build, talk, arrival_s=None if due_s is None else origin_s + due_s)


def _submit(backend: Backend, state: _State, build: BuildRequest, talk: _Talk, *, arrival_s: float | None) -> None:
    turn = len(talk.answers)
    try:
        request = build(talk.prompt, talk.answers)
    except CapacityError as error:
        state.skip_rest(talk, first=turn, reason=str(error))
        return
    assert request.id not in state.talks, f"request id {request.id} is in flight twice"
    state.talks[request.id] = talk
    backend.submit(request, arrival_s=arrival_s)


def _advance(backend: Backend, state: _State, build: BuildRequest) -> None:
    for event in backend.poll():
        talk = state.talks.get(event.request_id)
        if talk is None:  # the last words of a warm-up that a stop cut short
            continue
        talk.output += event.token_ids
        state.tokens += len(event.token_ids)
        if not event.finished:
            continue
        del state.talks[event.request_id]
        state.done += 1
        if event.error is not None:
            turn = len(talk.answers)
            state.skip_rest(talk, first=turn + 1, reason=f"turn {turn + 1} failed: {event.error}")
            continue
        talk.answers.append(tuple(talk.output))
        talk.output = []
        if len(talk.answers) < len(talk.prompt.turns):
            _submit(backend, state, build, talk, arrival_s=None)


def _sleep(clock: Clock, arrivals: Arrivals, *, origin_s: float) -> None:
    due_s = arrivals.next_s()
    if due_s is not None:
        clock.sleep_until(min(origin_s + due_s, clock.now() + _NAP_S))
