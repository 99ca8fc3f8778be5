"""Which anchors of which sequences a step trains on: a function of the seed and the step alone.

Nothing is carried from step to step, so a resumed run, or one on another number of processes, sees the same batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specbench.api import TrainBatch
from specbench.drafting.packing import sample_anchors
from specbench.errors import ConfigError, TrainDataError
from specbench.train.recipe import Phase, Recipe
from specbench.train.store import FeatureSource
from specbench.types import Taps

_EVERY_ANCHOR = 1 << 40
_HELDOUT_STEP = -1  # keys the draw of the held-out anchors, which no training step shares


@dataclass(frozen=True, slots=True)
class Plan:
    """Anchors of a step, as positions in their sequences, before any feature is read."""

    sequences: tuple[int, ...]
    anchors: tuple[NDArray[np.int64], ...]
    drafts: int

    @property
    def num_anchors(self) -> int:
        """Anchors in all."""
        return sum(len(a) for a in self.anchors)

    def share(self, rank: int, size: int) -> Plan:
        """What one of ``size`` processes does."""
        return replace(self, sequences=self.sequences[rank::size], anchors=self.anchors[rank::size])

    def pieces(self, max_predictions: int) -> Iterator[Plan]:
        """Consecutive parts of at most ``max_predictions`` predictions; one sequence is never cut."""
        start, held = 0, 0
        for index, anchors in enumerate(self.anchors):
            size = len(anchors) * self.drafts
            if index > start and held + size > max_predictions:
                yield self._part(start, index)
                start, held = index, 0
            held += size
        if start < len(self.sequences):
            yield self._part(start, len(self.sequences))

    def _part(self, start: int, stop: int) -> Plan:
        return replace(self, sequences=self.sequences[start:stop], anchors=self.anchors[start:stop])


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A phase with its place among the steps and among the sequences drawn."""

    phase: Phase
    first_step: int
    num_steps: int
    first_draw: int


class Sampler:
    """Plans of a recipe over a source. ``drafts`` are the predictions of a whole round."""

    def __init__(self, recipe: Recipe, source: FeatureSource, *, drafts: int) -> None:
        self._recipe, self._source, self._drafts = recipe, source, drafts
        self._train = source.split("train")
        if len(self._train) == 0:
            raise TrainDataError("the features hold no sequence to train on; make them with a smaller held-out share")
        self._epoch: tuple[int, NDArray[np.int64]] = (-1, self._train)
        self.stretches = self._lay_out()
        self.num_steps = sum(s.num_steps for s in self.stretches)

    def _lay_out(self) -> tuple[_Stretch, ...]:
        found, step, draw = [], 0, 0
        for phase in self._recipe.phases:
            if phase.drafts is not None and phase.drafts > self._drafts:
                raise ConfigError(f"a phase has {phase.drafts} drafts, the drafter's round {self._drafts}; give fewer")
            count = phase.num_steps(len(self._train))
            found.append(_Stretch(phase, step, count, draw))
            step, draw = step + count, draw + count * phase.sequences
        return tuple(found)

    def stretch(self, step: int) -> int:
        """Which phase 0-based ``step`` is in."""
        return max(i for i, s in enumerate(self.stretches) if s.first_step <= step)

    def plan(self, step: int) -> Plan:
        """The step's anchors, whatever came before."""
        found = self.stretches[self.stretch(step)]
        first = found.first_draw + (step - found.first_step) * found.phase.sequences
        sequences = [self._drawn(first + i) for i in range(found.phase.sequences)]
        drafts = found.phase.drafts or self._drafts
        return self._anchored(sequences, limit=found.phase.anchors, drafts=drafts, step=step)

    def heldout(self) -> Plan:
        """The anchors that every evaluation judges. Errors: TrainDataError when nothing is held out."""
        spec = self._recipe.evaluate
        sequences = self._source.split("heldout")[: spec.sequences].tolist()
        if not sequences:
            raise TrainDataError("the features hold out no sequence; make them with a held-out share above 0")
        return self._anchored(sequences, limit=spec.anchors, drafts=self._drafts, step=_HELDOUT_STEP)

    def dense(self, sequences: Sequence[int]) -> Plan:
        """Every anchor of some sequences, whole rounds."""
        return self._anchored(list(sequences), limit=None, drafts=self._drafts, step=_HELDOUT_STEP)

    def _drawn(self, draw: int) -> int:
        """Sequence number ``draw`` of the endless shuffled passes over the training split."""
        epoch, place = divmod(draw, len(self._train))
        if self._epoch[0] != epoch:
            shuffled = np.random.default_rng([self._recipe.seed, 1, epoch]).permutation(self._train)
            self._epoch = (epoch, shuffled)
        return int(self._epoch[1][place])

    def _anchored(self, sequences: list[int], *, limit: int | None, drafts: int, step: int) -> Plan:
        masks = [self._mask(sequence) for sequence in sequences]
        starts = np.concatenate([[0], np.cumsum([len(m) for m in masks])])
        seed = np.random.SeedSequence([self._recipe.seed, 2, step + 1]).generate_state(1, np.uint64)[0]
        generator = torch.Generator().manual_seed(int(seed) >> 1)
        flat = sample_anchors(
            torch.from_numpy(np.concatenate(masks)),
            sequence_starts=starts.tolist(),
            limit=_EVERY_ANCHOR if limit is None else limit,
            generator=generator,
        ).numpy()
        owner = np.searchsorted(starts, flat, side="right") - 1
        anchors = [flat[owner == i] - starts[i] for i in range(len(sequences))]
        kept = [i for i, found in enumerate(anchors) if len(found)]
        return Plan(tuple(sequences[i] for i in kept), tuple(anchors[i] for i in kept), drafts)

    def _mask(self, sequence: int) -> NDArray[np.bool_]:
        start, stop = (int(s) for s in self._source.sequences[sequence : sequence + 2])
        mask: NDArray[np.bool_] = np.array(self._source.loss_mask[start : min(stop, start + self._recipe.max_length)])
        return mask


