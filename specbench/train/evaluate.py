"""Held-out rounds judged as the verifier would: acceptance by position, expected and greedy accepted length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specbench.api import Trainable, TrainLoss
from specbench.train.distributed import World
from specbench.train.sampler import Plan, Sampler, load_batch, token_batch
from specbench.train.store import FeatureSource

# Columns of a tally: one number each, then one per position.
_SCALARS = ("blocks", "tau", "tau_greedy")
_ROWS = ("judged", "accept", "agree")


@dataclass(frozen=True, slots=True)
class Tally:
    """Sums over rounds, additive over batches and processes.

    tau of a round is 1 + sum_k prod_{i<=k} alpha_i over its judged positions: with the analytic acceptance rates, the
    expected length under sampling; with agreement of the argmaxes, the length under greedy decoding.
    """

    values: Tensor  # [3 + 3 G] float64 on the CPU

    @classmethod
    def empty(cls, drafts: int) -> Tally:
        """No round."""
        return cls(torch.zeros(len(_SCALARS) + len(_ROWS) * drafts, dtype=torch.float64))

    @classmethod
    def of(cls, loss: TrainLoss, *, drafts: int) -> Tally:
        """The rounds of a batch; ``drafts`` is the width that tallies are kept at."""
        kept = loss.supervised.to(torch.float64)
        used = kept.amax(dim=1) if kept.numel() else kept.sum(dim=1)  # [N]
        accept = loss.accept.to(torch.float64) * kept
        agree = torch.zeros_like(kept) if loss.agree is None else loss.agree.to(torch.float64) * kept
        lengths = [(used * (1 + part.cumprod(dim=1).sum(dim=1))).sum() for part in (accept, agree)]
        rows = [part.sum(dim=0) for part in (kept, accept, agree)]
        wide = [torch.nn.functional.pad(row, (0, drafts - len(row))) for row in rows]
        return cls(torch.cat((torch.stack((used.sum(), *lengths)), *wide)).cpu())

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.values + other.values)

    def summed(self, world: World, device: str) -> Tally:
        """Over all processes."""
        return Tally(world.sum(self.values.to(device)).cpu())

    def _row(self, name: str) -> Tensor:
        width = (len(self.values) - len(_SCALARS)) // len(_ROWS)
        first = len(_SCALARS) + _ROWS.index(name) * width
        return self.values[first : first + width]

    @property
    def blocks(self) -> int:
        """Rounds with a judged position."""
        return int(self.values[0])

    @property
    def predictions(self) -> int:
        """Judged positions in all."""
        return int(self._row("judged").sum())

    @property
    def tau(self) -> float | None:
        """Expected accepted length, bonus included, drafts and target sampled at temperature 1."""
        return float(self.values[1] / self.values[0]) if self.blocks else None

    @property
    def tau_greedy(self) -> float | None:
        """Accepted length, bonus included, at temperature 0."""
        return float(self.values[2] / self.values[0]) if self.blocks else None

    def rates(self, name: str) -> list[float | None]:
        """Mean by position of "accept" or "agree"; None where nothing was judged."""
        pairs = zip(self._row(name).tolist(), self._row("judged").tolist(), strict=True)
        return [value / judged if judged else None for value, judged in pairs]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A look at the held-out rounds."""

    tally: Tally
    loss: float
    terms: dict[str, float]

    def values(self) -> dict[str, float | None]:
        """By column name, for a curve file; positions count from 1."""
        found: dict[str, float | None] = {"tau": self.tally.tau, "tau_greedy": self.tally.tau_greedy, "loss": self.loss}
        found |= dict(self.terms)
        for name in ("accept", "agree"):
            found |= {f"{name}_{k}": rate for k, rate in enumerate(self.tally.rates(name), start=1)}
        return found


