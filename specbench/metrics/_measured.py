"""The part of a trace that metrics count: rounds of finished requests that were not warm-up, as columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specbench.types import RequestTrace, RoundTrace, RunTrace, Status, StepTrace, StopReason

Scope = tuple[tuple[str, str], ...]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Measured:
    """Columns over the N measured rounds, and the M measured requests that ``request`` indexes."""

    requests: tuple[RequestTrace, ...]  # M
    rounds: tuple[RoundTrace, ...]  # N
    request: Ints  # [N]
    cluster: Ints  # [M], same prompt or conversation: the same number
    drafted: Ints  # [N]
    verified: Ints  # [N]
    accepted: Ints  # [N]
    committed: Ints  # [N]
    stop_draft: Ints  # [N], 1-based draft that was an accepted stop token, 0 where there was none

    @property
    def round_cluster(self) -> Ints:
        """[N], the prompt cluster of each round."""
        return self.cluster[self.request]

    def scopes(self) -> Iterator[tuple[Scope, Flags]]:
        """The whole run, then each domain, then each task: its scope and which requests [M] belong to it."""
        yield (), np.ones(len(self.requests), dtype=bool)
        for name in ("domain", "task"):
            values = [str(getattr(request, name)) for request in self.requests]
            for value in sorted(set(values)):
                yield ((name, value),), np.array([v == value for v in values], dtype=bool)

    def of(self, requests: Flags) -> Flags:
        """[N], which rounds belong to the chosen requests [M]."""
        return requests[self.request]


def is_measured(request: RequestTrace) -> bool:
    """Finished and not warm-up; failed and interrupted requests are counted elsewhere and averaged nowhere."""
    return request.status == Status.OK and not request.warmup


def stop_draft(entry: RoundTrace) -> int:
    """The 1-based draft at which an accepted stop token ended the round; 0 where none did (metrics.md, variants)."""
    stopped = entry.stop_reason == StopReason.STOP_TOKEN and entry.committed <= entry.accepted
    return entry.committed if stopped else 0


def clusters(requests: Sequence[RequestTrace]) -> Ints:
    """[M], the bootstrap's clusters: requests with the same prompt, and the turns of one conversation, go together.

    A conversation's turns have ids TASK/PROMPT/TURN; other ids are conversations of one turn.
    """
    root: dict[str, str] = {}

    def find(key: str) -> str:
        while root.setdefault(key, key) != key:
            key = root[key]
        return key

    for request in requests:
        root[find(f"prompt {request.prompt_hash or request.id}")] = find(_conversation(request))
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(find(_conversation(r)), len(numbers)) for r in requests], dtype=np.int64)


def _conversation(request: RequestTrace) -> str:
    name, _, turn = request.id.rpartition("/")
    whole = turn.isdecimal() and name.startswith(f"{request.task}/")
    return f"conversation {name if whole else request.id}"


def measured(trace: RunTrace) -> Measured:
    """The measured requests and rounds of a trace, in the trace's order."""
    requests = tuple(r for r in trace.requests if is_measured(r))
    index = {request.id: i for i, request in enumerate(requests)}
    rounds = tuple(r for r in trace.rounds if r.request in index)

    def column(values: list[int]) -> Ints:
        return np.array(values, dtype=np.int64)

    return Measured(
        requests=requests,
        rounds=rounds,
        request=column([index[r.request] for r in rounds]),
        cluster=clusters(requests),
        drafted=column([r.drafted for r in rounds]),
        verified=column([r.verified for r in rounds]),
        accepted=column([r.accepted for r in rounds]),
        committed=column([r.committed for r in rounds]),
        stop_draft=column([stop_draft(r) for r in rounds]),
    )


def steps_by_number(trace: RunTrace) -> dict[int, StepTrace]:
    """Steps by their number."""
    return {step.step: step for step in trace.steps}
