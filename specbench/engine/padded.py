"""Padded decoding cycles: fixed shapes on fixed memory, and one look at the device, at the end.

Drafting, the target's forward and the commit run on padded rows as stages that can be captured (see
`specbench.engine.graphs`); planning and judging run on the decode rows as they are. The host does not know the verified
lengths before it is told the verdict: the device packs the batch itself, into as many tokens as there can be. With a
policy whose plans say how many drafts they verify at most, that is the smallest of a few sizes that holds them.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor

from specbench.engine.buffers import Buffers, Mode, Sizes
from specbench.engine.cycle import Outcome, Parts, check_most
from specbench.engine.graphs import GraphSettings, Stages, length_sizes, round_up, row_sizes, verify_sizes
from specbench.engine.scheduler import StepPlan
from specbench.engine.verify import Judged
from specbench.kernels.accept import Acceptance
from specbench.modeling.causal_lm import ForwardOutput
from specbench.modeling.padded_layout import PaddedBatch, PaddedShape, lay_out
from specbench.modeling.pool import pages_for
from specbench.types import DraftLogits, Features, Proposal, Verdict, VerifyPlan


class PaddedLoop:
    """Makes the padded cycles of one engine, and counts the steps that ran padded and those that did not, and why."""

    def __init__(
        self,
        parts: Parts,
        settings: GraphSettings,
        *,
        width: int,
        max_rows: int,
        max_context: int,
        may_skip: bool,
        capped: bool,
    ) -> None:
        """``width``: drafts a row at most. ``may_skip``: the policy may let no row draft, which takes a look.
        ``capped``: its plans say how many drafts they verify at most."""
        lm = parts.lm
        self.parts, self.may_skip = parts, may_skip
        self.row_sizes = settings.rows or row_sizes(max_rows)
        self.length_sizes = settings.lengths or length_sizes(max_context)
        saved = settings.least_saved
        self.verify_sizes = {  # tokens, by rows
            rows: verify_sizes(rows, drafts=width, least_saved=saved) if capped else (rows * (width + 1),)
            for rows in self.row_sizes
        }
        sizes = Sizes(
            rows=max(self.row_sizes),
            slot=max_rows,
            drafts=width,
            tokens=max_context,
            features=parts.drafter.taps.count * lm.config.hidden_size,
        )
        self.buffers = Buffers(
            sizes, vocab_size=lm.vocab_size, num_pages=parts.pool.num_pages, dtype=lm.dtype, device=lm.device
        )
        self.stages = Stages(settings.recorder)
        self.padded_steps = 0
        self.padded_tokens = 0
        self.tokens = 0
        self.plain_steps: Counter[str] = Counter()
        self._able = bool(getattr(parts.drafter, "graph_safe", False))
        self._captures = settings.recorder is not None
        self._prepared: set[Mode] = set()
        self._logits: Tensor | None = None  # [T, V] where all captured verifications leave theirs, the last one's only
        if capped and self._captures:
            most = max(self.row_sizes) * (width + 1)
            self._logits = torch.empty(most, lm.vocab_size, dtype=lm.dtype, device=lm.device)

    def cycle(self, plan: StepPlan, room: list[int]) -> PaddedCycle | None:
        """The step as a padded cycle, or None where it must run as it is."""
        width = self.buffers.sizes.drafts + 1
        rows = round_up(len(plan.decode), self.row_sizes)
        longest = max((s.computed for s in plan.decode), default=0) + width
        length = round_up(min(longest, self.buffers.sizes.tokens), self.length_sizes)
        reason = None
        if not self._able:
            reason = "the drafter's steps cannot be captured"
        elif plan.prefill:
            reason = "prompt chunks in the step"
        elif rows is None or length is None or not plan.decode:
            reason = "more rows or tokens than the largest size"
        if reason is not None or rows is None or length is None:
            self.plain_steps[reason or ""] += 1
            return None
        mode = Mode.of(plan.decode)
        self._prepare(mode)
        return PaddedCycle(self, plan, room, rows=rows, length=length, mode=mode)

    def _prepare(self, mode: Mode) -> None:
        """Capture every size before the first step that needs one, with padding alone; the largest takes the memory."""
        if mode in self._prepared or not self._captures:
            return
        self._prepared.add(mode)
        self.buffers.fill([], room=[], domains=self.parts.domains)
        for name in ("limits", "planned", "accepted", "next_token"):
            self.buffers.put(name, 0, count=0)
        for length in reversed(self.length_sizes):
            for rows in reversed(self.row_sizes):
                if self.buffers.sizes.drafts:
                    self.draft(rows, length, mode)
                for tokens in reversed(self.verify_sizes[rows]):
                    self.verify(rows, length, tokens)
                self.commit(rows, length)
        if self.parts.lm.device.type == "cuda":  # what was sent must have left its pinned memory before it is reused
            torch.cuda.synchronize(self.parts.lm.device)

    # ------------------------------------------------------------------------------------------ stages

    def draft(self, rows: int, length: int, mode: Mode) -> Proposal:
        """The drafter's proposal for ``rows`` rows of at most ``length`` tokens."""

        def run() -> Proposal:
            padded = self.buffers.padded_rows(rows, longest=length, mode=mode)
            return self.parts.drafter.propose(padded, limits=self.buffers.limits[:rows], rng=self.parts.rng)

        found: Proposal = self.stages.run("draft", (rows, length, mode), run)
        return found

    def verify(self, rows: int, length: int, size: int) -> tuple[PaddedBatch, ForwardOutput]:
        """Anchors and planned drafts, ``size`` tokens at most, through the target."""

        def run() -> tuple[PaddedBatch, ForwardOutput]:
            buffers, parts = self.buffers, self.parts
            width = buffers.sizes.drafts + 1
            shape = PaddedShape(rows=rows, tokens=size, width=width, pages=pages_for(length))
            batch = lay_out(
                shape,
                lengths=buffers.lengths[:rows],
                counts=buffers.planned[:rows] + 1,
                tokens=self._tokens(rows),
                pages=buffers.pages[:rows, : shape.pages],
                num_pages=parts.pool.num_pages,
            )
            out = parts.lm.forward(batch.token_ids, layout=batch.layout, pool=parts.pool, logits_at=None)
            return batch, self._shared(out)

        found: tuple[PaddedBatch, ForwardOutput] = self.stages.run("verify", (rows, length, size), run)
        return found

    def _shared(self, out: ForwardOutput) -> ForwardOutput:
        """The output with its logits where those of every captured size are, so that none keeps its own."""
        if self._logits is None or self._logits.dtype != out.logits.dtype:
            return out
        place = self._logits[: out.logits.shape[0]]
        place.copy_(out.logits)
        return ForwardOutput(place, out.hidden)

    def _tokens(self, rows: int) -> Tensor:
        """[R, W]: anchors and drafts."""
        buffers = self.buffers
        return torch.cat([buffers.last_token[:rows, None], buffers.drafts[:rows, : buffers.sizes.drafts]], dim=1)

    def kept(self, rows: int) -> Tensor:
        """[R, W] int64: column of each committed token in its row, the last one repeated as padding."""
        offsets = torch.arange(self.buffers.sizes.drafts + 1, device=self.buffers.accepted.device)
        return torch.minimum(offsets[None, :], self.buffers.accepted[:rows, None])

    def commit(self, rows: int, length: int) -> None:
        """Hand the drafter anchor and accepted drafts. A row's last token is repeated: it is written twice alike."""

        def run() -> None:
            buffers = self.buffers
            width = buffers.sizes.drafts + 1
            kept = self.kept(rows)  # [R, W]
            token_ids = self._tokens(rows).gather(1, kept)
            draft = buffers.drafts[:rows].gather(1, kept.clamp(max=buffers.drafts.shape[1] - 1))
            after = torch.where(kept < buffers.accepted[:rows, None], draft, buffers.next_token[:rows, None])
            bounds = torch.arange(rows + 1, device=kept.device) * width
            features = Features(
                token_ids=token_ids.flatten(),
                next_ids=after.flatten(),
                positions=(buffers.lengths[:rows, None] + kept).flatten(),
                hidden=buffers.hidden[: rows * width],
                row_index=torch.arange(rows * width, device=kept.device) // width,
                row_starts=bounds,
                row_starts_host=tuple(range(0, (rows + 1) * width, width)),
                last_chunk=torch.ones(rows, dtype=torch.bool, device=kept.device),
            )
            self.parts.drafter.commit(
                buffers.padded_rows(rows, longest=length, mode=Mode(True, False, True)),
                verdict=Verdict(buffers.accepted[:rows], buffers.next_token[:rows]),
                features=features,
            )

        self.stages.run("commit", (rows, length), run)

    def facts(self) -> dict[str, Any]:
        """What a record says of the loop."""
        found: dict[str, Any] = {
            "padded_steps": self.padded_steps,
            "plain_steps": dict(sorted(self.plain_steps.items())),
            "captured_graphs": self.stages.recorded,
        }
        if self.padded_tokens:
            found["padding_share"] = 1.0 - self.tokens / self.padded_tokens
        if self.stages.refused:
            found["not_captured"] = dict(sorted(self.stages.refused.items()))
        return found