def tap_columns(source: FeatureSource, taps: Taps, *, hidden_size: int) -> list[slice]:
    """Where a drafter's tapped states lie in the stored ones. Errors: ConfigError when one was not stored."""
    missing = [k for k in taps.boundaries if k not in source.taps]
    if missing:
        raise ConfigError(
            f"the drafter reads state {missing[0]} of the target, the features hold {list(source.taps)}; make them "
            f"with --taps {','.join(str(k) for k in sorted({*source.taps, *taps.boundaries}))}, or change drafter.taps"
        )
    places = [source.taps.index(k) for k in taps.boundaries]
    return [slice(p * hidden_size, (p + 1) * hidden_size) for p in places]


def token_batch(source: FeatureSource, plan: Plan) -> TrainBatch:
    """The plan's tokens without features: enough for `Trainable.counts`."""
    ends = _ends(source, plan)
    pieces = [slice(int(source.sequences[s]), int(source.sequences[s]) + e) for s, e in zip(plan.sequences, ends)]
    nothing = torch.empty(sum(ends), 0)
    return _batch(
        plan,
        ends,
        num_tokens=_whole_tokens(source, plan),
        token_ids=torch.from_numpy(np.concatenate([source.token_ids[p] for p in pieces]).astype(np.int64)),
        loss_mask=torch.from_numpy(np.concatenate([source.loss_mask[p] for p in pieces])),
        features=nothing,
        last_hidden=nothing,
        log_normaliser=torch.empty(sum(ends)),
    )


def load_batch(source: FeatureSource, plan: Plan, *, taps: Taps, hidden_size: int, device: str) -> TrainBatch:
    """The plan's tokens and features on the device; what lies behind a sequence's last round is left out."""
    found = source.gather(plan.sequences, device=device)
    ends = _ends(source, plan)
    rows = torch.cat([torch.arange(s, s + e) for s, e in zip(found.starts, ends)]).to(device)
    columns = tap_columns(source, taps, hidden_size=hidden_size)
    parts = [found.hidden[rows, c] for c in columns] + ([found.last_hidden[rows]] if taps.final_norm else [])
    return _batch(
        plan,
        ends,
        num_tokens=_whole_tokens(source, plan),
        token_ids=found.token_ids[rows],
        loss_mask=found.loss_mask[rows],
        features=torch.cat(parts, dim=-1),
        last_hidden=found.last_hidden[rows],
        log_normaliser=found.log_normaliser[rows],
    )


def _batch(plan: Plan, ends: Sequence[int], **tensors: Tensor | int) -> TrainBatch:
    starts = np.concatenate([[0], np.cumsum(ends)])
    anchors = np.concatenate([a + s for a, s in zip(plan.anchors, starts)])
    token_ids = tensors["token_ids"]
    assert isinstance(token_ids, Tensor), "tokens are a tensor"
    return TrainBatch(
        anchors=torch.from_numpy(anchors).to(token_ids.device),
        sequence_starts_host=tuple(int(s) for s in starts),
        drafts=plan.drafts,
        **tensors,  # type: ignore[arg-type]
    )


def _ends(source: FeatureSource, plan: Plan) -> list[int]:
    """Tokens of each sequence that some prediction reads or names."""
    lengths = [int(source.sequences[s + 1] - source.sequences[s]) for s in plan.sequences]
    return [min(n, int(a[-1]) + plan.drafts + 1) for n, a in zip(lengths, plan.anchors, strict=True)]


def _whole_tokens(source: FeatureSource, plan: Plan) -> int:
    return sum(int(source.sequences[s + 1] - source.sequences[s]) for s in plan.sequences)
