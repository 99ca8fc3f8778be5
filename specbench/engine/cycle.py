"""One decoding cycle over the rows as they are: packed, run, judged and handed back without padding."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from specbench.api import Drafter
from specbench.engine.batch import Batch, build_rows, features, only, pack, spread
from specbench.engine.random import StepRandom
from specbench.engine.scheduler import StepPlan
from specbench.engine.sequence import Sequence
from specbench.engine.upload import upload
from specbench.engine.verify import Judged, Verifier, pad_proposal
from specbench.modeling.causal_lm import ForwardOutput, PagedLM
from specbench.modeling.pool import KVPool
from specbench.types import Proposal, Rows, Verdict, VerifyPlan


@dataclass(frozen=True, slots=True)
class Parts:
    """What every cycle works with."""

    lm: PagedLM
    pool: KVPool
    drafter: Drafter
    verifier: Verifier
    rng: StepRandom
    domains: dict[str, int] = field(default_factory=dict)

    def rows(self, sequences: Seq[Sequence], *, lengths: Seq[int], last: Seq[int]) -> Rows:
        """Rows as tensors; ``lengths`` and ``last`` are as `Rows` defines them."""
        return build_rows(
            sequences,
            lengths=lengths,
            last=last,
            domains=self.domains,
            vocab_size=self.lm.vocab_size,
            device=self.lm.device,
        )

    def begin(self, admitted: Seq[Sequence]) -> None:
        """Tell the drafter of new requests."""
        if admitted:
            zeros = [0] * len(admitted)
            self.drafter.begin(self.rows(admitted, lengths=zeros, last=zeros))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the host learns of a cycle. Rows: the decode rows, then the prompts that ended; drafts of decode rows."""

    judged: Judged
    drafts: list[list[int]]  # [B][G]
    counts: list[int]  # [B]
    planned: list[int]  # [B]
    confidence: list[list[float]] | None
    states: Seq[str]  # the policy's reason of each decode row; empty where it decided nothing


class Cycle(Protocol):
    """The steps of a decoding cycle between schedule and bookkeeping, in this order."""

    rows: Rows  # the decode rows

    def limits(self, wanted: Tensor) -> Tensor:
        """[B] drafts that each row may take: what the policy wants, within the room left."""
        ...

    def propose(self, limits: Tensor) -> Proposal:
        """The drafter's proposal for the decode rows."""
        ...

    def verify(self, proposal: Proposal | None, plan: VerifyPlan | None) -> None:
        """The target's forward."""
        ...

    def judge(self) -> None:
        """Acceptance."""
        ...

    def commit(self) -> Verdict:
        """Hand the drafter what was committed; the decode rows' outcome."""
        ...

    def outcome(self) -> Outcome:
        """All of it on the host."""
        ...


def check_most(plan: VerifyPlan | None, planned: Seq[int]) -> None:
    """The policy keeps to what it said of the whole step before the host knew the lengths."""
    if plan is not None and plan.most is not None:
        assert sum(planned) <= plan.most, f"{sum(planned)} drafts are verified, the policy said at most {plan.most}"


