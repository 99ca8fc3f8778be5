"""Answers of the target: conversations through the engine or a server, turn by turn, into sequences with a mask."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from specbench import registry
from specbench.api import Backend, Clock
from specbench.backends.engine import build_contestant, build_engine
from specbench.config import BASELINE
from specbench.engine.clock import WallClock
from specbench.engine.target import Target
from specbench.prompting import Limits, PromptSet, Renderer
from specbench.train.dedup import prompt_text, share_of_hash, text_hash
from specbench.train.shards import TokenRow
from specbench.types import Prompt, Request, RequestTrace, Sampling, Status
from specbench.workloads.driver import BuildRequest, DriveProgress, drive

if TYPE_CHECKING:
    from torch import Tensor

_TRIAL_TOKENS = 12
OnProgress = Callable[[DriveProgress], None]


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """What decides how a prompt is answered, and on which side of the split it lies."""

    sampling: Sampling
    greedy_share: float
    heldout_share: float
    max_new_tokens: int
    max_context: int
    seed: int

    def sampling_of(self, prompt: Prompt) -> Sampling:
        """Greedy for a share of the prompts, chosen by hash."""
        drawn = share_of_hash("greedy", str(self.seed), prompt.task, prompt.id)
        return Sampling() if drawn < self.greedy_share else self.sampling

    def held_out(self, prompt: Prompt) -> bool:
        """By the text alone, so that the same prompt is on the same side in every run and folder."""
        return share_of_hash("heldout", text_hash(prompt_text(prompt))) < self.heldout_share


class Writer(Protocol):
    """Something that writes the target's tokens."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""
        ...

    @property
    def context_limit(self) -> int:
        """Longest sequence, prompt and answer."""
        ...

    @property
    def rows(self) -> int:
        """Requests at once."""
        ...

    def open(self, *, max_context: int, keep: Sequence[int] | None = None) -> tuple[Backend, Clock]:
        """A fresh backend. What it writes depends on the requests alone, not on what an earlier one wrote.

        ``keep``: boundaries whose states are kept for `states`.
        """
        ...

    def states(self, backend: Backend) -> Mapping[int, Tensor]:
        """Kept states [tokens run, (m + 1) d] by request number."""
        ...

    def speed(self, prompts: Sequence[Prompt], renderer: Renderer, *, plan: AnswerPlan) -> float | None:
        """Tokens a second with all rows busy, measured on a few tokens for ``prompts``; None where it cannot tell."""
        ...


@dataclass(frozen=True, slots=True)
class EngineWriter:
    """The project's own engine without drafts, ``rows`` sequences at once."""

    target: Target
    rows: int
    kv_memory: int | None
    prefill_chunk: int

    @property
    def stop_ids(self) -> frozenset[int]:
        """The target's end-of-turn tokens."""
        return self.target.stop_ids

    @property
    def context_limit(self) -> int:
        """Longest sequence of the target."""
        return self.target.context_limit

    def open(self, *, max_context: int, keep: Sequence[int] | None = None) -> tuple[Backend, Clock]:
        """A fresh engine: its pages, like its batches, follow from the requests alone."""
        clock = WallClock()
        view = self.target.view(max_rows=self.rows, max_context=max_context)
        contestant = build_contestant(
            BASELINE, target=view, checkpoint=None, options={}, policy=("fixed", None), draft_length=0
        )
        if keep is not None:
            from specbench.train.capture import StateKeeper

            contestant = replace(contestant, drafter=StateKeeper(keep, view=view))
        engine = build_engine(
            self.target,
            contestant,
            max_rows=self.rows,
            max_context=max_context,
            kv_memory_bytes=self.kv_memory,
            prefill_budget=self.prefill_chunk,
            clock=clock,
        )
        return engine, clock

    def states(self, backend: Backend) -> Mapping[int, Tensor]:
        """What the engine's drafter kept; nothing where it kept nothing."""
        found: Mapping[int, Tensor] = getattr(getattr(backend, "drafter", None), "finished", {})
        return found

    def speed(self, prompts: Sequence[Prompt], renderer: Renderer, *, plan: AnswerPlan) -> float | None:
        """Tokens a second of the steps in which every row decodes and none is filled."""
        room = min(plan.max_context, self.context_limit) - _TRIAL_TOKENS
        texts = [ids for p in prompts[: self.rows] if 0 < len(ids := renderer.encode(p, ())) <= room]
        if not texts:
            return None
        backend, _ = self.open(max_context=max(map(len, texts)) + _TRIAL_TOKENS)
        for number in range(self.rows):
            backend.submit(
                Request(
                    id=str(number),
                    number=number,
                    prompt_ids=texts[number % len(texts)],
                    max_new_tokens=_TRIAL_TOKENS,
                    sampling=plan.sampling,
                    seed=plan.seed,
                    stop_ids=self.stop_ids,
                    ignore_eos=True,
                    task="trial",
                    domain="trial",
                )
            )
        pending = self.rows
        while pending:
            pending -= sum(event.finished for event in backend.poll())
        steps = [s for s in backend.close().steps if s.prefill_rows == 0 and s.decode_rows]
        spent = sum(s.total_s for s in steps)
        return sum(s.decode_rows for s in steps) / spent if spent > 0 else None


