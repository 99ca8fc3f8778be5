"""The protocols in which the referee and its contestants meet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from specbench.types import (
    Estimate,
    Features,
    Load,
    Prompt,
    Proposal,
    Request,
    Rows,
    RunTrace,
    Taps,
    TargetView,
    TokenEvent,
    Verdict,
    VerifyPlan,
)

if TYPE_CHECKING:
    from torch import Tensor, nn


class Random(Protocol):
    """Counter-based random numbers of the step, keyed by (seed, request, anchor position, offset, purpose)."""

    def draft(self, rows: Rows, offsets: int) -> Tensor:
        """Uniforms in [0, 1) for ``offsets`` drafts a row: [B, offsets] float64."""
        ...


@runtime_checkable
class Drafter(Protocol):
    """A contestant: proposes drafts for all rows of a step at once.

    State lives in tensors indexed by slot. ``commit`` is the only rollback point: what ``propose`` wrote beyond the
    committed length must be harmless afterwards. A module ``specbench_drafters/NAME.py`` sets ``PLUGIN`` to its class.
    One that can name a part of the vocabulary only has an attribute ``id_map`` with the target ids [Vd] that it can:
    the record then says how much of the text they cover. One of several depths has an attribute ``num_layers``.
    One whose ``propose`` and ``commit`` look at nothing on the device, and read of `Rows` on the host only what holds
    in a padded step too, sets ``graph_safe``: they may then be captured as graphs, on memory that stays where it is.
    One whose state grows with its use has a method ``growth_bytes`` that says by how much it may still do so.
    """

    taps: Taps
    trained_length: int  # drafts a round that it was made for: the default draft length
    max_context: int | None  # longest sequence it can draft for; None is unlimited
    options: ClassVar[Mapping[str, str]]  # accepted --set options: name -> one line of help

    @classmethod
    def load(cls, checkpoint: Path | None, *, target: TargetView, options: Mapping[str, Any]) -> Drafter:
        """Build from a resolved checkpoint folder (None where the method needs none).

        Errors: DrafterError when the checkpoint does not belong to the target; ConfigError for a bad option.
        """
        ...

    def begin(self, rows: Rows) -> None:
        """Slots in ``rows`` were just given to new requests: forget whatever they held."""
        ...

    def prefill(self, rows: Rows, features: Features) -> None:
        """One prompt chunk of each row went through the target. ``rows.lengths`` are those before the chunk."""
        ...

    def propose(self, rows: Rows, *, limits: Tensor, rng: Random) -> Proposal:
        """At most ``limits`` [B] drafts a row; G = the largest limit. Never called when every limit is 0.

        ``rows`` may be some of the step's: those whose limit is 0 are left out where the host knows them.
        """
        ...

    def commit(self, rows: Rows, *, verdict: Verdict, features: Features) -> None:
        """The round's outcome; also for rows whose limit was 0. ``rows`` are as they were before the round."""
        ...

    def release(self, slots: Sequence[int]) -> None:
        """The requests in these slots ended or were preempted."""
        ...

    def state_bytes(self) -> int:
        """Bytes of weights and caches that the drafter holds (shared modules of the target not counted)."""
        ...


class VerifyPolicy(Protocol):
    """Decides how many tokens are drafted and verified. ``causal``: nothing about token k decides on token k.

    A module ``specbench.engine.policies.NAME`` sets ``PLUGIN`` to a factory (draft_length, argument, *, context) with
    the text behind the colon of ``--policy NAME:...`` and a `specbench.engine.policy.PolicyContext`. State of a row
    lives in tensors indexed by slot, and is the row's own as long as ``rows.number`` is; on the host it lives by that
    number. Attributes that a policy may have: ``may_skip``, a step may draft for no row; ``capped``, its plans say how
    many drafts a step verifies at most (`VerifyPlan.most`), which padded steps choose the size of a forward by.
    """

    causal: ClassVar[bool]
    name: str  # as written in records, for example "fixed:7"
    draft_length: int  # the largest length it can plan

    def draft_limits(self, rows: Rows, *, load: Load) -> Tensor:
        """[B] int64, before propose; 0 skips drafting for the row."""
        ...

    def plan(self, rows: Rows, *, proposal: Proposal, load: Load) -> VerifyPlan:
        """How many drafts of each row are verified, after propose."""
        ...

    def observe(self, rows: Rows, *, plan: VerifyPlan, verdict: Verdict) -> None:
        """The round's outcome, after it was committed."""
        ...


class Backend(Protocol):
    """Something that serves requests and leaves a trace: the engine, a server, a scripted fake."""

    def submit(self, request: Request, *, warmup: bool = False, arrival_s: float | None = None) -> None:
        """Queue a request that arrived at ``arrival_s`` (None: now). Errors: CapacityError when it can never fit."""
        ...

    def poll(self) -> Sequence[TokenEvent]:
        """Advance by one step (or wait a little) and return what became visible."""
        ...

    def close(self) -> RunTrace:
        """End the run, whatever is unfinished, and hand over everything that was recorded."""
        ...


class Clock(Protocol):
    """Time in seconds since the run's origin; real or virtual."""

    def now(self) -> float:
        """Seconds since the origin."""
        ...

    def sleep_until(self, time_s: float) -> None:
        """Return at ``time_s``, at once when that has passed."""
        ...


