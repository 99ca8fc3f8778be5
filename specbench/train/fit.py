"""``specbench train fit``: a recipe, features and a folder; the folder ends with a trained drafter.

The folder holds the recipe, ``curve.csv`` with one row a step, ``heldout.csv`` with one row an evaluation, the newest
state, the best weights and a summary. The same command goes on where it was stopped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from specbench import provenance, registry
from specbench.errors import TrainDataError
from specbench.interrupt import StopSignal
from specbench.memory import PeakMemory
from specbench.modeling.host_memory import keep_freed
from specbench.resolve import silent_step
from specbench.session import Step, choose_device, choose_dtype
from specbench.train.bind import Bound, bind, data_hash
from specbench.train.checkpoint import RECIPE, SUMMARY
from specbench.train.distributed import World, joined
from specbench.train.evaluate import Judge
from specbench.train.frozen import frozen_view, view_of_tables
from specbench.train.loop import Trainer, autocast_of
from specbench.train.manifest import check_disk, owned, readable_bytes, same_settings, write_durably
from specbench.train.online import OnlineFeatures
from specbench.train.progress import Screen, Silence, readable_seconds
from specbench.train.rate import matrix_rate, probe
from specbench.train.recipe import Recipe
from specbench.train.sampler import Sampler
from specbench.train.store import FeatureSource, FeatureStore
from specbench.train.target import FoundTarget, find_target
from specbench.types import TargetView

_COMPILED = ("GatedMLP", "RMSNorm")
_STATE_BYTES = 4 + 4 + 8 + 4  # a parameter's weight, gradient, AdamW's two moments and best copy, all float32


@dataclass(frozen=True, slots=True)
class FitSpec:
    """What `fit` is told beside the recipe. ``target`` None is the recipe's.

    ``data`` are the folders of the features, or with ``online`` those of the answers, which then go through the target
    beside the drafter.
    """

    data: tuple[Path, ...]
    out: Path
    online: bool = False
    target: str | None = None
    device: str = "auto"
    threads: int | None = None
    trust_remote_code: bool = False


def fit(recipe: Recipe, spec: FitSpec, *, screen: Screen | None = None, step: Step = silent_step) -> dict[str, Any]:
    """Train, or go on training; the summary that lies in the folder afterwards.

    Errors: TargetError, ConfigError, UnknownNameError, TrainDataError, CapacityError; KeyboardInterrupt when it was
    stopped, with everything saved.
    """
    found = find_target(spec.target or recipe.target, trust_remote_code=spec.trust_remote_code, step=step)
    torch.set_num_threads(spec.threads or provenance.default_threads())
    with joined(choose_device(spec.device)) as (world, device):
        dtype = choose_dtype(recipe.precision, device=device)
        shown = screen if screen is not None and world.is_main else Silence()
        with opened(recipe, spec, found, dtype=dtype, device=device, step=step) as (source, view):
            bound = bind(recipe, source, view)
            return run(recipe, source, bound, out=spec.out, dtype=dtype, world=world, screen=shown)


@contextmanager
def opened(
    recipe: Recipe, spec: FitSpec, found: FoundTarget, *, dtype: str, device: str, step: Step
) -> Iterator[tuple[FeatureSource, TargetView]]:
    """Features and the target's tables. Errors: TrainDataError, TargetError, ConfigError."""
    if not spec.online:
        source = FeatureStore.open(*spec.data)
        check_target(source, found)
        view = frozen_view(
            found.resolved.path,
            dtype=dtype,
            device=device,
            name=found.name,
            max_context=recipe.max_length,
            trust_remote_code=spec.trust_remote_code,
        )
        yield source, view
        return
    target = found.load(dtype=dtype, device=device, threads=spec.threads, step=step)
    view = view_of_tables(
        target.model,
        target.model.get_input_embeddings(),
        target.model.get_output_embeddings(),
        dtype=target.lm.dtype,
        device=device,
        name=found.name,
        max_context=recipe.max_length,
    )
    taps = registry.load("trainables", recipe.method).taps(view, options=recipe.drafter)
    with OnlineFeatures.open(spec.data, target=target, taps=taps.boundaries) as online:
        check_target(online, found)
        yield online, view


def check_target(source: FeatureSource, found: FoundTarget) -> None:
    """Errors: TrainDataError when the features are another target's."""
    made_by = source.meta.get("target")
    expected = made_by.get("weights_sha256") if isinstance(made_by, Mapping) else None
    if expected is not None and expected != found.resolved.weights_sha256:
        raise TrainDataError(
            f"the features were made by '{made_by.get('name')}' with other weights than {found.name} has; "  # type: ignore[union-attr]
            "make them again, or name that target"
        )


def run(
    recipe: Recipe,
    source: FeatureSource,
    bound: Bound,
    *,
    out: Path,
    dtype: str,
    world: World,
    screen: Screen,
    stop: Callable[[], bool] | None = None,
) -> dict[str, Any]:
    """Train a bound drafter in ``out``. Errors: as `fit`."""
    device = str(bound.view.device)
    if device == "cpu":
        keep_freed()
    if recipe.compile != "off":
        compile_parts(bound.trainable.module, backend=recipe.compile)
    memory = PeakMemory(device)
    memory.start()
    if world.is_main:
        out.mkdir(parents=True, exist_ok=True)
    with _held(out, world), StopSignal() as signal:
        _settle(out, recipe, source, world)
        judge = Judge(
            trainable=bound.trainable,
            source=source,
            hidden_size=bound.view.hidden_size,
            device=device,
            micro_predictions=recipe.micro_predictions,
            autocast=autocast_of(dtype, device),
            world=world,
        )
        sampler = Sampler(recipe, source, drafts=bound.trainable.drafts)
        trainer = Trainer(recipe, judge, sampler, out, screen, stop=stop or signal)
        _announce(recipe, source, bound, trainer, out=out, dtype=dtype, screen=screen)
        trainer.run()
        summary = summarise(trainer, bound, dtype=dtype, memory=memory, source=source)
        if world.is_main:
            write_durably(out / SUMMARY, json.dumps(summary, indent=1).encode() + b"\n")
        screen.say(_closing(summary))
        return summary


