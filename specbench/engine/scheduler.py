"""Continuous batching: which sequences run in a step, and with which pages.

Decoding rows come first, then prompts in chunks up to the prefill budget, then admissions in order of arrival. When
the pool is full the most recently admitted sequence gives up its pages and is recomputed later.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from specbench.engine.sequence import Sequence
from specbench.modeling.pool import KVPool, pages_for


@dataclass(frozen=True, slots=True)
class Chunk:
    """``count`` prompt tokens of a sequence, from its ``computed`` on."""

    sequence: Sequence
    count: int

    @property
    def last(self) -> bool:
        """Whether the prefill ends with this chunk."""
        return self.sequence.computed + self.count >= self.sequence.prefill_length

    @property
    def emits(self) -> bool:
        """The chunk ends a first prefill: the target's next token is the first output token."""
        return self.last and not self.sequence.output


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What runs in one step. ``admitted`` sequences start with this step's first chunk."""

    decode: list[Sequence]
    prefill: list[Chunk]
    admitted: list[Sequence]
    preempted_slots: list[int]


class Scheduler:
    """Owns slots, pages and the two queues."""

    def __init__(self, pool: KVPool, *, max_rows: int, prefill_budget: int, draft_length: int) -> None:
        self.pool = pool
        self.prefill_budget = prefill_budget
        self.draft_length = draft_length
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # in admission order
        self._free_slots = list(range(max_rows - 1, -1, -1))
        self._admissions = 0

    @property
    def has_work(self) -> bool:
        """A sequence waits or runs."""
        return bool(self.waiting or self.running)

    def plan(self, now_s: float) -> StepPlan:
        """Choose the step's rows; pages for every token they may write are held afterwards."""
        preempted: list[int] = []
        decode: list[Sequence] = []
        for sequence in list(self.running):
            if sequence.slot is not None and sequence.decoding:
                drafts = min(self.draft_length, max(sequence.room - 1, 0))
                if self._reserve(sequence, sequence.computed + 1 + drafts, preempted):
                    decode.append(sequence)
        decode = [s for s in decode if s.slot is not None]  # a later reservation may have preempted an earlier pick
        budget = self.prefill_budget
        prefill: list[Chunk] = []
        for sequence in list(self.running):
            if sequence.slot is None or sequence.decoding or budget <= 0:
                continue
            count = min(budget, sequence.prefill_length - sequence.computed)
            if self._reserve(sequence, sequence.computed + count, preempted):
                prefill.append(Chunk(sequence, count))
                budget -= count
        prefill = [c for c in prefill if c.sequence.slot is not None]
        decode = sorted((s for s in decode if s.slot is not None), key=lambda s: s.slot or 0)  # as their pages lie
        admitted = self._admit(prefill, budget, now_s) if not preempted else []
        assert decode or prefill or not self.running, "running sequences but nothing to do"
        return StepPlan(decode, prefill, admitted, preempted)

    def _admit(self, prefill: list[Chunk], budget: int, now_s: float) -> list[Sequence]:
        admitted: list[Sequence] = []
        if not (self.waiting and self._free_slots and budget > 0):
            return admitted
        promised = sum(_promised(s) for s in self.running)
        while self.waiting and self._free_slots and budget > 0:
            sequence = self.waiting[0]
            whole = sequence.prefill_length + 1 + min(self.draft_length, max(sequence.room - 1, 0))
            if pages_for(whole) > self.pool.num_free - promised:
                break
            self.waiting.popleft()
            sequence.slot = self._free_slots.pop()
            sequence.admission = self._admissions
            self._admissions += 1
            if sequence.admitted_s is None:
                sequence.admitted_s = now_s
            self.running.append(sequence)
            count = min(budget, sequence.prefill_length)
            taken = self.pool.take(pages_for(count), row=sequence.slot)
            assert taken is not None, "admission checked the free pages"
            sequence.pages = taken
            promised += _promised(sequence)
            prefill.append(Chunk(sequence, count))
            budget -= count
            admitted.append(sequence)
        return admitted

    def _reserve(self, sequence: Sequence, tokens: int, preempted: list[int]) -> bool:
        """Hold pages for ``tokens`` tokens of a running sequence, preempting newer ones; False: it was preempted."""
        while True:
            missing = pages_for(tokens) - len(sequence.pages)
            if missing <= 0:
                return True
            assert sequence.slot is not None, "a running sequence has a slot"
            taken = self.pool.take(missing, row=sequence.slot, held=len(sequence.pages))
            if taken is not None:
                sequence.pages += taken
                return True
            victim = max(self.running, key=lambda s: s.admission)
            assert len(self.running) > 1, "the pool holds at least one longest sequence"
            preempted.append(self._preempt(victim))
            if victim is sequence:
                return False

    def _preempt(self, victim: Sequence) -> int:
        slot = self._vacate(victim)
        victim.preemptions += 1
        self.waiting.appendleft(victim)
        return slot

    def finish(self, sequence: Sequence) -> int:
        """Take a sequence out of the running ones; returns the slot it held."""
        return self._vacate(sequence)

    def _vacate(self, sequence: Sequence) -> int:
        slot = sequence.slot
        assert slot is not None, "only running sequences hold a slot"
        self.running.remove(sequence)
        self.pool.give_back(sequence.pages)
        sequence.pages, sequence.slot, sequence.computed = [], None, 0
        self._free_slots.append(slot)
        return slot


def _promised(sequence: Sequence) -> int:
    """Pages that an admitted prompt still needs for its remaining chunks."""
    return 0 if sequence.decoding else max(pages_for(sequence.prefill_length + 1) - len(sequence.pages), 0)