@dataclass(frozen=True, slots=True)
class Judge:
    """What is needed to run a trainable over plans without learning."""

    trainable: Trainable
    source: FeatureSource
    hidden_size: int
    device: str
    micro_predictions: int
    autocast: Callable[[], AbstractContextManager[Any]]
    world: World

    def counts(self, plan: Plan) -> Tensor:
        """Divisors of a whole plan over all processes: [2, G]; ``plan`` is this process's share."""
        total = torch.zeros(2, plan.drafts, dtype=torch.float64)
        for piece in plan.pieces(self.micro_predictions):
            total += self.trainable.counts(_moved(token_batch(self.source, piece), self.device))
        return self.world.sum(total.to(self.device)).cpu()

    @torch.no_grad()
    def evaluate(self, plan: Plan) -> Evaluation:
        """Judge every round of ``plan``, shared among the processes."""
        mine = plan.share(self.world.rank, self.world.size)
        counts = self.counts(mine)
        tally, loss, terms = Tally.empty(self.trainable.drafts), 0.0, dict[str, float]()
        for piece in mine.pieces(self.micro_predictions):
            found = self._look(piece, counts)
            tally += Tally.of(found, drafts=self.trainable.drafts)
            loss += float(found.total)
            for name, value in found.terms.items():
                terms[name] = terms.get(name, 0.0) + float(value)
        names = self._term_names(terms)
        sums = torch.tensor([loss, *(terms.get(name, 0.0) for name in names)], dtype=torch.float64)
        totals = self.world.sum(sums.to(self.device)).cpu().tolist()
        return Evaluation(tally.summed(self.world, self.device), totals[0], dict(zip(names, totals[1:], strict=True)))

    def _term_names(self, seen: dict[str, float]) -> list[str]:
        """The same names in every process, also in one that had nothing to judge."""
        if self.world.size == 1:
            return sorted(seen)
        gathered: list[Any] = [None] * self.world.size
        torch.distributed.all_gather_object(gathered, sorted(seen))
        return sorted({name for names in gathered for name in names})

    def _look(self, piece: Plan, counts: Tensor) -> TrainLoss:
        batch = load_batch(
            self.source, piece, taps=self.trainable.taps, hidden_size=self.hidden_size, device=self.device
        )
        with self.autocast():
            return self.trainable.loss(batch, counts=counts, judge=True)

    @torch.no_grad()
    def walk(self, sampler: Sampler, sequences: Sequence[int]) -> tuple[int, int]:
        """Rounds and committed tokens of decoding the texts themselves: what the engine does at temperature 0 where
        the text is the target's greedy one. A draft is accepted when it is the text's token.

        The first token of each answer comes from the prefill; the last round commits what is left.
        """
        rounds = committed = 0
        for sequence in sequences:
            plan = sampler.dense([sequence])
            if not plan.num_anchors:
                continue
            named = np.concatenate([self._accepted(p) for p in self._slices(plan)])
            more_rounds, more_tokens = _walked(plan.anchors[0], named)
            rounds, committed = rounds + more_rounds, committed + more_tokens
        return rounds, committed

    def _slices(self, plan: Plan) -> list[Plan]:
        """One sequence's anchors in parts that fit."""
        size = max(1, self.micro_predictions // plan.drafts)
        anchors = plan.anchors[0]
        return [
            Plan(plan.sequences, (anchors[start : start + size],), plan.drafts)
            for start in range(0, len(anchors), size)
        ]

    def _accepted(self, plan: Plan) -> np.ndarray[Any, np.dtype[np.int64]]:
        found = self._look(plan, torch.ones(2, plan.drafts, dtype=torch.float64))
        assert found.named is not None, "a judged loss says what was named"
        named = (found.named & found.supervised).to(torch.int64).cumprod(dim=1).sum(dim=1)
        return named.cpu().numpy()


def _moved(batch: Any, device: str) -> Any:
    if device == "cpu":
        return batch
    moved = {name: getattr(batch, name).to(device) for name in ("token_ids", "loss_mask", "anchors")}
    return replace(batch, **moved)


def _walked(anchors: np.ndarray[Any, Any], accepted: np.ndarray[Any, Any]) -> tuple[int, int]:
    """Rounds and tokens from the first anchor of each unbroken stretch to its end."""
    rounds = committed = place = 0
    while place < len(anchors):
        end = place
        while end + 1 < len(anchors) and anchors[end + 1] == anchors[end] + 1:
            end += 1
        length = end - place + 1  # tokens after the stretch's first one, which the prefill gave
        at = 0
        while at < length:
            at += int(accepted[place + at]) + 1
            rounds += 1
        committed += length
        place = end + 1
    return rounds, committed
