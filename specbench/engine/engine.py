"""The one decode loop: batched, ragged, exact. Plain decoding is a drafter without drafts in this loop."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

import torch

from specbench.api import Clock, Drafter, VerifyPolicy
from specbench.engine.clock import PhaseTimer, WallClock
from specbench.engine.cycle import Cycle, Outcome, Parts, PlainCycle
from specbench.engine.graphs import GraphSettings, kept_bytes
from specbench.engine.padded import PaddedLoop
from specbench.engine.random import StepRandom
from specbench.engine.scheduler import Scheduler, StepPlan
from specbench.engine.sequence import Sequence
from specbench.engine.sizing import free_bytes, pool_budget, shared_budget
from specbench.engine.target import Target
from specbench.engine.trace import Recorder, cut, make_round
from specbench.engine.verify import Verifier
from specbench.errors import CapacityError
from specbench.modeling.padded_layout import SPARE_PAGES
from specbench.modeling.pool import KVPool, pages_for, pool_dtype, size_pool
from specbench.types import Load, Request, RunTrace, Sampling, Status, TokenEvent


class Engine:
    """Serves requests with one target, one drafter and one verification policy; a Backend of `specbench.api`."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        policy: VerifyPolicy,
        *,
        max_rows: int,
        max_context: int,
        kv_memory_bytes: int | None = None,
        prefill_budget: int = 512,
        clock: Clock | None = None,
        method: str = "",
        synthetic: Seq[float] | None = None,
        graphs: GraphSettings | None = None,
        free_memory: Callable[[torch.device], int | None] = free_bytes,
    ) -> None:
        """Take the memory.

        Args:
            max_rows: sequences decoded at once (slots).
            max_context: longest prompt + output, at most the target's own limit.
            kv_memory_bytes: budget of the page pool; None: what ``max_rows`` longest sequences need, within what
                ``free_memory`` leaves of the device's.
            prefill_budget: prompt tokens computed in one step.
            graphs: pad steps to fixed shapes, captured as graphs on a CUDA device; None: every step as it is. The
                drafter then has one slot more than ``max_rows``.

        Errors: CapacityError when the budget does not hold one sequence of ``max_context`` tokens.
        """
        self.target, self.drafter, self.policy, self.method = target, drafter, policy, method
        self.lm = target.lm
        self.lm.set_taps(drafter.taps)
        self.max_rows = max_rows
        self.max_context = min(max_context, target.context_limit)
        if kv_memory_bytes is None:
            kv_memory_bytes = self._free_budget(free_memory, graphs)
        wanted = max_rows * (self.max_context + 15)
        held = pool_dtype(
            self.lm.layer_shapes,
            dtype=self.lm.dtype,
            device=self.lm.device,
            tokens=wanted,
            budget_bytes=kv_memory_bytes,
        )
        pages = size_pool(
            self.lm.layer_shapes,
            dtype=held,
            wanted_tokens=wanted,
            longest=self.max_context,
            budget_bytes=kv_memory_bytes,
        )
        self.pool = KVPool(
            self.lm.layer_shapes,
            num_pages=pages,
            dtype=held,
            device=self.lm.device,
            spare=0 if graphs is None else SPARE_PAGES,
            devices=self.lm.layer_devices,
            rows=max_rows if pages // max_rows >= pages_for(self.max_context) else None,
        )
        self.scheduler = Scheduler(
            self.pool, max_rows=max_rows, prefill_budget=prefill_budget, draft_length=policy.draft_length
        )
        self.clock = clock or WallClock()
        rng = StepRandom()
        self.parts = Parts(self.lm, self.pool, drafter, Verifier(rng, synthetic=synthetic), rng)
        self.padded: PaddedLoop | None = None
        if graphs is not None:
            self.padded = PaddedLoop(
                self.parts,
                graphs,
                width=policy.draft_length,
                max_rows=max_rows,
                max_context=self.max_context,
                may_skip=getattr(policy, "may_skip", False),
                capped=getattr(policy, "capped", False),
            )
        self.timer = PhaseTimer(self.lm.device)
        self.recorder = Recorder(self.timer)
        self.sequences: list[Sequence] = []
        self.sampling = Sampling()
        self._events: list[TokenEvent] = []

    def _free_budget(
        self, free_memory: Callable[[torch.device], int | None], graphs: GraphSettings | None
    ) -> int | None:
        """Bytes that the pool may take of what is free, None where memory is not counted."""
        first = free_memory(self.lm.device)
        if first is None:
            return None
        growth = getattr(self.drafter, "growth_bytes", lambda: 0)()
        drafts, vocab = self.policy.draft_length, self.lm.vocab_size
        if graphs is not None:
            growth += kept_bytes(
                graphs,
                max_rows=self.max_rows,
                max_context=self.max_context,
                drafts=drafts,
                vocab_size=vocab,
                capped=getattr(self.policy, "capped", False),
            )
        step = self.max_rows * (drafts + 1)
        free = {self.lm.device: pool_budget(first, growth=growth, step_tokens=step, vocab_size=vocab)}
        for device in set(self.lm.layer_devices) - {self.lm.device}:
            free[device] = pool_budget(free_memory(device) or 0, growth=0, step_tokens=step, vocab_size=0)
        parts = [shape.bytes_per_token(self.lm.dtype) for shape in self.lm.layer_shapes]
        return shared_budget(free, parts=parts, devices=self.lm.layer_devices)

    # ------------------------------------------------------------------------------------------ Backend

    @property
    def has_work(self) -> bool:
        """A request is waiting or running."""
        return self.scheduler.has_work

    def submit(self, request: Request, *, warmup: bool = False, arrival_s: float | None = None) -> None:
        """Queue a request. Errors: CapacityError when its prompt leaves no room in the context."""
        length = len(request.prompt_ids)
        if length >= self.max_context:
            raise CapacityError(
                f"request '{request.id}': prompt of {length} tokens does not fit the context of {self.max_context}; "
                "shorten the prompt or use a target with a longer context"
            )
        assert length > 0, "a prompt has at least one token"
        arrived = self.clock.now() if arrival_s is None else arrival_s
        limit = min(request.max_new_tokens, self.max_context - length)
        sequence = Sequence(request=request, limit=limit, warmup=warmup, arrival_s=arrived)
        self.sequences.append(sequence)
        self.sampling = request.sampling
        if limit == 0:
            sequence.finish_s, sequence.stop_reason = arrived, "length"
            self._events.append(TokenEvent(request.id, (), True))
        else:
            self.scheduler.waiting.append(sequence)

    def poll(self) -> list[TokenEvent]:
        """Run one cycle if there is work; what became visible."""
        if self.scheduler.has_work:
            self.step()
        events, self._events = self._events, []
        return events

    def close(self) -> RunTrace:
        """End the run; unfinished requests are marked as interrupted."""
        for sequence in self.sequences:
            if sequence.finish_s is None:
                sequence.status = Status.INTERRUPTED
        if self.lm.device.type == "cuda":
            torch.cuda.synchronize(self.lm.device)
        interrupted = any(s.status == Status.INTERRUPTED for s in self.sequences)
        return RunTrace(
            requests=tuple(s.trace() for s in self.sequences),
            rounds=tuple(self.recorder.rounds),
            steps=self.recorder.steps(),
            method=self.method,
            draft_length=self.policy.draft_length,
            sampling=self.sampling,
            concurrency=self.max_rows,
            wall_s=self.clock.now(),
            status=Status.INTERRUPTED if interrupted else Status.OK,
        )

    # ------------------------------------------------------------------------------------------ the cycle

    @torch.inference_mode()
    def step(self) -> None:
        """One decoding cycle: draft, plan, verify, accept, commit, record."""
        if self.lm.device.type == "cuda":  # kernels and events go to the current device, which each thread has its own
            torch.cuda.set_device(self.lm.device)
        started = self.clock.now()
        marks = self.timer.start()
        plan = self.scheduler.plan(started)
        self.drafter.release(plan.preempted_slots)
        load = self._load(plan)
        cycle, drafting = self._cycle(plan)
        self.parts.begin(plan.admitted)
        self.timer.mark(marks, "other")

        limits = cycle.limits(self.policy.draft_limits(cycle.rows, load=load)) if drafting else None
        self.timer.mark(marks, "schedule")
        proposal = cycle.propose(limits) if limits is not None else None
        self.timer.mark(marks, "draft")
        verify_plan = self.policy.plan(cycle.rows, proposal=proposal, load=load) if proposal is not None else None
        self.timer.mark(marks, "schedule")

        cycle.verify(proposal, verify_plan)
        self.timer.mark(marks, "verify")
        cycle.judge()
        self.timer.mark(marks, "accept")

        verdict = cycle.commit()
        self.timer.mark(marks, "draft")
        if verify_plan is not None:
            self.policy.observe(cycle.rows, plan=verify_plan, verdict=verdict)
        self.timer.mark(marks, "schedule")
        outcome = cycle.outcome()
        self._advance(plan, outcome)
        self.timer.mark(marks, "other")
        tokens, chunk_tokens = len(plan.decode) + sum(outcome.planned), load.prefill_tokens
        self.recorder.add_step(started, marks, (len(plan.decode), tokens, len(plan.prefill), chunk_tokens))

    # ------------------------------------------------------------------------------------------ its parts

    def _load(self, plan: StepPlan) -> Load:
        return Load(
            num_running=len(self.scheduler.running),
            num_waiting=len(self.scheduler.waiting),
            prefill_tokens=sum(c.count for c in plan.prefill),
            step=self.recorder.step,
        )

    def _cycle(self, plan: StepPlan) -> tuple[Cycle, bool]:
        """The step's cycle, padded where it can be, and whether there is room for any draft."""
        longest = min(self.max_context, self.drafter.max_context or self.max_context)
        room = [max(min(s.room - 1, longest - s.computed - 1, self.policy.draft_length), 0) for s in plan.decode]
        cycle = None if self.padded is None else self.padded.cycle(plan, room)
        return cycle or PlainCycle(self.parts, plan, room), any(room)

    def _advance(self, plan: StepPlan, outcome: Outcome) -> None:
        """Host bookkeeping: outputs, stops, rounds, events, released slots."""
        now = self.clock.now()
        judged, states = outcome.judged, outcome.states
        ended: list[Sequence] = []
        for row, sequence in enumerate(plan.decode):
            accepted, drafts = judged.accepted[row], outcome.drafts[row]
            kept, reason = self._cut(sequence, [*drafts[:accepted], judged.next_token[row]])
            self.recorder.rounds.append(
                make_round(
                    sequence,
                    step=self.recorder.step,
                    row=row,
                    drafts=drafts[: outcome.counts[row]],
                    planned=outcome.planned[row],
                    judged=judged,
                    committed=kept,
                    stop_reason=reason,
                    confidence=None if outcome.confidence is None else outcome.confidence[row],
                    policy_state=states[row] if states else "",
                )
            )
            sequence.rounds += 1
            sequence.computed += accepted + 1
            self._emit(sequence, kept, reason, now, ended)
        row = len(plan.decode)
        for chunk in plan.prefill:
            emits = chunk.emits
            chunk.sequence.computed += chunk.count
            if emits:
                gaps = judged.top2_gap
                chunk.sequence.first_token, chunk.sequence.first_token_gap = 1, None if gaps is None else gaps[row][0]
                kept, reason = self._cut(chunk.sequence, [judged.next_token[row]])
                self._emit(chunk.sequence, kept, reason, now, ended)
                row += 1
        if ended:
            self.drafter.release([self.scheduler.finish(s) for s in ended])

    def _cut(self, sequence: Sequence, tokens: list[int]) -> tuple[list[int], str | None]:
        stops = frozenset() if sequence.request.ignore_eos else sequence.request.stop_ids
        return cut(tokens, stops=stops, room=sequence.room)

    def _emit(
        self, sequence: Sequence, tokens: list[int], reason: str | None, now: float, ended: list[Sequence]
    ) -> None:
        sequence.output += tokens
        sequence.token_times_s.append(now)
        if reason is not None:
            sequence.finish_s, sequence.stop_reason = now, reason
            ended.append(sequence)
        self._events.append(TokenEvent(sequence.request.id, tuple(tokens), reason is not None))