@dataclass(frozen=True, slots=True)
class Block:
    """The sequences of one block of prompts, and turns that were not answered, by reason.

    ``states[i]`` belong to ``rows[i]``: all its tokens but the last, which was not run. Empty where none were kept.
    """

    rows: tuple[TokenRow, ...]
    skipped: dict[str, int]
    states: tuple[Tensor, ...] = ()


def write_answers(
    prompts: Sequence[Prompt],
    *,
    writer: Writer,
    renderer: Renderer,
    plan: AnswerPlan,
    on_progress: OnProgress | None = None,
    keep: Sequence[int] | None = None,
) -> Block:
    """Answer all prompts, turn by turn. The outcome depends on these prompts alone, in their order.

    A turn that does not fit ``plan.max_context`` is not answered, nor are those after it. ``keep``: boundaries whose
    states are kept.
    """
    wanted = PromptSet(tuple(prompts), renderer, tasks=())
    limits = Limits(
        max_new_tokens=plan.max_new_tokens,
        max_context=min(plan.max_context, writer.context_limit, wanted.context_needed(plan.max_new_tokens)),
        ignore_eos=False,
        stop_ids=writer.stop_ids,
        sampling=plan.sampling,
        seed=plan.seed,
    )
    sent: dict[str, Request] = {}

    def build(prompt: Prompt, answers: Sequence[tuple[int, ...]]) -> Request:
        request = wanted.request(prompt, answers, limits=replace(limits, sampling=plan.sampling_of(prompt)))
        sent[request.id] = request
        return request

    done = run_requests(prompts, build, writer=writer, context=limits.max_context, on_progress=on_progress, keep=keep)
    rows: list[TokenRow] = []
    states: list[Tensor] = []
    for prompt in prompts:
        names = [f"{prompt.task}/{prompt.id}/{turn}" for turn in range(len(prompt.turns))]
        answered = [name for name in names if name in done.traces and done.traces[name].status == Status.OK]
        for row, last in sequences_of(prompt, [(sent[n], done.traces[n]) for n in answered], plan=plan):
            rows.append(row)
            if keep is not None:
                states.append(done.states[last.number])
    return Block(tuple(rows), done.skipped, tuple(states))


@dataclass(frozen=True, slots=True)
class Done:
    """Requests that ran: traces by id, kept states by number, and turns that were not run, by reason."""

    traces: dict[str, RequestTrace]
    states: Mapping[int, Tensor]
    skipped: dict[str, int]


def run_requests(
    prompts: Sequence[Prompt],
    build: BuildRequest,
    *,
    writer: Writer,
    context: int,
    on_progress: OnProgress | None,
    keep: Sequence[int] | None = None,
) -> Done:
    """Drive conversations through a fresh backend."""
    backend, clock = writer.open(max_context=context, keep=keep)
    outcome = drive(
        backend,
        conversations=prompts,
        build=build,
        arrivals=registry.load("workloads", "closed")(concurrency=writer.rows),
        clock=clock,
        on_progress=on_progress,
    )
    skipped: dict[str, int] = {}
    for turn in outcome.skipped:
        reason = "an earlier turn failed" if "failed" in turn.reason else "no room in the context"
        skipped[reason] = skipped.get(reason, 0) + 1
    for trace in outcome.trace.requests:
        if trace.status != Status.OK:
            skipped["failed"] = skipped.get("failed", 0) + 1
    return Done({trace.id: trace for trace in outcome.trace.requests}, writer.states(backend), skipped)


def sequences_of(
    prompt: Prompt, turns: Sequence[tuple[Request, RequestTrace]], *, plan: AnswerPlan
) -> list[tuple[TokenRow, Request]]:
    """A conversation as sequences: one, as long as each turn's prompt repeats what is there; else a new one begins.

    With each the last request in it, which ran all its tokens but the last.
    """
    found: list[tuple[list[int], list[bool], list[str], int]] = []
    for number, (request, trace) in enumerate(turns):
        ids = list(request.prompt_ids)
        if found and ids[: len(found[-1][0])] == found[-1][0]:
            tokens, mask, reasons, _ = found.pop()
        else:
            tokens, mask, reasons = [], [], []
        asked = len(ids) - len(tokens)
        tokens += ids[len(tokens) :] + list(trace.output_ids)
        mask += [False] * asked + [True] * len(trace.output_ids)
        found.append((tokens, mask, [*reasons, trace.stop_reason or ""], number + 1))
    rows = []
    for tokens, mask, reasons, count in found:
        row = TokenRow(
            conversation=f"{prompt.task}/{prompt.id}",
            task=prompt.task,
            domain=prompt.domain,
            system=prompt.system,
            turns=prompt.turns[:count],
            prompt_hash=text_hash(prompt_text(prompt)),
            heldout=plan.held_out(prompt),
            temperature=plan.sampling_of(prompt).temperature,
            seed=plan.seed,
            stop_reasons=tuple(reasons),
            token_ids=tuple(tokens),
            loss_mask=tuple(mask),
        )
        rows.append((row, turns[count - 1][0]))
    return rows