def _held(out: Path, world: World) -> AbstractContextManager[None]:
    return owned(out) if world.is_main else nullcontext()


def _settle(out: Path, recipe: Recipe, source: FeatureSource, world: World) -> None:
    """Write what this folder's training is, or check that it is still that. Errors: TrainDataError."""
    wanted = {**recipe.settings(), "data_sha256": data_hash(source)}
    path = out / RECIPE
    if path.is_file():
        same_settings(json.loads(path.read_text(encoding="utf-8"))["settings"], wanted, folder=out)
    elif world.is_main:
        document = {"settings": wanted, "recipe": recipe.model_dump(mode="json")}
        write_durably(path, json.dumps(document, indent=1).encode() + b"\n")
    world.wait()


def compile_parts(module: nn.Module, *, backend: str) -> None:
    """Compile the parts whose shapes do not depend on how the sequences of a batch are cut: MLPs and norms."""
    for part in module.modules():
        if type(part).__name__ in _COMPILED:
            part.compile(backend=backend, dynamic=True)


def _announce(
    recipe: Recipe,
    source: FeatureSource,
    bound: Bound,
    trainer: Trainer,
    *,
    out: Path,
    dtype: str,
    screen: Screen,
) -> None:
    """Sizes and times before the start: one step of each phase is tried without an update."""
    parameters = bound.parameters()
    needed = parameters * _STATE_BYTES
    free = check_disk(out, needed, what="the training state")
    screen.say(f"{recipe.name}: {recipe.method} for {bound.view.name}, {dtype} on {bound.view.device}")
    screen.say(bound.budget())
    screen.say(bound.vocabulary.line())
    train, held = len(source.split("train")), len(source.split("heldout"))
    screen.say(f"data: {source.num_tokens:,} tokens, {train:,} sequences to train on, {held:,} held out")
    screen.say(f"needs {readable_bytes(needed)} of disk ({readable_bytes(free)} free) and as much memory for its state")
    sampler, total, flops = trainer.sampler, 0.0, []
    update = probe(trainer.rehearse_update, device=trainer.judge.device)
    for number, stretch in enumerate(sampler.stretches, start=1):
        plan = sampler.plan(stretch.first_step)
        drafts = stretch.phase.drafts or bound.trainable.drafts
        tried = probe(trainer.probe_work(plan), device=trainer.judge.device)
        flops.append(tried.flops / max(1, tried.predictions))
        seconds = tried.seconds * plan.num_anchors * drafts / max(1, tried.predictions) / trainer.judge.world.size
        seconds += update.seconds
        left = max(0, stretch.first_step + stretch.num_steps - max(trainer.state.step, stretch.first_step))
        total += seconds * left
        screen.say(
            f"phase {number}: {stretch.num_steps:,} steps of {stretch.phase.sequences} sequences, {plan.num_anchors:,} "
            f"anchors and {drafts} drafts each, about {seconds:.2f} s a step"
        )
    trainer.flops_per_prediction, trainer.flops_per_update = tuple(flops), update.flops
    begun = f"goes on after step {trainer.state.step:,}: " if trainer.state.step else ""
    screen.say(f"{begun}about {readable_seconds(total)}, evaluations not counted")


def summarise(
    trainer: Trainer, bound: Bound, *, dtype: str, memory: PeakMemory, source: FeatureSource
) -> dict[str, Any]:
    """What the training was and what it cost, for the summary file, the card and the screen."""
    state, device = trainer.state, trainer.judge.device
    number = torch.bfloat16 if dtype == "bfloat16" else torch.float32
    reachable = matrix_rate(number, device=device) * trainer.judge.world.size
    seconds = max(state.seconds, 1e-9)
    return {
        "recipe": trainer.recipe.name,
        "method": trainer.recipe.method,
        "target": bound.view.name,
        "steps": state.step,
        "anchors": int(state.anchors),
        "predictions": int(state.predictions),
        "parameters": bound.parameters(),
        "best_step": state.best_step,
        trainer.recipe.evaluate.select: state.best_value,
        "data_sha256": data_hash(source),
        "data_tokens": source.num_tokens,
        "train_coverage": bound.vocabulary.train_coverage,
        "heldout_coverage": bound.vocabulary.heldout_coverage,
        "processes": trainer.judge.world.size,
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu",
        "dtype": dtype,
        "seconds": state.seconds,
        "anchors_per_s": state.anchors / seconds,
        "predictions_per_s": state.predictions / seconds,
        "flop_per_s": state.flops / seconds,
        "matrix_flop_per_s": reachable,
        "matrix_share": state.flops / seconds / reachable,
        **memory.facts(),
    }


def _closing(summary: Mapping[str, Any]) -> str:
    peak = summary.get("peak_device_bytes", summary["peak_rss_bytes"])
    rate, reachable = summary["flop_per_s"] / 1e9, summary["matrix_flop_per_s"] / 1e9
    return (
        f"{summary['steps']:,} steps in {readable_seconds(summary['seconds'])}: "
        f"{summary['anchors_per_s']:,.0f} anchors/s, {summary['predictions_per_s']:,.0f} predictions/s, "
        f"{rate:,.1f} GFLOP/s ({summary['matrix_share']:.0%} of the {reachable:,.0f} of a large {summary['dtype']} "
        f"product), peak memory {readable_bytes(peak)}"
    )
