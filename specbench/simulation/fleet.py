"""Equal replicas behind one queue-less router, each an engine on a clock of its own; a Backend of `specbench.api`.

A request goes to the replica with the fewest unfinished ones. A replica starts its next step when it has work, and what
the step says becomes visible at its end: the fleet hands events out in that order, moving the common clock along.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from specbench.engine.clock import VirtualClock
from specbench.simulation.engine import ReplayEngine
from specbench.simulation.replay import Scripted
from specbench.types import Request, RequestTrace, RoundTrace, RunTrace, Sampling, StepTrace, TokenEvent


@dataclass(order=True, slots=True)
class _Ending:
    """A step that ends at ``end_s`` and what it will have said."""

    end_s: float
    replica: int
    events: Sequence[TokenEvent] = field(compare=False)


class Fleet:
    """Serves requests on all replicas in virtual time."""

    def __init__(self, engines: Sequence[ReplayEngine], clock: VirtualClock) -> None:
        self._engines, self._clock = engines, clock
        self._open = [0] * len(engines)  # unfinished requests
        self._busy = [False] * len(engines)  # in a step that has not ended yet
        self._owner: dict[str, int] = {}
        self._endings: list[_Ending] = []

    def submit(self, request: Request, *, warmup: bool = False, arrival_s: float | None = None) -> None:
        """Send the request to the replica with the least to do, the first of equals."""
        chosen = min(range(len(self._engines)), key=lambda index: (self._open[index], index))
        engine = self._engines[chosen]
        at_s = self._clock.now() if arrival_s is None else arrival_s
        if not self._open[chosen]:
            engine.clock.sleep_until(at_s)
        engine.submit(request, warmup=warmup, arrival_s=at_s)
        self._open[chosen] += 1
        self._owner[request.id] = chosen

    def poll(self) -> Sequence[TokenEvent]:
        """Let every replica with work begin its step, and move on to the end of the step that ends first."""
        for index, engine in enumerate(self._engines):
            if not self._busy[index] and self._open[index]:
                events = engine.poll()
                self._busy[index] = True
                heapq.heappush(self._endings, _Ending(engine.clock.now(), index, events))
        if not self._endings:
            return []
        ending = heapq.heappop(self._endings)
        self._busy[ending.replica] = False
        self._clock.sleep_until(ending.end_s)
        self._open[ending.replica] -= sum(event.finished for event in ending.events)
        return ending.events

    def close(self) -> RunTrace:
        """Everything that all replicas recorded, as one trace: steps in order of their beginning."""
        return merged([engine.close() for engine in self._engines], wall_s=self._clock.now())


def merged(traces: Sequence[RunTrace], *, wall_s: float) -> RunTrace:
    """The traces of replicas as one. ``concurrency`` is that of all together."""
    order = sorted(((step.start_s, index, step.step) for index, trace in enumerate(traces) for step in trace.steps))
    number = {(index, step): position for position, (_, index, step) in enumerate(order)}
    steps: list[StepTrace] = []
    rounds: list[RoundTrace] = []
    requests: list[RequestTrace] = []
    for index, trace in enumerate(traces):
        steps += [replace(step, step=number[index, step.step]) for step in trace.steps]
        rounds += [replace(entry, step=number[index, entry.step]) for entry in trace.rounds]
        requests += trace.requests
    return replace(
        traces[0],
        requests=tuple(sorted(requests, key=lambda request: (request.arrival_s, request.number))),
        rounds=tuple(sorted(rounds, key=lambda entry: (entry.step, entry.request))),
        steps=tuple(sorted(steps, key=lambda step: step.step)),
        concurrency=sum(trace.concurrency for trace in traces),
        wall_s=wall_s,
        status=next((trace.status for trace in traces if trace.status != "ok"), "ok"),
    )


def as_recorded(trace: RunTrace, requests: Mapping[int, Scripted], *, sampling: Sampling) -> RunTrace:
    """The trace under the recorded prompts' hashes and sampling, without values that only the stand-in target has."""

    def restored(request: RequestTrace) -> RequestTrace:
        source = requests[request.number].source
        return replace(request, prompt_hash=source.prompt_hash, first_token_gap=None)

    return replace(
        trace,
        requests=tuple(restored(request) for request in trace.requests),
        rounds=tuple(replace(entry, top2_gap=None) for entry in trace.rounds),
        sampling=sampling,
    )
