"""``specbench train export``: the best weights of a training as a compact checkpoint, with a card that says what it is.

What the card claims is measured on the weights as they are written, after rounding.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from specbench import provenance
from specbench.errors import TrainDataError
from specbench.resolve import silent_step
from specbench.session import Step, choose_device, choose_dtype
from specbench.train.bind import Bound, bind, data_hash
from specbench.train.checkpoint import RECIPE, SUMMARY, load_best
from specbench.train.distributed import World
from specbench.train.evaluate import Judge
from specbench.train.fit import FitSpec, opened
from specbench.train.loop import autocast_of
from specbench.train.manifest import readable_bytes, write_durably
from specbench.train.progress import Screen
from specbench.train.recipe import Recipe
from specbench.train.sampler import Sampler
from specbench.train.store import FeatureSource
from specbench.train.target import find_target

CARD_VERSION = 1
_COST = ("seconds", "device", "dtype", "processes", "anchors", "predictions", "anchors_per_s", "matrix_share",
         "peak_device_bytes", "peak_rss_bytes")  # fmt: skip


@dataclass(frozen=True, slots=True)
class ExportSpec:
    """A training's folder, what it was trained on as `FitSpec` has it, and the new folder of the checkpoint."""

    run: Path
    data: tuple[Path, ...]
    out: Path
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    online: bool = False
    target: str | None = None
    device: str = "auto"
    threads: int | None = None
    trust_remote_code: bool = False


def export(spec: ExportSpec, *, screen: Screen | None = None, step: Step = silent_step) -> dict[str, Any]:
    """Write the checkpoint and its card; the card.

    Errors: TrainDataError when the folder holds no training or the features are not those it was trained on;
    CheckpointError when the destination is not empty; TargetError.
    """
    recipe, settings = read_run(spec.run)
    found = find_target(spec.target or recipe.target, trust_remote_code=spec.trust_remote_code, step=step)
    torch.set_num_threads(spec.threads or provenance.default_threads())
    device = choose_device(spec.device)
    dtype = choose_dtype(recipe.precision, device=device)
    given = FitSpec(spec.data, spec.run, spec.online, spec.target, spec.device, spec.threads, spec.trust_remote_code)
    with opened(recipe, given, found, dtype=dtype, device=device, step=step) as (source, view):
        if settings.get("data_sha256") != data_hash(source):
            raise TrainDataError(f"{spec.run} was trained on other features; give the ones that it was trained on")
        bound = bind(recipe, source, view)
        card = write(recipe, source, bound, run=spec.run, out=spec.out, stored=spec.dtype, dtype=dtype)
    if screen is not None:
        screen.say(_line(card, spec.out))
    return card


def read_run(folder: Path) -> tuple[Recipe, dict[str, Any]]:
    """The recipe of a training's folder and all that decides its curve. Errors: TrainDataError."""
    try:
        document = json.loads((folder / RECIPE).read_text(encoding="utf-8"))
        return Recipe.model_validate(document["recipe"]), dict(document["settings"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TrainDataError(
            f"{folder} holds no training that can be read ({type(error).__name__}: {RECIPE})"
        ) from error


def write(
    recipe: Recipe, source: FeatureSource, bound: Bound, *, run: Path, out: Path, stored: str, dtype: str
) -> dict[str, Any]:
    """Round the best weights, judge them on what was held out, write them with their card."""
    device = str(bound.view.device)
    best = load_best(run, device=device)
    bound.trainable.module.load_state_dict(best["module"])
    bound.trainable.round_to(stored)
    judge = Judge(
        trainable=bound.trainable,
        source=source,
        hidden_size=bound.view.hidden_size,
        device=device,
        micro_predictions=recipe.micro_predictions,
        autocast=autocast_of(dtype, device),
        world=World(),
    )
    sampler = Sampler(recipe, source, drafts=bound.trainable.drafts)
    plan = sampler.heldout()
    judged = judge.evaluate(plan).values()
    rounds, committed = judge.walk(sampler, plan.sequences)
    bound.trainable.export(out, dtype=stored)
    size = sum(file.stat().st_size for file in out.iterdir())
    card = {
        "card_version": CARD_VERSION,
        "recipe": recipe.model_dump(mode="json", exclude_unset=True),
        "steps": int(best["step"]),
        "data_sha256": data_hash(source),
        "data_tokens": source.num_tokens,
        "draft_vocabulary": None if bound.vocabulary.ids is None else len(bound.vocabulary.ids),
        "heldout_coverage": bound.vocabulary.heldout_coverage,
        "parameters": bound.parameters(),
        "bytes": size,
        "heldout": judged,
        "heldout_rounds": plan.num_anchors,
        "text_tau": committed / rounds if rounds else None,
        "text_rounds": rounds,
        "training": _cost(run),
    }
    _write_card(out, card)
    return card


def _cost(run: Path) -> Mapping[str, Any]:
    path = run / SUMMARY
    if not path.is_file():
        return {}
    found = json.loads(path.read_text(encoding="utf-8"))
    return {name: found[name] for name in _COST if name in found}


def _write_card(out: Path, card: dict[str, Any]) -> None:
    write_durably(out / "card.json", json.dumps(card, indent=1).encode() + b"\n")
    write_durably(out / "CARD.md", _markdown(card).encode())
    write_durably(out / "NOTE.txt", (_note(card) + "\n").encode())


def _note(card: Mapping[str, Any]) -> str:
    return (
        f"trained by {card['recipe']['name']}, {card['steps']:,} steps; held-out tau "
        f"{_figure(card['heldout']['tau'])} sampled, {_figure(card['heldout']['tau_greedy'])} greedy"
    )


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _markdown(card: Mapping[str, Any]) -> str:
    recipe, held = card["recipe"], card["heldout"]
    positions = [k.removeprefix("accept_") for k in held if k.startswith("accept_")]
    rows = "".join(f"| {k} | {_figure(held[f'accept_{k}'])} | {_figure(held[f'agree_{k}'])} |\n" for k in positions)
    coverage = card["heldout_coverage"]
    reduced = (
        f"{card['draft_vocabulary']:,} tokens, which name {coverage:.2%} of the held-out ones"
        if card["draft_vocabulary"] is not None and coverage is not None
        else "that of the target"
    )
    return (
        f"# {recipe['name']}\n\n"
        f"A {recipe['method']} drafter for {recipe['target']}. {recipe.get('note', '')}\n\n"
        f"- {card['parameters'] / 1e6:.2f} million parameters, {card['bytes'] / 1e6:.1f} MB; embedding and head are "
        "the target's\n"
        f"- draft vocabulary: {reduced}\n"
        f"- weights of step {card['steps']:,}, the best on {card['heldout_rounds']:,} held-out rounds\n"
        f"- accepted length there, bonus included: {_figure(held['tau'])} sampled, "
        f"{_figure(held['tau_greedy'])} greedy\n"
        f"- accepted length when the held-out texts themselves are decoded: {_figure(card['text_tau'])} over "
        f"{card['text_rounds']:,} rounds\n"
        f"- data: {card['data_tokens']:,} tokens, sha256 {card['data_sha256']}\n\n"
        "| position | acceptance rate | argmax agrees |\n|---|---|---|\n" + rows + "\n"
        "The whole recipe and what the training cost are in card.json.\n"
    )


def _line(card: Mapping[str, Any], out: Path) -> str:
    return f"{out}: {readable_bytes(card['bytes'])}, {_note(card)}, text tau {_figure(card['text_tau'])}"
