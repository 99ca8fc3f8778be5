"""The training loop: plan, divisors, loss, sum over processes, update; evaluations and checkpoints in between."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specbench.errors import ConfigError
from specbench.train.checkpoint import Curve, State, load_state, save_best, save_state
from specbench.train.evaluate import Evaluation, Judge, Tally
from specbench.train.optim import Updates, clip_gradients, learning_rate, make_optimiser
from specbench.train.progress import Meter, Screen
from specbench.train.rate import clock
from specbench.train.recipe import Recipe
from specbench.train.sampler import Plan, Sampler, load_batch

TERMS = ("ce", "soft_ce", "tv", "confidence")


def autocast_of(dtype: str, device: str) -> Callable[[], AbstractContextManager[Any]]:
    """A context in which products are computed in ``dtype``."""
    return lambda: torch.autocast(torch.device(device).type, dtype=torch.bfloat16, enabled=dtype == "bfloat16")


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What one step did, over all processes."""

    loss: float
    terms: dict[str, float]
    tally: Tally
    gradient_norm: float
    rate: float
    anchors: int

    def values(self, *, phase: int) -> dict[str, float | int | None]:
        """By column name, for the curve file."""
        found: dict[str, float | int | None] = {"phase": phase, "rate": self.rate, "loss": self.loss}
        found |= dict(self.terms)
        found |= {"gradient_norm": self.gradient_norm, "anchors": self.anchors}
        found["predictions"] = self.tally.predictions
        found["tau"] = self.tally.tau
        return found | {f"accept_{k}": a for k, a in enumerate(self.tally.rates("accept"), start=1)}


