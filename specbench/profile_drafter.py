"""What drafting costs on this machine: proposals timed inside the real engine, by rows and by length."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from specbench.backends.engine import Contestant, build_engine
from specbench.engine.clock import WallClock
from specbench.engine.cost_table import RowCost
from specbench.engine.policies.fixed import FixedPolicy
from specbench.engine.target import Target
from specbench.errors import CapacityError
from specbench.types import Proposal, Request, Rows, Sampling

OnProgress = Callable[[int, int], None]
"""Called with the number of timings done and planned."""


@dataclass(frozen=True, slots=True)
class DraftTimings:
    """How much is measured: proposals for each of ``rows``, ``warmup`` of them not counted."""

    rows: Sequence[int]
    context: int  # prompt tokens a row
    max_context: int
    repeats: int
    warmup: int


def now(device: torch.device) -> float:
    """Seconds, once the device has done what it was asked."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def spread(values: Sequence[float]) -> float:
    """Interquartile range over the median; 0 with a single repeat."""
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / statistics.median(values)


class _Stopwatch:
    """A drafter that times its proposals once all rows of the batch draft at full length."""

    def __init__(self, drafter: Any, rows: int, length: int, device: torch.device) -> None:
        self._drafter, self._rows, self._length, self._device = drafter, rows, length, device
        self.seconds: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)

    def propose(self, rows: Rows, *, limits: Tensor, rng: Any) -> Proposal:
        """The drafter's own proposal."""
        full = len(rows) == self._rows and int(limits.min()) == self._length
        start = now(self._device)
        found: Proposal = self._drafter.propose(rows, limits=limits, rng=rng)
        spent = now(self._device) - start
        if full:
            self.seconds.append(spent)
        return found


class _Timed:
    """An engine of so many rows whose drafter is timed, a proposal at a time."""

    def __init__(
        self, target: Target, contestant: Contestant, rows: int, timings: DraftTimings, sampling: Sampling
    ) -> None:
        self._contestant, self._timings, self.rows = contestant, timings, rows
        watch: Any = _Stopwatch(contestant.drafter, rows, contestant.draft_length, target.lm.device)
        self._watch = watch
        self._engine = build_engine(
            target,
            replace(contestant, drafter=watch),
            max_rows=rows,
            max_context=timings.max_context,
            kv_memory_bytes=None,
            prefill_budget=rows * timings.context,
            clock=WallClock(),
        )
        generator = random.Random(0)
        for number in range(rows):
            prompt = tuple(generator.randrange(target.vocab_size) for _ in range(timings.context))
            self._engine.submit(
                Request(
                    id=f"profile/{number}",
                    number=number,
                    prompt_ids=prompt,
                    max_new_tokens=timings.max_context - timings.context,
                    sampling=sampling,
                    seed=0,
                    stop_ids=frozenset(),
                    ignore_eos=True,
                    task="profile",
                    domain="profile",
                )
            )

    def go_on(self) -> None:
        """Until the next proposal is timed. Errors: CapacityError where there is no room for another."""
        found, timings = self._watch.seconds, self._timings
        wanted = len(found) + 1
        while self._engine.has_work and len(found) < wanted:
            self._engine.poll()
        if len(found) < wanted:
            raise CapacityError(
                f"'{self._contestant.method}' drafted {len(found)} times at full length for {self.rows} rows in "
                f"{timings.max_context} tokens, {timings.warmup + timings.repeats} are timed; ask for fewer repeats"
            )

    @property
    def seconds(self) -> list[float]:
        """What counts."""
        timed: list[float] = self._watch.seconds[self._timings.warmup :]
        return timed


def profile_drafter(
    target: Target,
    build: Callable[[int], Contestant],
    timings: DraftTimings,
    *,
    sampling: Sampling,
    on_progress: OnProgress = lambda done, of: None,
) -> RowCost:
    """Time proposals on random prompts, at full length and of one draft a row.

    ``build`` gives a contestant for so many rows at most. All take turns, so that a slow minute hits all of them alike.
    Errors: CapacityError.
    """
    whole, single = list[_Timed](), list[_Timed]()
    for rows in timings.rows:
        whole.append(_Timed(target, build(rows), rows, timings, sampling))
        one = build(rows)
        if one.draft_length > 1:
            single.append(_Timed(target, replace(one, policy=FixedPolicy(1)), rows, timings, sampling))
    turns = timings.warmup + timings.repeats
    for turn in range(turns):
        for timed in (*whole, *single):
            timed.go_on()
        on_progress(turn + 1, turns)
    return RowCost(
        tuple(timings.rows),
        tuple(statistics.median(timed.seconds) for timed in whole),
        tuple(spread(timed.seconds) for timed in whole),
        draft_length=build(1).draft_length,
        single=tuple(statistics.median(timed.seconds) for timed in single),
    )
