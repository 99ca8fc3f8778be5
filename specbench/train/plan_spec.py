"""A training plan: data, a search over learning rates, final seeds, as a TOML file that refuses unknown keys."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from specbench.config import read_toml, validated
from specbench.errors import ConfigError
from specbench.train.recipe import Recipe, named_file, packaged_files, read_recipe
from specbench.train.spec import PrepareSpec

_OURS = ("out", "features", "seed", "target", "device", "threads")  # the plan's own business
Rate = Annotated[float, Field(gt=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DraftersEntry(_Strict):
    """One drafter of the plan: its recipe, the folder its weights go to, and the same changes for all its runs.

    ``rate``: its learning rate where that is known already; it is not searched then.
    """

    recipe: Annotated[str, Field(min_length=1)]
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    set: tuple[str, ...] = ()
    rate: Rate | None = None


class SearchSpec(_Strict):
    """Every recipe is tried with each learning rate for this share of its steps."""

    rates: Annotated[tuple[Rate, ...], Field(min_length=1)]
    share: Annotated[float, Field(gt=0, le=1)] = 0.25


class TrainPlan(_Strict):
    """What `specbench train plan` does. ``prepare`` are settings of `PrepareSpec`, ``parts`` runs of it with seeds
    0, 1, ..., each with features of its own; ``target_tokens`` may be a list, one number a part. Each drafter's final
    training is run with every one of ``seeds``, at the learning rate that did best on what was held out. That of the
    first seed is exported, whatever the others show: the best of several would be better than the method.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")]
    target: Annotated[str, Field(min_length=1)]
    prepare: dict[str, Any]
    parts: Annotated[int, Field(ge=1)] = 1
    drafters: Annotated[tuple[DraftersEntry, ...], Field(min_length=1)]
    search: SearchSpec
    seeds: Annotated[tuple[Annotated[int, Field(ge=0, lt=2**31)], ...], Field(min_length=1)] = (0, 1)

    @model_validator(mode="after")
    def _consistent(self) -> TrainPlan:
        listed: tuple[tuple[str, list[Any]], ...] = (
            ("drafter name", [d.name for d in self.drafters]),
            ("learning rate", list(self.search.rates)),
            ("seed", list(self.seeds)),
        )
        for what, values in listed:
            twice = [v for v in values if values.count(v) > 1]
            if twice:
                raise ValueError(f"{what} {twice[0]} is listed twice; list it once")
        mine = sorted(set(self.prepare) & set(_OURS))
        if mine:
            raise ValueError(f"prepare.{mine[0]} is set by the plan itself; leave it out")
        sizes = self.prepare.get("target_tokens")
        if isinstance(sizes, list) and len(sizes) != self.parts:
            raise ValueError(
                f"prepare.target_tokens lists {len(sizes)} sizes for {self.parts} parts; list one for each"
            )
        return self

    def part(self, number: int, *, out: Path, device: str) -> PrepareSpec:
        """Settings of one part of the data. Errors: ConfigError, UnknownNameError."""
        folder = out / "data" / f"part-{number}"
        given = {**self.prepare, "target": self.target, "seed": number, "device": device, "threads": 1}
        if isinstance(given.get("target_tokens"), list):
            given["target_tokens"] = given["target_tokens"][number]
        return validated(PrepareSpec, {**given, "out": folder / "answers", "features": folder / "features"})

    def recipe(self, entry: DraftersEntry, *, rate: float, seed: int, share: float = 1.0) -> list[str]:
        """Changes of the entry's recipe for one run, as ``--set`` writes them. Errors: as `read_recipe`."""
        whole = read_recipe(entry.recipe, sets=entry.set)
        sets = [*entry.set, f"optimiser.lr={rate!r}", f"seed={seed}"]
        if share < 1:
            for number, phase in enumerate(whole.phases):
                kind, length = ("steps", phase.steps) if phase.steps is not None else ("epochs", phase.epochs)
                assert length is not None, "a phase has either"
                cut = max(1, math.ceil(length * share)) if kind == "steps" else length * share
                sets.append(f"phases.{number}.{kind}={cut!r}")
        return sets

    def check(self) -> dict[str, Recipe]:
        """Read every recipe, by drafter. Errors: as `read_recipe`; ConfigError for a recipe of another target."""
        found = {entry.name: read_recipe(entry.recipe, sets=entry.set) for entry in self.drafters}
        for recipe in found.values():
            if recipe.target != self.target:
                raise ConfigError(
                    f"recipe {recipe.name} trains a drafter for {recipe.target}, the plan's target is {self.target}; "
                    "name recipes of one target"
                )
        return found


def packaged_plans() -> dict[str, Path]:
    """Plans that come with the drafters, by name."""
    return packaged_files("recipes/plans")


def read_plan(name: str) -> TrainPlan:
    """A plan by the name it is packaged under or by its file. Errors: UnknownNameError, ConfigError."""
    return validated(TrainPlan, read_toml(named_file("plan", name, packaged=packaged_plans())))
