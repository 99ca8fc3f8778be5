"""One driver for every load pattern: starts conversations when they are due and carries them turn by turn."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import ParamSpec, TypeVar

from specbench.api import Arrivals, Backend, Clock
from specbench.errors import CapacityError
from specbench.types import Prompt, Request, RunTrace

BuildRequest = Callable[[Prompt, Sequence[tuple[int, ...]]], Request]
"""The request of a conversation's next turn, from the output tokens of its earlier turns."""

P = ParamSpec("P")
T = TypeVar("T")

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


@dataclass(order=True, slots=True)
class _Pause:
    """A user who thinks until ``end_s`` and then goes on: with the next turn, or (None) with another conversation."""

    end_s: float
    number: int  # order of beginning, for equal ends
    talk: _Talk | None = field(compare=False)


@dataclass(slots=True)
class _State:
    """What is in flight while one cell is driven."""

    waiting: deque[Prompt]
    total: int
    talks: dict[str, _Talk] = field(default_factory=dict)  # by the id of the outstanding request
    pauses: list[_Pause] = field(default_factory=list)  # a heap
    rested_s: deque[float] = field(default_factory=deque)  # since when users without a conversation could start one
    skipped: list[Skipped] = field(default_factory=list)
    pauses_begun: int = 0
    done: int = 0
    tokens: int = 0

    @property
    def unfinished(self) -> bool:
        """Whether anything is still to be asked or answered; a user who only thinks is no work."""
        return bool(self.waiting or self.talks) or any(pause.talk is not None for pause in self.pauses)

    def pause(self, end_s: float, talk: _Talk | None) -> None:
        heapq.heappush(self.pauses, _Pause(end_s, self.pauses_begun, talk))
        self.pauses_begun += 1

    def skip_rest(self, prompt: Prompt, *, first: int, reason: str) -> None:
        for turn in range(first, len(prompt.turns)):
            self.skipped.append(Skipped(prompt.task, prompt.id, turn, reason))
            self.done += 1


def driving(
    backend: Backend,
    *,
    conversations: Sequence[Prompt],
    build: BuildRequest,
    arrivals: Arrivals,
    clock: Clock,
    warmups: Sequence[Request] = (),
    on_progress: Callable[[DriveProgress], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Generator[int, None, Outcome]:
    """Run all conversations, a look at the backend at a time: yields the output tokens so far, returns the outcome.

    Warm-up requests run first and to their end; arrival times count from then on. A request arrives when the pattern
    says, however late the backend is, and waits in a queue without bound; a later turn arrives when the turn before it
    has ended and its user has thought. A turn that does not fit the context, the turns after one that failed, and
    conversations for which the pattern has no arrival are skipped and reported.
    """
    yield from _warm_up(backend, warmups, stop)
    state = _State(deque(conversations), total=sum(len(prompt.turns) for prompt in conversations))
    origin = clock.now()
    while state.unfinished and not stop():
        _wake(backend, state, build, now_s=clock.now())
        _admit(backend, state, build, arrivals, now_s=clock.now(), origin_s=origin)
        if state.talks:
            _advance(backend, state, build, arrivals, clock)
        elif state.unfinished:
            _sleep(clock, state, arrivals, origin_s=origin)
        if on_progress is not None:
            on_progress(DriveProgress(state.done, state.total, state.tokens, clock.now() - origin))
        yield state.tokens
    interrupted = state.unfinished
    trace = replace(backend.close(), paced=arrivals.open_loop or arrivals.think_time_s > 0)
    return Outcome(trace, tuple(state.skipped), interrupted)


def finished(steps: Generator[object, None, T]) -> T:
    """What a generator returns, once it has been gone through."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found


def _at_once(steps: Callable[P, Generator[object, None, T]]) -> Callable[P, T]:
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return finished(steps(*args, **kwargs))

    return run


drive = _at_once(driving)
"""`driving` to its end."""


def _warm_up(backend: Backend, warmups: Sequence[Request], stop: Callable[[], bool]) -> Generator[int, None, None]:
    for request in warmups:
        backend.submit(request, warmup=True)
    pending = {request.id for request in warmups}
    while pending and not stop():
        pending -= {event.request_id for event in backend.poll() if event.finished}
        yield 0


def _wake(backend: Backend, state: _State, build: BuildRequest, *, now_s: float) -> None:
    """Users who have thought enough ask again: their request arrived when the pause ended, not when it was noticed."""
    while state.pauses and state.pauses[0].end_s <= now_s:
        pause = heapq.heappop(state.pauses)
        if pause.talk is None or not _submit(backend, state, build, pause.talk, arrival_s=pause.end_s):
            state.rested_s.append(pause.end_s)


def _admit(
    backend: Backend, state: _State, build: BuildRequest, arrivals: Arrivals, *, now_s: float, origin_s: float
) -> None:
    while state.waiting:
        due_s = arrivals.next_s()
        at_s = now_s - origin_s if due_s is None else due_s
        if at_s > now_s - origin_s:
            return
        count = arrivals.due(at_s, in_flight=len(state.talks) + len(state.pauses))
        if count == 0:
            return
        for _ in range(min(count, len(state.waiting))):
            arrival_s = None if due_s is None else origin_s + due_s
            if state.rested_s:
                arrival_s = state.rested_s.popleft()
            _submit(backend, state, build, _Talk(state.waiting.popleft()), arrival_s=arrival_s)


def _submit(backend: Backend, state: _State, build: BuildRequest, talk: _Talk, *, arrival_s: float | None) -> bool:
    """Ask the next turn; False: it does not fit, and the conversation is over."""
    turn = len(talk.answers)
    try:
        request = build(talk.prompt, talk.answers)
    except CapacityError as error:
        state.skip_rest(talk.prompt, first=turn, reason=str(error))
        return False
    assert request.id not in state.talks, f"request id {request.id} is in flight twice"
    state.talks[request.id] = talk
    backend.submit(request, arrival_s=arrival_s)
    return True


def _advance(backend: Backend, state: _State, build: BuildRequest, arrivals: Arrivals, clock: Clock) -> None:
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
        goes_on = event.error is None and len(talk.answers) + 1 < len(talk.prompt.turns)
        if event.error is not None:
            turn = len(talk.answers)
            state.skip_rest(talk.prompt, first=turn + 1, reason=f"turn {turn + 1} failed: {event.error}")
        talk.answers.append(tuple(talk.output))
        talk.output = []
        if arrivals.think_time_s > 0:
            state.pause(clock.now() + arrivals.think_time_s, talk if goes_on else None)
        elif goes_on:
            _submit(backend, state, build, talk, arrival_s=None)


def _sleep(clock: Clock, state: _State, arrivals: Arrivals, *, origin_s: float) -> None:
    """Wait for the next arrival, or give up what will never arrive."""
    due_s = arrivals.next_s()
    times_s = [origin_s + due_s] if due_s is not None and state.waiting else []
    times_s += [pause.end_s for pause in state.pauses[:1]]
    if times_s:
        clock.sleep_until(min(*times_s, clock.now() + _NAP_S))
        return
    while state.waiting:
        state.skip_rest(state.waiting.popleft(), first=0, reason="the load pattern has no further arrivals")