@dataclass(slots=True)
class Trainer:
    """A drafter in training with its optimiser, its data and its folder."""

    recipe: Recipe
    judge: Judge
    sampler: Sampler
    folder: Path
    screen: Screen
    stop: Callable[[], bool] = lambda: False
    flops_per_prediction: tuple[float, ...] = ()  # by phase, once probed
    flops_per_update: float = 0.0
    state: State = field(init=False)
    optimiser: Updates = field(init=False)

    def __post_init__(self) -> None:
        module = self.judge.trainable.module
        self.optimiser = make_optimiser(module, self.recipe.optimiser)
        found = load_state(self.folder, device=self.judge.device)
        if found is not None:
            module.load_state_dict(found.module)
            self.optimiser.load_state_dict(found.optimiser)
            torch.set_rng_state(found.random)
            self.state = found
        else:
            self.state = State(step=0, module={}, optimiser={}, random=torch.get_rng_state())

    # ------------------------------------------------------------------------------------------ one step

    def step(self, plan: Plan, *, number: int) -> StepOutcome:
        """One update. Errors: ConfigError when the loss is no number any more."""
        judge, module = self.judge, self.judge.trainable.module
        mine = plan.share(judge.world.rank, judge.world.size)
        self.optimiser.zero_grad()
        tally, sums = self.accumulate(mine)
        judge.world.sum_gradients(module.parameters())
        norm = clip_gradients(module.parameters(), self.recipe.optimiser.clip)
        rate = learning_rate(number, spec=self.recipe.optimiser, total=self.sampler.num_steps)
        self.optimiser.set_rate(rate)
        loss = float(sums[0])
        if not torch.isfinite(sums).all() or norm != norm:
            raise ConfigError(
                f"the training diverged at step {number + 1} (loss {loss}, gradient norm {norm}); "
                f"begin again in another folder with a lower optimiser.lr than {self.recipe.optimiser.lr:g}"
            )
        self.optimiser.step()
        terms = {name: float(v) for name, v in zip(TERMS, sums[1:]) if self._weighs(name)}
        return StepOutcome(loss, terms, tally, norm, rate, plan.num_anchors)

    def accumulate(self, mine: Plan) -> tuple[Tally, Tensor]:
        """Gradients of this process's share into the parameters; its tally and (loss, terms) over all processes."""
        judge = self.judge
        counts = judge.counts(mine)
        tally = Tally.empty(judge.trainable.drafts)
        sums = torch.zeros(1 + len(TERMS), dtype=torch.float64)
        for piece in mine.pieces(judge.micro_predictions):
            batch = load_batch(
                judge.source, piece, taps=judge.trainable.taps, hidden_size=judge.hidden_size, device=judge.device
            )
            with judge.autocast():
                found = judge.trainable.loss(batch, counts=counts)
            torch.autograd.backward(found.total)
            tally += Tally.of(found, drafts=judge.trainable.drafts)
            sums[0] += float(found.total.detach())
            for index, name in enumerate(TERMS, start=1):
                if name in found.terms:
                    sums[index] += float(found.terms[name])
        sums = judge.world.sum(sums.to(judge.device)).cpu()
        return tally.summed(judge.world, judge.device), sums

    def _weighs(self, name: str) -> bool:
        return bool(getattr(self.recipe.loss, name))

    def probe_work(self, plan: Plan) -> Callable[[], int]:
        """The work of a step on a part of ``plan``, without an update: for `rate.probe`."""
        part = next(iter(plan.pieces(self.judge.micro_predictions)))

        def work() -> int:
            tally, _ = self.accumulate(part)
            self.optimiser.zero_grad()
            return tally.predictions // self.judge.world.size

        return work

    def rehearse_update(self) -> int:
        """The products of an update, of which nothing is kept: for `rate.probe`. No predictions."""
        self.optimiser.rehearse()
        return 0

    # ------------------------------------------------------------------------------------------ all steps

    def run(self) -> None:
        """From where the state stands to the last step. Errors: KeyboardInterrupt after a stop, with all saved."""
        drafts = range(1, self.judge.trainable.drafts + 1)
        accept = [f"accept_{k}" for k in drafts]
        steps = ("phase", "rate", "loss", *TERMS, "gradient_norm", "anchors", "predictions", "tau", *accept)
        looks = ("tau", "tau_greedy", "loss", *TERMS, *accept, *(f"agree_{k}" for k in drafts))
        writes = self.judge.world.is_main
        curve = Curve(self.folder / "curve.csv", steps, upto=self.state.step) if writes else None
        heldout = Curve(self.folder / "heldout.csv", looks, upto=self.state.step) if writes else None
        meter = Meter("fit", "steps", self.sampler.num_steps, self.screen, before=self.state.step)
        begun = self.state.step
        try:
            while self.state.step < self.sampler.num_steps:
                self._one(curve)
                meter.at(self.state.step - begun)
                last = self.state.step == self.sampler.num_steps
                if last or self.state.step % self.recipe.evaluate.every == 0:
                    self._look(heldout)
                stopped = self._stopped()
                if last or stopped or self.state.step % self.recipe.checkpoint_every == 0:
                    self._save(curve, heldout)
                if stopped and not last:
                    raise KeyboardInterrupt
        finally:
            for file in (curve, heldout):
                if file is not None:
                    file.close()

    def _stopped(self) -> bool:
        """Whether any process was asked to stop: all stop after the same step."""
        asked = torch.tensor(float(self.stop()), device=self.judge.device)
        return bool(self.judge.world.sum(asked))

    def _one(self, curve: Curve | None) -> None:
        number = self.state.step
        phase = self.sampler.stretch(number)
        start = clock(self.judge.device)
        outcome = self.step(self.sampler.plan(number), number=number)
        self.state.seconds += clock(self.judge.device) - start
        self.state.step = number + 1
        self.state.anchors += outcome.anchors
        self.state.predictions += outcome.tally.predictions
        if self.flops_per_prediction:
            self.state.flops += self.flops_per_prediction[phase] * outcome.tally.predictions + self.flops_per_update
        if curve is not None:
            curve.add(number + 1, outcome.values(phase=phase + 1))

    def _look(self, heldout: Curve | None) -> None:
        """Judge the held-out rounds, and keep the weights if they are the best so far."""
        found = self.judge.evaluate(self.sampler.heldout())
        value = found.values()[self.recipe.evaluate.select]
        if value is not None and (self.state.best_value is None or value > self.state.best_value):
            self.state.best_value, self.state.best_step = value, self.state.step
            if self.judge.world.is_main:
                module = self.judge.trainable.module.state_dict()
                save_best(self.folder, module, step=self.state.step, values=found.values())
        if heldout is not None:
            heldout.add(self.state.step, found.values())
        self.screen.say(self._line(found))

    def _line(self, found: Evaluation) -> str:
        rates = " ".join("-" if a is None else f"{a:.2f}" for a in found.tally.rates("accept"))
        tau, greedy = found.tally.tau, found.tally.tau_greedy
        if tau is None or greedy is None:
            return f"step {self.state.step:,}: nothing held out could be judged"
        best = " (best so far)" if self.state.best_step == self.state.step else ""
        return (
            f"step {self.state.step:,}: held-out tau {tau:.3f} sampled, {greedy:.3f} greedy{best}; "
            f"acceptance by position {rates}; loss {found.loss:.4f}"
        )

    def _save(self, curve: Curve | None, heldout: Curve | None) -> None:
        for file in (curve, heldout):
            if file is not None:
                file.flush()  # before the checkpoint, which promises the rows up to its step
        self.state.module = self.judge.trainable.module.state_dict()
        self.state.optimiser = self.optimiser.state_dict()
        self.state.random = torch.get_rng_state()
        if self.judge.world.is_main:
            save_state(self.folder, self.state)
        self.judge.world.wait()