class Arrivals(Protocol):
    """A load pattern under way: when conversations start, in seconds since the load began.

    A module ``specbench.workloads.NAME`` sets ``PLUGIN`` to a class made with (concurrency=, options=, seed=) whose
    ``Options`` is the pydantic class of its options.
    """

    @property
    def open_loop(self) -> bool:
        """Whether arrivals come by their own times, and never wait for a completion."""
        ...

    @property
    def think_time_s(self) -> float:
        """Seconds from the end of an answer to the same user's next request; 0 where users do not think."""
        ...

    def due(self, now_s: float, *, in_flight: int) -> int:
        """How many further requests have arrived by ``now_s``."""
        ...

    def next_s(self) -> float | None:
        """When the next arrival is due, if that is known; None when it depends on completions."""
        ...


class Task(Protocol):
    """A playing field: named prompts. A module ``specbench_tasks/NAME.py`` sets ``PLUGIN`` to an instance."""

    name: str
    domain: str
    version: str

    def prompts(self, *, limit: int | None = None, seed: int = 0) -> list[Prompt]:
        """At most ``limit`` prompts in a fixed order; a limit below the whole takes a seeded sample of them.

        Errors: TaskError when the data cannot be had or read.
        """
        ...


class Metric(Protocol):
    """A pure function of a trace. A module of ``specbench.metrics`` sets ``PLUGIN`` to an instance."""

    name: str
    unit: str
    better: str  # "higher", "lower" or "neither"
    version: str

    def compute(self, trace: RunTrace) -> Iterable[Estimate]:
        """Every estimate that the trace has data for; none where it has none."""
        ...


@dataclass(frozen=True, slots=True)
class Objective:
    """What a drafter in training is judged by: shares of the terms (`specbench.drafting.token_loss`) and their average.

    ``position_weights`` [G] weigh prediction k of a round. ``average``: "weights" divides by the sum of the weights of
    all judged predictions, "steps" takes the mean of each k apart, "tokens" divides by the tokens of the batch.
    ``renormalise`` restricts the target to the draft vocabulary and drops predictions whose likeliest token it lacks.
    """

    ce: float
    soft_ce: float
    tv: float
    confidence: float
    position_weights: tuple[float, ...]
    average: str = "weights"
    renormalise: bool = False


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """Sequences flat one after another, what the target computed at them, and where to draft.

    ``features`` are the drafter's own taps in order. ``drafts`` predictions follow each anchor: the whole round, or
    fewer early in training. ``num_tokens`` counts the tokens of the sequences before what no anchor needs was cut off.
    """

    token_ids: Tensor  # [T] int64
    loss_mask: Tensor  # [T] bool
    features: Tensor  # [T, D]
    last_hidden: Tensor  # [T, d], after the target's final norm
    log_normaliser: Tensor  # [T] float32
    anchors: Tensor  # [N] int64, flat and ascending
    sequence_starts_host: tuple[int, ...]
    drafts: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class TrainLoss:
    """Outcome of a batch. ``total`` is to be minimised; ``terms`` are its parts by name, without gradient.

    Both are already divided by the counts of the whole step, so they add up over batches and ranks. N anchors, G
    predictions; an entry of the others means something where ``supervised``.
    """

    total: Tensor  # []
    terms: Mapping[str, Tensor]
    supervised: Tensor  # [N, G] bool
    accept: Tensor  # [N, G] float32, analytic acceptance rate
    agree: Tensor | None = None  # [N, G] bool: the draft's argmax is the target's
    named: Tensor | None = None  # [N, G] bool: the draft's argmax is the text's token


class Trainable(Protocol):
    """A drafter in training, bound to a target whose embedding and head are shared and frozen."""

    module: nn.Module  # its trainable parameters and nothing else
    taps: Taps
    drafts: int  # predictions of a whole round

    def counts(self, batch: TrainBatch) -> Tensor:
        """Divisors [2, G] float64 of the soft terms and of the hard one; they add up over batches and ranks."""
        ...

    def loss(self, batch: TrainBatch, *, counts: Tensor, judge: bool = False) -> TrainLoss:
        """Loss of a batch under the ``counts`` of the whole step; ``judge`` fills ``agree`` and ``named`` too."""
        ...

    def round_to(self, dtype: str) -> None:
        """Round the weights to what a checkpoint in ``dtype`` holds, so that what is judged is what is written."""
        ...

    def export(self, folder: Path, *, dtype: str) -> Path:
        """Write the compact checkpoint to a new folder. Errors: CheckpointError when it cannot be read back."""
        ...


class TrainableMethod(Protocol):
    """How a method's drafter is made for training. ``specbench_drafters/training/NAME.py`` sets ``PLUGIN`` to one."""

    method: str  # the drafter that reads the checkpoint
    options: Mapping[str, str]  # accepted keys of a recipe's [drafter]: name -> one line of help

    def taps(self, target: TargetView, *, options: Mapping[str, Any]) -> Taps:
        """The target's states that `build` will read. Errors: ConfigError."""
        ...

    def drafts(self, options: Mapping[str, Any]) -> int:
        """Predictions of a whole round. Errors: ConfigError."""
        ...

    def build(
        self,
        target: TargetView,
        *,
        options: Mapping[str, Any],
        objective: Objective,
        vocabulary: Tensor | None,
        feature_scale: Tensor | None,
        seed: int,
    ) -> Trainable:
        """A drafter with fresh weights on the target's device.

        ``vocabulary`` [Vd] are the target ids of a reduced draft vocabulary, ascending; ``feature_scale`` [D] the
        typical size of each tapped feature, which training divides by and the checkpoint's weights absorb.
        Errors: ConfigError, UnknownNameError for a bad option.
        """
        ...