class PlainCycle:
    """The rows as they are: every shape follows from what the host knows, which costs a look at each decision."""

    def __init__(self, parts: Parts, plan: StepPlan, room: list[int]) -> None:
        self._parts, self._plan, self._room = parts, plan, room
        decode = plan.decode
        self.rows = parts.rows(decode, lengths=[s.computed for s in decode], last=[s.output[-1] for s in decode])
        self._proposal: Proposal | None = None
        self._verify_plan: VerifyPlan | None = None
        self._batch: Batch
        self._out: ForwardOutput
        self._judged: Judged

    def limits(self, wanted: Tensor) -> Tensor:
        """See `Cycle`."""
        return torch.minimum(wanted, upload(self._room, device=self._parts.lm.device))

    def propose(self, limits: Tensor) -> Proposal:
        """The drafter's proposal for the rows that may draft, the others' empty: they cost nothing."""
        asked = [row for row, limit in enumerate(limits.tolist()) if limit]
        if not asked:
            return Proposal(self.rows.lengths.new_zeros(len(self.rows), 0), torch.zeros_like(limits))
        if len(asked) == len(self.rows):
            return self._parts.drafter.propose(self.rows, limits=limits, rng=self._parts.rng)
        at = upload(asked, dtype=torch.int64, device=limits.device)
        found = self._parts.drafter.propose(only(self.rows, asked, at), limits=limits[at], rng=self._parts.rng)
        return spread(found, at, rows=len(self.rows))

    def verify(self, proposal: Proposal | None, plan: VerifyPlan | None) -> None:
        """Pack anchors, drafts and prompt chunks flat and run them."""
        parts, decode, prefill = self._parts, self._plan.decode, self._plan.prefill
        self._proposal, self._verify_plan = proposal, plan
        emitting = [c.sequence for c in prefill if c.emits]
        full = pad_proposal(proposal, extra=len(emitting), like=self.rows.lengths)
        lengths = torch.zeros_like(full.counts)
        if plan is not None:
            lengths[: len(decode)] = plan.lengths
        self._full, self._lengths = full, lengths
        self._planned: list[int] = lengths[: len(decode)].tolist()
        if not emitting:
            self._judged_rows = self.rows
        else:
            everyone = [*decode, *emitting]
            anchors = [s.computed for s in decode] + [len(s.request.prompt_ids) - 1 for s in emitting]
            self._judged_rows = parts.rows(everyone, lengths=anchors, last=[0] * len(everyone))
        tokens = full.tokens[: len(decode)]
        batch = self._batch = pack(decode, self._planned, tokens, prefill, self.rows, parts.lm.device)
        self._out = parts.lm.forward(batch.token_ids, layout=batch.layout, pool=parts.pool, logits_at=batch.logits_at)

    def judge(self) -> None:
        """Acceptance, and the copy to the host that the following needs: it has the shape of what was accepted."""
        self._judged = self._parts.verifier.judge(
            self._out.logits,
            self._judged_rows,
            starts=self._batch.starts,
            proposal=self._full,
            lengths=self._lengths,
        )

    def commit(self) -> Verdict:
        """Accepted drafts of decode rows, and prompt chunks."""
        parts, plan, batch, judged = self._parts, self._plan, self._batch, self._judged
        count = len(plan.decode)
        found = judged.acceptance
        verdict = Verdict(found.accepted[:count], found.next_token[:count])
        if count:
            committed = features(
                batch,
                self._out.hidden,
                first=0,
                counts=[a + 1 for a in judged.accepted[:count]],
                next_ids=judged.next_token[:count],
                last_chunk=[True] * count,
            )
            parts.drafter.commit(self.rows, verdict=verdict, features=committed)
        if plan.prefill:
            emitted = iter(judged.next_token[count:])
            after = [next(emitted) if c.emits else _next_known(c.sequence, c.count) for c in plan.prefill]
            sequences = [c.sequence for c in plan.prefill]
            chunks = features(
                batch,
                self._out.hidden,
                first=count,
                counts=[c.count for c in plan.prefill],
                next_ids=after,
                last_chunk=[c.last for c in plan.prefill],
            )
            chunk_rows = parts.rows(sequences, lengths=[s.computed for s in sequences], last=after)
            parts.drafter.prefill(chunk_rows, chunks)
        return verdict

    def outcome(self) -> Outcome:
        """See `Cycle`."""
        drafts, counts, confidence = _on_host(self._proposal, len(self._plan.decode))
        check_most(self._verify_plan, self._planned)
        states = [] if self._verify_plan is None else self._verify_plan.states()
        return Outcome(self._judged, drafts, counts, self._planned, confidence, states)


def _next_known(sequence: Sequence, count: int) -> int:
    """The token after a chunk that emits nothing: the next prompt token, or the anchor of a re-prefill."""
    at = sequence.computed + count
    return sequence.tokens(at, at + 1)[0]


def _on_host(proposal: Proposal | None, rows: int) -> tuple[list[list[int]], list[int], list[list[float]] | None]:
    if proposal is None:
        return [[] for _ in range(rows)], [0] * rows, None
    confidence = None if proposal.confidence is None else proposal.confidence.tolist()
    return proposal.tokens.tolist(), proposal.counts.tolist(), confidence