class PaddedCycle:
    """One step on padded rows; a `Cycle`."""

    def __init__(
        self, loop: PaddedLoop, plan: StepPlan, room: list[int], *, rows: int, length: int, mode: Mode
    ) -> None:
        self._loop, self._plan = loop, plan
        self._size, self._length, self._mode = rows, length, mode
        self._count, self._width, self._room = len(plan.decode), max(room), sum(room)
        self._buffers = loop.buffers
        self._buffers.fill(plan.decode, room=room, domains=loop.parts.domains)
        self.rows = self._buffers.rows(plan.decode)
        self._proposal: Proposal | None = None
        self._verify_plan: VerifyPlan | None = None
        self._batch: PaddedBatch
        self._out: ForwardOutput
        self._found: Acceptance
        self._gap: Tensor | None

    def limits(self, wanted: Tensor) -> Tensor:
        """See `Cycle`."""
        limits = torch.minimum(wanted, self._buffers.room[: self._count])
        self._buffers.put("limits", limits, count=self._count)
        return limits

    def propose(self, limits: Tensor) -> Proposal:
        """The decode rows' part of the padded proposal, no wider than the room that the widest row has."""
        count = self._count
        if self._loop.may_skip and not bool(limits.any()):
            return Proposal(limits.new_zeros(count, 0), torch.zeros_like(limits))
        found = self._loop.draft(self._size, self._length, self._mode)
        width = min(self._width, found.tokens.shape[1])
        draft = found.draft
        if draft is not None:
            draft = DraftLogits(draft.logits[:count, :width], draft.log_normaliser[:count, :width], draft.id_map)
        confidence = None if found.confidence is None else found.confidence[:count, :width]
        return Proposal(found.tokens[:count, :width], found.counts[:count], draft, confidence)

    def verify(self, proposal: Proposal | None, plan: VerifyPlan | None) -> None:
        """The padded forward of anchors and planned drafts."""
        buffers, count = self._buffers, self._count
        self._proposal, self._verify_plan = proposal, plan
        buffers.put("planned", 0 if plan is None else plan.lengths, count=count)
        if proposal is not None:
            buffers.drafts[:count, : proposal.tokens.shape[1]] = proposal.tokens
        most = self._room if plan is not None else 0
        if plan is not None and plan.most is not None:
            most = min(most, plan.most)
        size = round_up(self._size + most, self._loop.verify_sizes[self._size])  # padding rows have a token too
        assert size is not None, "the largest size holds all drafts of all rows"
        self._batch, self._out = self._loop.verify(self._size, self._length, size)

    def judge(self) -> None:
        """Acceptance of the decode rows."""
        buffers, count = self._buffers, self._count
        empty = Proposal(self.rows.lengths.new_zeros(count, 0), self.rows.lengths.new_zeros(count))
        self._found, self._gap = self._loop.parts.verifier.decide(
            self._out.logits,
            self.rows,
            starts=self._batch.starts[:count],
            proposal=self._proposal or empty,
            lengths=buffers.planned[:count],
            owner=self._batch.owner.clamp(max=count - 1),
        )
        buffers.put("accepted", self._found.accepted, count=count)
        buffers.put("next_token", self._found.next_token, count=count)

    def commit(self) -> Verdict:
        """Committed tokens to the drafter, their tapped states gathered row by row."""
        buffers = self._buffers
        if buffers.hidden.shape[1]:
            index = (self._batch.starts[:, None] + self._loop.kept(self._size)).flatten()  # [R * W]
            torch.index_select(self._out.hidden, 0, index, out=buffers.hidden[: index.shape[0]])
        self._loop.commit(self._size, self._length)
        return Verdict(self._found.accepted, self._found.next_token)

    def outcome(self) -> Outcome:
        """The cycle's one copy to the host: whole numbers below 2^53 and float32 are exact in float64."""
        count, found, proposal = self._count, self._found, self._proposal
        facts = None if self._verify_plan is None else self._verify_plan.facts
        gap = None if self._gap is None else self._gaps(self._gap)
        columns: dict[str, Tensor | None] = {
            "accepted": found.accepted,
            "next": found.next_token,
            "planned": self._buffers.planned[:count],
            "counts": None if proposal is None else proposal.counts,
            "drafts": None if proposal is None else proposal.tokens,
            "confidence": None if proposal is None else proposal.confidence,
            "gap": gap,
            "log_p": found.log_p_target,
            "log_q": found.log_p_draft,
        }
        there = {name: t if t.dim() == 2 else t[:, None] for name, t in columns.items() if t is not None}
        parts = [t.to(torch.float64).flatten() for t in there.values()]
        flat = torch.cat(parts if facts is None else [*parts, facts.to(torch.float64)]).tolist()
        host: dict[str, list[list[float]]] = {}
        at = 0
        for name, tensor in there.items():
            width = tensor.shape[1]
            host[name] = [flat[at + b * width : at + (b + 1) * width] for b in range(count)]
            at += count * width
        check_most(self._verify_plan, planned := _whole(host["planned"]))
        self._count_tokens(planned)
        return self._told(host, planned, flat[at:])

    def _told(self, host: dict[str, list[list[float]]], planned: list[int], facts: list[float]) -> Outcome:
        count = self._count
        accepted = _whole(host["accepted"])
        gaps = host.get("gap")
        judged = Judged(
            accepted,
            _whole(host["next"]),
            self._found,
            None if gaps is None else [line[: a + 1] for line, a in zip(gaps, accepted, strict=True)],
            host.get("log_p"),
            host.get("log_q"),
        )
        return Outcome(
            judged=judged,
            drafts=[[int(token) for token in line] for line in host.get("drafts", [[]] * count)],
            counts=_whole(host["counts"]) if "counts" in host else [0] * count,
            planned=planned,
            confidence=host.get("confidence"),
            states=[] if self._verify_plan is None else self._verify_plan.states(facts),
        )

    def _gaps(self, gap: Tensor) -> Tensor:
        """[B, W]: the top-2 gap at each position that gave a token, the last one repeated."""
        return gap[self._batch.starts[: self._count, None] + self._loop.kept(self._size)[: self._count]]

    def _count_tokens(self, planned: list[int]) -> None:
        loop, size = self._loop, self._batch.token_ids.shape[0]
        assert self._size + sum(planned) <= size, f"{sum(planned)} drafts of {self._size} rows in {size} tokens"
        loop.padded_steps += 1
        loop.tokens += sum(planned) + len(planned)
        loop.padded_tokens += size


def _whole(lines: list[list[float]]) -> list[int]:
    return [int(line[0]) for line in lines]
