"""Rows put into an engine with their contexts already computed, and decoding rounds timed on them.

The prompts' own forward is left out: keys, values and drafter features of the context are random, as what is computed
next costs the same whatever they hold. The drafter is told of the context through its own `prefill`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from specbench.engine.batch import build_rows
from specbench.engine.engine import Engine
from specbench.engine.sequence import Sequence as Running
from specbench.modeling.pool import KVPool, pages_for
from specbench.types import Features, Request, Rows, Sampling, StepTrace
from tests.gpu.timing import Budget, Timing, summary, wait

_FEATURE_BYTES = 2**31  # random features made at a time


def seat(engine: Engine, *, rows: int, context: int, sampling: Sampling | None = None) -> None:
    """Fill ``rows`` slots with requests that have ``context`` cached tokens and decode until they are ended."""
    noise = torch.Generator().manual_seed(0)
    ids = torch.randint(engine.lm.vocab_size, (context + rows,), generator=noise).tolist()
    for number in range(rows):
        engine.submit(
            Request(
                id=f"row-{number}",
                number=number,
                prompt_ids=tuple(ids[:context]),  # only its length is read
                max_new_tokens=engine.max_context - context,
                sampling=sampling or Sampling(),
                seed=0,
                stop_ids=frozenset(),
                ignore_eos=True,
                task="gpu-check",
                domain="gpu-check",
            )
        )
        sequence = engine.scheduler.waiting.pop()
        sequence.slot = engine.scheduler._free_slots.pop()
        pages = engine.pool.take(pages_for(context), row=sequence.slot)
        assert pages is not None, "the pool was sized for these rows"
        sequence.pages, sequence.computed, sequence.admission = pages, context, number
        sequence.output, sequence.first_token = [ids[context + number]], 1
        sequence.token_times_s, sequence.admitted_s = [0.0], 0.0
        engine.scheduler.running.append(sequence)
    fill(engine.pool)
    _tell(engine, rows=rows, context=context)


def fill(pool: KVPool) -> None:
    """Random keys and values everywhere: zeros may be read faster."""
    for tensor in (*pool.keys, *pool.values):
        tensor.normal_()


@torch.inference_mode()
def _tell(engine: Engine, *, rows: int, context: int) -> None:
    """The drafter's own state of the contexts, a few rows at a time."""
    taps, lm = engine.drafter.taps, engine.lm
    width = taps.count * int(lm.config.hidden_size)
    each = max(1, _FEATURE_BYTES // max(1, context * max(width, 1) * lm.dtype.itemsize))
    sequences = engine.scheduler.running

    def rows_of(some: Sequence[Running]) -> Rows:
        return build_rows(
            some,
            lengths=[0] * len(some),
            last=[s.output[-1] for s in some],
            domains={},
            vocab_size=lm.vocab_size,
            device=lm.device,
        )

    engine.drafter.begin(rows_of(sequences))
    for first in range(0, rows, each):
        some = sequences[first : first + each]
        hidden = torch.randn(len(some) * context, width, device=lm.device, dtype=lm.dtype)
        tokens = torch.randint(lm.vocab_size, (len(some) * context,), device=lm.device)
        bounds = tuple(range(0, len(some) * context + 1, context))
        engine.drafter.prefill(
            rows_of(some),
            Features(
                token_ids=tokens,
                next_ids=tokens.roll(-1),
                positions=torch.arange(context, device=lm.device).repeat(len(some)),
                hidden=hidden,
                row_index=torch.arange(len(some), device=lm.device).repeat_interleave(context),
                row_starts=torch.tensor(bounds, device=lm.device),
                row_starts_host=bounds,
                last_chunk=torch.ones(len(some), dtype=torch.bool, device=lm.device),
            ),
        )


def rounds_held(*, warmup: int, repeats: int, k: int) -> int:
    """Output tokens that ``warmup`` + ``repeats`` rounds may take, with room for a last one at full length."""
    return (warmup + repeats + 2) * (k + 1) + 1


class Bench:
    """A seated engine of which any number of rows can be put to work, each time from the same context on."""

    def __init__(self, engine: Engine, *, cached: int) -> None:
        self.engine, self._cached = engine, cached
        self._sequences = list(engine.scheduler.running)
        self._padded = engine.padded

    def use(self, rows: int, *, graphs: bool) -> None:
        """The first ``rows`` rows, set back to their cached context; ``graphs`` False: rounds as they are, unpadded.

        What the rounds before left behind the context is never read: keys, values and drafter states are bounded by a
        row's own length.
        """
        assert not graphs or self._padded is not None, "the engine was made without graphs"
        self.engine.padded = self._padded if graphs else None
        self.engine.scheduler.running[:] = self._sequences[:rows]
        for sequence in self.engine.scheduler.running:
            sequence.computed = self._cached
            del sequence.output[1:]

    def not_padded(self) -> str | None:
        """Why rounds that were to be padded were not, or not captured; None where all of them were."""
        assert self._padded is not None, "the engine was made with graphs"
        facts = self._padded.facts()
        reasons = [f"{name}: {count} steps" for name, count in facts["plain_steps"].items()]
        reasons += [f"{stage} was not captured: {why}" for stage, why in facts.get("not_captured", {}).items()]
        return "; ".join(reasons) or None


def rounds(engine: Engine, *, warmup: int, repeats: int, budget: Budget, least: int = 3) -> list[StepTrace]:
    """Steps of ``repeats`` decoding rounds after ``warmup`` ones; fewer where the budget ends, at least ``least``."""
    rows = len(engine.scheduler.running)
    for _ in range(warmup):
        engine.poll()
    wait(engine.lm.device)
    first, done = engine.recorder.step, 0
    while done < repeats and (done < least or budget.left() > 0):
        engine.poll()
        done += 1
    wait(engine.lm.device)
    found = [*engine.recorder.steps()[first:]]
    assert len(found) == done, "one step a poll"
    assert all(step.decode_rows == rows and step.prefill_tokens == 0 for step in found), "a row ended too early"
    return found


@dataclass(frozen=True, slots=True)
class Split:
    """A round's phases."""

    draft: Timing
    schedule: Timing
    verify: Timing
    accept: Timing
    other: Timing
    whole: Timing

    @classmethod
    def of(cls, steps: Sequence[StepTrace]) -> Split:
        """Medians over the steps."""
        names = ("draft_s", "schedule_s", "verify_s", "accept_s", "other_s", "total_s")
        return cls(*(summary([float(getattr(step, name)) for step in steps]) for name in names))

    def __iter__(self) -> Iterator[Timing]:
        return iter((self.draft, self.schedule, self.verify, self.accept, self.other, self.whole))
