"""The one decode loop: batched, ragged, exact. Plain decoding is a drafter without drafts in this loop."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from specbench.api import Clock, Drafter, VerifyPolicy
from specbench.engine.batch import Batch, build_rows, features, pack
from specbench.engine.clock import PhaseTimer, WallClock
from specbench.engine.random import StepRandom
from specbench.engine.scheduler import Scheduler, StepPlan
from specbench.engine.sequence import Sequence
from specbench.engine.target import Target
from specbench.engine.trace import Recorder, cut, make_round
from specbench.engine.verify import Judged, Verifier, pad_proposal
from specbench.errors import CapacityError
from specbench.modeling.causal_lm import ForwardOutput
from specbench.modeling.pool import KVPool, size_pool
from specbench.types import (
    Load,
    Proposal,
    Request,
    Rows,
    RunTrace,
    Sampling,
    Status,
    TokenEvent,
    Verdict,
    VerifyPlan,
)


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
    ) -> None:
        """Take the memory.

        Args:
            max_rows: sequences decoded at once (slots).
            max_context: longest prompt + output, at most the target's own limit.
            kv_memory_bytes: budget of the page pool; None: what ``max_rows`` longest sequences need.
            prefill_budget: prompt tokens computed in one step.

        Errors: CapacityError when the budget does not hold one sequence of ``max_context`` tokens.
        """
        self.target, self.drafter, self.policy, self.method = target, drafter, policy, method
        self.lm = target.lm
        self.lm.set_taps(drafter.taps)
        self.max_rows = max_rows
        self.max_context = min(max_context, target.context_limit)
        pages = size_pool(
            self.lm.layer_shapes,
            dtype=self.lm.dtype,
            wanted_tokens=max_rows * (self.max_context + 15),
            longest=self.max_context,
            budget_bytes=kv_memory_bytes,
        )
        self.pool = KVPool(self.lm.layer_shapes, num_pages=pages, dtype=self.lm.dtype, device=self.lm.device)
        self.scheduler = Scheduler(
            self.pool, max_rows=max_rows, prefill_budget=prefill_budget, draft_length=policy.draft_length
        )
        self.clock = clock or WallClock()
        self.rng = StepRandom()
        self.verifier = Verifier(self.rng, synthetic=synthetic)
        self.timer = PhaseTimer(self.lm.device)
        self.recorder = Recorder(self.timer)
        self.sequences: list[Sequence] = []
        self.sampling = Sampling()
        self._domains: dict[str, int] = {}
        self._events: list[TokenEvent] = []

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
        started = self.clock.now()
        marks = self.timer.start()
        plan = self.scheduler.plan(started)
        self.drafter.release(plan.preempted_slots)
        rows = self._rows(plan)
        load = self._load(plan)
        self._begin(plan)
        self.timer.mark(marks, "other")

        limits = self._limits(plan, rows, load)
        self.timer.mark(marks, "schedule")
        proposal = self._propose(rows, limits) if limits is not None else None
        self.timer.mark(marks, "draft")
        verify_plan = self.policy.plan(rows, proposal=proposal, load=load) if proposal is not None else None
        self.timer.mark(marks, "schedule")

        batch, judged_rows, full, lengths = self._pack(plan, rows, proposal, verify_plan)
        out = self.lm.forward(batch.token_ids, layout=batch.layout, pool=self.pool, logits_at=batch.logits_at)
        self.timer.mark(marks, "verify")
        judged = self.verifier.judge(out.logits, judged_rows, starts=batch.starts, proposal=full, lengths=lengths)
        self.timer.mark(marks, "accept")

        self._commit(plan, rows, batch, out, judged)
        self.timer.mark(marks, "draft")
        if proposal is not None and verify_plan is not None:
            self.policy.observe(rows, plan=verify_plan, verdict=self._verdict(judged, len(plan.decode)))
        self.timer.mark(marks, "schedule")
        self._advance(plan, judged, proposal, lengths, [] if verify_plan is None else verify_plan.states())
        self.timer.mark(marks, "other")
        tokens = batch.token_ids.shape[0]
        prefill = load.prefill_tokens
        self.recorder.add_step(started, marks, (len(plan.decode), tokens - prefill, len(plan.prefill), prefill))

    # ------------------------------------------------------------------------------------------ its parts

    def _build(self, sequences: Seq[Sequence], *, lengths: Seq[int], last: Seq[int]) -> Rows:
        return build_rows(
            sequences,
            lengths=lengths,
            last=last,
            domains=self._domains,
            vocab_size=self.lm.vocab_size,
            device=self.lm.device,
        )

    def _rows(self, plan: StepPlan) -> Rows:
        decode = plan.decode
        return self._build(decode, lengths=[s.computed for s in decode], last=[s.output[-1] for s in decode])

    def _load(self, plan: StepPlan) -> Load:
        return Load(
            num_running=len(self.scheduler.running),
            num_waiting=len(self.scheduler.waiting),
            prefill_tokens=sum(c.count for c in plan.prefill),
            step=self.recorder.step,
        )

    def _begin(self, plan: StepPlan) -> None:
        if plan.admitted:
            zeros = [0] * len(plan.admitted)
            self.drafter.begin(self._build(plan.admitted, lengths=zeros, last=zeros))

    def _limits(self, plan: StepPlan, rows: Rows, load: Load) -> Tensor | None:
        """[B] drafts allowed: the policy's, within the room left; None when there is room for none."""
        if not plan.decode or self.policy.draft_length == 0:
            return None
        longest = min(self.max_context, self.drafter.max_context or self.max_context)
        room = [max(min(s.room - 1, longest - s.computed - 1), 0) for s in plan.decode]
        if not any(room):
            return None
        limits = self.policy.draft_limits(rows, load=load)
        return torch.minimum(limits, torch.tensor(room, dtype=torch.int64).to(self.lm.device, non_blocking=True))

    def _propose(self, rows: Rows, limits: Tensor) -> Proposal:
        """The drafter's proposal; an empty one where the policy lets no row draft."""
        if not bool(limits.any()):
            return Proposal(rows.lengths.new_zeros(len(rows), 0), torch.zeros_like(limits))
        return self.drafter.propose(rows, limits=limits, rng=self.rng)

    def _pack(
        self, plan: StepPlan, rows: Rows, proposal: Proposal | None, verify_plan: VerifyPlan | None
    ) -> tuple[Batch, Rows, Proposal, Tensor]:
        """The flat batch, the judged rows (decode rows and ending prefills), their drafts and verified counts."""
        emitting = [c.sequence for c in plan.prefill if c.emits]
        full = pad_proposal(proposal, extra=len(emitting), like=rows.lengths)
        lengths = torch.zeros_like(full.counts)
        if verify_plan is not None:
            lengths[: len(plan.decode)] = verify_plan.lengths
        verified = lengths[: len(plan.decode)].tolist()
        if not emitting:
            judged = rows
        else:
            everyone = [*plan.decode, *emitting]
            anchors = [s.computed for s in plan.decode] + [len(s.request.prompt_ids) - 1 for s in emitting]
            judged = self._build(everyone, lengths=anchors, last=[0] * len(everyone))
        batch = pack(plan.decode, verified, full.tokens[: len(plan.decode)], plan.prefill, rows, self.lm.device)
        return batch, judged, full, lengths

    def _verdict(self, judged: Judged, count: int) -> Verdict:
        return Verdict(judged.acceptance.accepted[:count], judged.acceptance.next_token[:count])

    def _commit(self, plan: StepPlan, rows: Rows, batch: Batch, out: ForwardOutput, judged: Judged) -> None:
        """Hand the drafter what was committed: accepted drafts of decode rows, and prompt chunks."""
        count = len(plan.decode)
        if count:
            found = features(
                batch,
                out.hidden,
                first=0,
                counts=[a + 1 for a in judged.accepted[:count]],
                next_ids=judged.next_token[:count],
                last_chunk=[True] * count,
            )
            self.drafter.commit(rows, verdict=self._verdict(judged, count), features=found)
        if plan.prefill:
            emitted = iter(judged.next_token[count:])
            after = [next(emitted) if c.emits else _next_known(c.sequence, c.count) for c in plan.prefill]
            sequences = [c.sequence for c in plan.prefill]
            found = features(
                batch,
                out.hidden,
                first=count,
                counts=[c.count for c in plan.prefill],
                next_ids=after,
                last_chunk=[c.last for c in plan.prefill],
            )
            chunk_rows = self._build(sequences, lengths=[s.computed for s in sequences], last=after)
            self.drafter.prefill(chunk_rows, found)

    def _advance(
        self, plan: StepPlan, judged: Judged, proposal: Proposal | None, lengths: Tensor, states: Seq[str]
    ) -> None:
        """Host bookkeeping: outputs, stops, rounds, events, released slots."""
        now = self.clock.now()
        drafts, counts, confidence = _on_host(proposal, len(plan.decode))
        planned = lengths.tolist()
        ended: list[Sequence] = []
        for row, sequence in enumerate(plan.decode):
            accepted = judged.accepted[row]
            kept, reason = self._cut(sequence, [*drafts[row][:accepted], judged.next_token[row]])
            self.recorder.rounds.append(
                make_round(
                    sequence,
                    step=self.recorder.step,
                    row=row,
                    drafts=drafts[row][: counts[row]],
                    planned=planned[row],
                    judged=judged,
                    committed=kept,
                    stop_reason=reason,
                    confidence=None if confidence is None else confidence[row],
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


def _next_known(sequence: Sequence, count: int) -> int:
    """The token after a chunk that emits nothing: the next prompt token, or the anchor of a re-prefill."""
    at = sequence.computed + count
    return sequence.tokens(at, at + 1)[0]


def _on_host(proposal: Proposal | None, rows: int) -> tuple[list[list[int]], list[int], list[list[float]] | None]:
    if proposal is None:
        return [[] for _ in range(rows)], [0] * rows, None
    confidence = None if proposal.confidence is None else proposal.confidence.tolist()
    return proposal.tokens.tolist(), proposal.counts.tolist(), confidence
