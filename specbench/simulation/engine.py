"""The real engine in virtual time: its scheduler, policies and bookkeeping, with a target and a drafter that replay.

The vocabulary has two tokens. The target always says 0; a draft 0 is accepted, a draft 1 is not. Forward, drafting and
the engine's own share let virtual time pass as the costs say; nothing else does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from specbench.api import Random, VerifyPolicy
from specbench.engine.clock import PhaseTimer, VirtualClock
from specbench.engine.engine import Engine
from specbench.engine.scheduler import StepPlan
from specbench.engine.sequence import Sequence as EngineSequence
from specbench.engine.trace import Recorder
from specbench.modeling.causal_lm import ForwardOutput
from specbench.modeling.layout import BatchLayout
from specbench.modeling.pool import KVPool, LayerShape
from specbench.simulation.costs import StepCosts
from specbench.simulation.replay import Cursor, ReplayRound, Scripted
from specbench.types import Features, Proposal, Rows, StopReason, Taps, TargetView, Verdict

RIGHT, WRONG = 0, 1


class ClockTimer(PhaseTimer):
    """Phases of a cycle by a virtual clock."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(torch.device("cpu"))
        self._clock = clock

    def _stamp(self) -> float:
        return self._clock.now()


class ReplayModel:
    """Stands for the target's forward: it always says `RIGHT`, after the seconds that the step costs."""

    layer_shapes: ClassVar[tuple[LayerShape, ...]] = ()
    layer_devices: ClassVar[tuple[torch.device, ...]] = ()
    dtype = torch.float32
    device = torch.device("cpu")
    vocab_size = 2

    def __init__(self, costs: StepCosts, clock: VirtualClock) -> None:
        self._costs, self._clock = costs, clock

    def set_taps(self, taps: Taps) -> None:
        """Nothing is tapped."""

    def forward(
        self, token_ids: Tensor, *, layout: BatchLayout, pool: KVPool, logits_at: Tensor | None
    ) -> ForwardOutput:
        """Logits [N, 2] at the asked positions; no hidden states."""
        tokens, rows = layout.num_tokens, sum(group.lengths.shape[0] for group in layout.groups)
        asked = tokens if logits_at is None else logits_at.shape[0]
        # Decoding rows come first and want all their logits; what follows the first gap is prompts.
        decoded = asked if logits_at is None else int((logits_at == torch.arange(asked)).long().cumprod(0).sum())
        uneven = _uneven(layout, decoded)
        self._clock.advance(self._costs.forward_s(decoded, rows, prompt=tokens - decoded, uneven=uneven))
        logits = torch.zeros(asked, 2)
        logits[:, RIGHT] = 1.0
        return ForwardOutput(logits, torch.empty(tokens, 0))


