"""A recipe: everything that decides how a drafter is trained, as a TOML file that refuses unknown keys."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from specbench.api import Objective
from specbench.config import parse_value, read_toml, validated
from specbench.errors import ConfigError, unknown_name
from specbench.registry import KINDS

Share = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class LossSpec(_Strict):
    """Shares of the terms and how predictions are averaged (see `specbench.api.Objective`).

    Prediction k = 0, 1, ... of a round weighs exp(-k / ``decay``) or ``base`` ** k; without either all weigh alike.
    ``normalised`` divides the weights by their sum.
    """

    ce: Share = 0.0
    soft_ce: Share = 0.0
    tv: Share = 0.0
    confidence: Share = 0.0
    decay: Annotated[float, Field(gt=0)] | None = None
    base: Annotated[float, Field(gt=0)] | None = None
    normalised: bool = False
    average: Literal["weights", "steps", "tokens"] = "weights"
    renormalise: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> LossSpec:
        if self.decay is not None and self.base is not None:
            raise ValueError("give decay or base, not both")
        if not (self.ce or self.soft_ce or self.tv):
            raise ValueError("no term teaches the drafts: give ce, soft_ce or tv a share above 0")
        return self

    def objective(self, drafts: int) -> Objective:
        """For rounds of ``drafts`` predictions."""
        if self.decay is not None:
            weights = [math.exp(-k / self.decay) for k in range(drafts)]
        else:
            weights = [(self.base or 1.0) ** k for k in range(drafts)]
        whole = sum(weights) if self.normalised else 1.0
        return Objective(
            ce=self.ce,
            soft_ce=self.soft_ce,
            tv=self.tv,
            confidence=self.confidence,
            position_weights=tuple(w / whole for w in weights),
            average=self.average,
            renormalise=self.renormalise,
        )


class OptimiserSpec(_Strict):
    """``warmup`` and ``floor`` are shares of all steps and of the peak rate ``lr``; ``clip`` bounds the norm.

    ``kind`` muon: matrices between states by Muon with ``momentum``, all else by AdamW; else AdamW for all.
    """

    kind: Literal["adamw", "muon"] = "adamw"
    lr: Annotated[float, Field(gt=0)]
    warmup: Annotated[float, Field(ge=0, lt=1)] = 0.04
    floor: Annotated[float, Field(ge=0, le=1)] = 0.0
    weight_decay: Share = 0.0
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.95
    clip: Annotated[float, Field(gt=0)] | None = 1.0


class Phase(_Strict):
    """A stretch of the curriculum: ``sequences`` a step, ``anchors`` in each (None: all), ``drafts`` after each anchor.

    ``drafts`` None is the whole round. Its length is ``steps``, or ``epochs`` over the training split.
    """

    steps: Count | None = None
    epochs: Annotated[float, Field(gt=0)] | None = None
    sequences: Count = 8
    anchors: Count | None = None
    drafts: Count | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Phase:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("a phase has either steps or epochs")
        return self

    def num_steps(self, num_sequences: int) -> int:
        """Steps of the phase over a split of that many sequences."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None, "checked when the recipe was read"
        return max(1, math.ceil(self.epochs * num_sequences / self.sequences))


class EvaluateSpec(_Strict):
    """Held-out rounds: every so many steps, on the first ``sequences`` held out, ``anchors`` in each (None: all).

    The checkpoint with the highest ``select`` is kept: tau of sampled drafts against sampling, or of greedy ones.
    """

    every: Count = 200
    sequences: Count = 64
    anchors: Count | None = 16
    select: Literal["tau", "tau_greedy"] = "tau"


class Recipe(_Strict):
    """What is trained, on what, and how. ``drafter`` are the options of the method's trainable form.

    ``vocabulary`` bounds the draft vocabulary to the commonest tokens of the data (None: all of the target's).
    ``precision`` auto computes in bfloat16 where the machine does. A step's predictions go through the drafter at most
    ``micro_predictions`` at a time.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")]
    method: Annotated[str, Field(min_length=1)]
    target: Annotated[str, Field(min_length=1)]
    note: str = ""
    drafter: dict[str, Any] = {}
    vocabulary: Count | None = None
    loss: LossSpec
    optimiser: OptimiserSpec
    phases: Annotated[tuple[Phase, ...], Field(min_length=1)]
    evaluate: EvaluateSpec = EvaluateSpec()
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    max_length: Annotated[int, Field(ge=8)] = 4096
    micro_predictions: Count = 4096
    checkpoint_every: Count = 200
    precision: Literal["auto", "bfloat16", "float32"] = "auto"
    compile: Literal["off", "inductor", "aot_eager", "eager"] = "off"

    def settings(self) -> dict[str, Any]:
        """All that decides the loss curve, as JSON; how often it is saved does not."""
        found = self.model_dump(mode="json", exclude={"checkpoint_every", "note"})
        if self.optimiser.kind == "adamw":  # said nothing of it before there was another
            found["optimiser"] = {k: v for k, v in found["optimiser"].items() if k not in ("kind", "momentum")}
        return found


def packaged_files(folder: str) -> dict[str, Path]:
    """TOML files that come with the drafters in ``folder``, by name."""
    spec = importlib.util.find_spec(KINDS["drafters"].package)
    if spec is None or not spec.submodule_search_locations:
        return {}
    place = Path(next(iter(spec.submodule_search_locations))) / folder
    return {path.stem: path for path in sorted(place.glob("*.toml"))}


def packaged_recipes() -> dict[str, Path]:
    """Recipes that come with the drafters, by name."""
    return packaged_files("recipes")


def named_file(word: str, name: str, *, packaged: Mapping[str, Path]) -> Path:
    """The file of a packaged name, or the TOML file itself. Errors: UnknownNameError for a name that is neither."""
    path = packaged.get(name, Path(name))
    if path.suffix != ".toml" and not path.is_file():
        raise unknown_name(word, name, packaged)
    return path


def read_recipe(name: str, *, sets: Iterable[str] = ()) -> Recipe:
    """A recipe by the name it is packaged under or by its file, with ``a.b=c`` changes in order.

    Errors: UnknownNameError for a name that is neither; ConfigError for what is wrong in it.
    """
    document = read_toml(named_file("recipe", name, packaged=packaged_recipes()))
    for text in sets:
        _change(document, text)
    return validated(Recipe, document)


def _change(document: dict[str, Any], text: str) -> None:
    """Write ``a.b=c`` into the document; a list is entered by number (``phases.0.steps=100``)."""
    key, equals, value = text.partition("=")
    path = [part.strip() for part in key.split(".")]
    if not equals or not all(path):
        raise ConfigError(f"--set '{text}' is not KEY=VALUE; write for example --set optimiser.lr=1e-3")
    place: Any = document
    for part in path[:-1]:
        place = place.setdefault(part, {}) if isinstance(place, dict) else _entry(place, part, text)
    if isinstance(place, dict):
        place[path[-1]] = parse_value(value.strip())
    else:
        _entry(place, path[-1], text)
        place[int(path[-1])] = parse_value(value.strip())


def _entry(place: Any, part: str, text: str) -> Any:
    if not isinstance(place, list) or not part.isdecimal() or int(part) >= len(place):
        raise ConfigError(f"--set {text}: there is no '{part}' at that place of the recipe; see its file")
    return place[int(part)]
