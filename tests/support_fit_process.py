"""Processes of their own that train the tiny drafter: to be killed, or to be one of several.

They are forked, so that nothing has to be imported a second time.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from support_training import bound, memory_store, recipe, trained_target

from specbench.train.distributed import World, joined
from specbench.train.evaluate import Judge
from specbench.train.fit import run
from specbench.train.loop import Trainer, autocast_of
from specbench.train.progress import Silence
from specbench.train.recipe import Recipe
from specbench.train.sampler import Sampler

KILLED: dict[str, Any] = {
    "phases": [{"steps": 12, "sequences": 3, "drafts": 2}, {"steps": 14, "sequences": 3, "anchors": 6}],
    "evaluate": {"every": 8, "sequences": 3, "anchors": 4},
    "checkpoint_every": 5,
}
SHARED: dict[str, Any] = {
    "phases": [{"steps": 2, "sequences": 5, "anchors": 6}],
    "micro_predictions": 30,
    "optimiser": {"kind": "muon", "lr": 1e-3},
}


class Slow(Silence):
    """A screen that leaves time to be killed."""

    def show(self, progress: Any) -> None:
        time.sleep(0.03)


def store() -> tuple[Any, Any]:
    """The target and its texts, the same in every process."""
    model = trained_target()
    return model, memory_store(model, count=5, answer=16)


def trainer(wanted: Recipe, folder: Path, world: World) -> Trainer:
    """A trainer that has made no step."""
    model, texts = store()
    made = bound(model, texts, wanted)
    judge = Judge(made.trainable, texts, 32, "cpu", wanted.micro_predictions, autocast_of("float32", "cpu"), world)
    return Trainer(wanted, judge, Sampler(wanted, texts, drafts=made.trainable.drafts), folder, Silence())


def first_gradients(wanted: Recipe, folder: Path, world: World) -> dict[str, torch.Tensor]:
    """Of the first step, summed over all processes, by name."""
    made = trainer(wanted, folder, world)
    made.accumulate(made.sampler.plan(0).share(world.rank, world.size))
    module = made.judge.trainable.module
    world.sum_gradients(module.parameters())
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


def fit_slowly(folder: Path, method: str) -> None:
    """A training that can be killed in its middle."""
    model, texts = store()
    wanted = recipe(method, **KILLED)
    run(wanted, texts, bound(model, texts, wanted), out=folder, dtype="float32", world=World(), screen=Slow())


def fit_shared(folder: Path, method: str) -> None:
    """Gradients of the first step to a file, then the whole training, as one of the launcher's processes."""
    model, texts = store()
    wanted = recipe(method, **SHARED)
    with joined("cpu") as (world, _):
        found = first_gradients(wanted, folder, world)
        if world.is_main:
            torch.save(found, folder / "gradients.pt")
        made = bound(model, texts, wanted)
        run(wanted, texts, made, out=folder / "run", dtype="float32", world=world, screen=Silence())


def begun(job: Any, folder: Path, method: str, environment: Mapping[str, str] | None = None) -> BaseProcess:
    """One of the jobs above in a process of its own."""

    def work() -> None:
        os.environ.update(environment or {})
        torch.set_num_threads(1)
        job(folder, method)

    process = multiprocessing.get_context("fork").Process(target=work, daemon=True)
    process.start()
    return process