def _uneven(layout: BatchLayout, decoded: int) -> bool:
    """Whether the rows that the first ``decoded`` tokens belong to have unlike numbers of tokens."""
    counts: set[int] = set()
    for group in layout.groups:
        decoding = group.tokens[:, 0] < decoded  # [b]
        width = group.tokens.shape[1]
        if group.valid is None:
            counts.update([width] if bool(decoding.any()) else [])
            continue
        real = torch.bincount(group.valid // width, minlength=len(decoding))
        counts.update(real[decoding].tolist())
    return len(counts) > 1


class ReplayTarget:
    """What the engine takes for its target."""

    def __init__(self, costs: StepCosts, clock: VirtualClock, *, context: int) -> None:
        self.lm = ReplayModel(costs, clock)
        self.context_limit = context


class ReplayDrafter:
    """Proposes as many drafts as were recorded, right as far as they were accepted, with the recorded confidences."""

    taps = Taps()
    max_context: int | None = None
    options: ClassVar[Mapping[str, str]] = {}

    def __init__(
        self, requests: Mapping[int, Scripted], costs: StepCosts, clock: VirtualClock, *, draft_length: int
    ) -> None:
        self._requests, self._costs, self._clock = requests, costs, clock
        self._cursors: dict[int, Cursor] = {}
        self.trained_length = draft_length

    @classmethod
    def load(cls, checkpoint: Path | None, *, target: TargetView, options: Mapping[str, Any]) -> ReplayDrafter:
        """A replay is made from a record, never loaded."""
        raise AssertionError("a replay is made from a record")

    def begin(self, rows: Rows) -> None:
        """Where a request is in its rounds follows from its number, not from its slot."""

    def prefill(self, rows: Rows, features: Features) -> None:
        """Nothing is kept."""

    def propose(self, rows: Rows, *, limits: Tensor, rng: Random) -> Proposal:
        """The next recorded round of every row that may draft."""
        asked, numbers = limits.tolist(), rows.number.tolist()
        self._clock.advance(self._costs.draft_s(sum(limit > 0 for limit in asked), drafts=max(asked)))
        found = [self._take(number, limit) if limit else None for number, limit in zip(numbers, asked, strict=True)]
        width = max(asked)
        counts = [0 if entry is None else entry.drafted for entry in found]
        tokens = [_tokens(entry, width) for entry in found]
        sure = any(entry is not None and entry.confidence is not None for entry in found)
        confidence = torch.tensor([_confidence(entry, width) for entry in found]) if sure else None
        return Proposal(torch.tensor(tokens), torch.tensor(counts), confidence=confidence)

    def _take(self, number: int, limit: int) -> ReplayRound | None:
        if number not in self._cursors:
            script = self._requests[number]
            self._cursors[number] = Cursor(script.source.rounds, offset=script.offset)
        return self._cursors[number].take(limit)

    def commit(self, rows: Rows, *, verdict: Verdict, features: Features) -> None:
        """Nothing is kept."""

    def release(self, slots: Sequence[int]) -> None:
        """Nothing is kept by slot."""

    def state_bytes(self) -> int:
        """No weights, no caches."""
        return 0


def _tokens(entry: ReplayRound | None, width: int) -> list[int]:
    right = 0 if entry is None else entry.accepted
    return [RIGHT] * right + [WRONG] * (width - right)


def _confidence(entry: ReplayRound | None, width: int) -> list[float]:
    held = [] if entry is None or entry.confidence is None else list(entry.confidence)
    return held + [0.0] * (width - len(held))


class ReplayEngine(Engine):
    """The engine on a virtual clock. A request ends where its recording did."""

    clock: VirtualClock

    def __init__(
        self,
        requests: Mapping[int, Scripted],
        costs: StepCosts,
        policy: VerifyPolicy,
        *,
        max_rows: int,
        max_context: int,
        prefill_budget: int,
        draft_length: int,
        method: str,
    ) -> None:
        """Args as `Engine`; ``requests`` by number; ``draft_length`` is that of the recorded run."""
        clock = VirtualClock()
        drafter = ReplayDrafter(requests, costs, clock, draft_length=draft_length)
        target: Any = ReplayTarget(costs, clock, context=max_context)
        super().__init__(
            target,
            drafter,
            policy,
            max_rows=max_rows,
            max_context=max_context,
            prefill_budget=prefill_budget,
            clock=clock,
            method=method,
            free_memory=lambda device: None,  # pages without layers take none
        )
        self.timer = ClockTimer(clock)
        self.recorder = Recorder(self.timer)
        self._costs, self._requests = costs, requests

    def _advance(self, plan: StepPlan, *outcome: Any) -> None:
        self.clock.advance(self._costs.overhead.at(len(plan.decode)))
        super()._advance(plan, *outcome)

    def _cut(self, sequence: EngineSequence, tokens: list[int]) -> tuple[list[int], str | None]:
        """Tokens up to where the recorded output ended, by a stop token if that ended it."""
        source = self._requests[sequence.request.number].source
        room = source.output_tokens - len(sequence.output)
        if len(tokens) < room:
            return tokens, None
        return tokens[:room], StopReason.STOP_TOKEN if source.stops else StopReason.LENGTH
