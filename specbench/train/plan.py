"""``specbench train plan``: data, a search over learning rates, final trainings and exports, in one command.

The folder holds ``data/part-N``, ``search/NAME-lrR``, ``final/NAME-sN``, ``weights/NAME``, ``logs``, in ``runs.json``
and ``runs.csv`` every training that was run, and in ``curves.csv`` what was held out of each along its way. Each stage
resumes by itself, so the same command goes on after any stop.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.errors import TrainDataError
from specbench.resolve import silent_step
from specbench.session import Step, choose_device
from specbench.train import curves
from specbench.train.checkpoint import SUMMARY
from specbench.train.jobs import Job, run_jobs
from specbench.train.manifest import MANIFEST, fingerprint, owned, same_settings, write_durably
from specbench.train.plan_spec import DraftersEntry, TrainPlan
from specbench.train.progress import Screen, Silence
from specbench.train.recipe import Recipe
from specbench.train.target import find_target

PLAN, RUNS, TABLE, CURVES = "plan.json", "runs.json", "runs.csv", "curves.csv"
_COLUMNS = (
    "drafter", "stage", "lr", "seed", "steps", "predictions", "heldout_tau", "best_step", "seconds", "anchors_per_s",
    "predictions_per_s", "matrix_share", "peak_bytes", "chosen", "folder",
)  # fmt: skip
_COPIED = ("steps", "predictions", "best_step", "seconds", "anchors_per_s", "predictions_per_s", "matrix_share")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One finished training of the plan. ``value`` is the held-out figure that its recipe selects by."""

    drafter: str
    stage: str  # "search" or "final"
    rate: float
    seed: int
    value: float | None
    folder: str  # below the plan's folder
    summary: dict[str, Any]

    def names(self) -> dict[str, object]:
        """What tells it from the other trainings of the plan."""
        return {"drafter": self.drafter, "stage": self.stage, "lr": self.rate, "seed": self.seed}

    def row(self, *, chosen: bool) -> dict[str, Any]:
        """For the tables."""
        found = {name: self.summary.get(name) for name in _COPIED}
        peak = self.summary.get("peak_device_bytes", self.summary.get("peak_rss_bytes"))
        return {
            **self.names(), **found, "heldout_tau": self.value, "peak_bytes": peak, "chosen": chosen,
            "folder": self.folder,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Trial:
    """A training that the plan asks for."""

    entry: DraftersEntry
    stage: str
    rate: float
    seed: int

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.entry.name}-lr{self.rate:g}" if self.stage == "search" else f"{self.entry.name}-s{self.seed}"


def run_plan(
    plan: TrainPlan,
    *,
    out: Path,
    jobs: int = 1,
    device: str = "auto",
    screen: Screen | None = None,
    step: Step = silent_step,
) -> list[Outcome]:
    """Do all of it, or go on with it; the final trainings.

    ``jobs`` processes work at once, each on one thread. Errors: whatever the plan asks for that cannot be had;
    TrainDataError for a stage that failed or a folder that holds another plan's work.
    """
    screen = screen or Silence()
    recipes = plan.check()
    device = choose_device(device)
    parts = [plan.part(number, out=out, device=device) for number in range(plan.parts)]
    find_target(plan.target, trust_remote_code=False, step=step)  # fetched once, before several processes want it
    with owned(out):
        _settle(plan, recipes, out, device=device)
        run = _Run(plan, recipes, out, jobs, device, screen)
        screen.say(
            f"{plan.name}: {plan.parts} parts of data, {len(run.searches())} trials, {len(run.finals())} trainings"
        )
        run.stage("data", [_prepare_job(plan, number, part.out, out, device) for number, part in enumerate(parts)])
        run.stage("check", [run.check_job()])
        run.stage("search", [run.fit_job(trial, plan.search.share) for trial in run.searches()])
        rates = run.best_rates()
        run.stage("final", [run.fit_job(trial, 1.0) for trial in run.finals(rates)])
        first = run.first_finals(rates)
        run.stage("export", [run.export_job(outcome) for outcome in first.values()])
        run.write(rates)
        return run.outcomes("final", run.finals(rates))


def _settle(plan: TrainPlan, recipes: dict[str, Recipe], out: Path, *, device: str) -> None:
    """Write what this folder is for, or check that it is still that; more data, rates or seeds may be asked for.

    Data do not depend on recipes: before the first training these may change.
    """
    data = {"name": plan.name, "target": plan.target, "device": device}
    settings = {f"recipe {name}": fingerprint(recipe.settings()) for name, recipe in recipes.items()}
    wanted = {**data, "share": plan.search.share, **settings}
    path = out / PLAN
    if path.is_file():
        trained = any((out / stage).is_dir() for stage in ("search", "final"))
        held = json.loads(path.read_text(encoding="utf-8"))
        same_settings(
            held if trained else {name: held.get(name) for name in data}, wanted if trained else data, folder=out
        )
    write_durably(path, json.dumps(wanted, indent=1).encode() + b"\n")


def _prepare_job(plan: TrainPlan, number: int, folder: Path, out: Path, device: str) -> Job:
    settings = plan.part(number, out=out, device=device).model_dump(mode="json", exclude_unset=True)
    arguments = ["train", "prepare"]
    for name, value in settings.items():
        flag = {"tasks": "--task"}.get(name, f"--{name.replace('_', '-')}")
        if name in ("tasks", "evaluation"):
            arguments += [part for one in value for part in (flag, str(one))]
        elif isinstance(value, bool):
            arguments += [flag] if value else []
        elif value is not None:
            arguments += [flag, ",".join(map(str, value)) if isinstance(value, list) else str(value)]
    wanted = plan.part(number, out=out, device=device).target_tokens

    def done() -> bool:
        features = _document(folder.parent / "features" / MANIFEST)
        answers = _document(folder / MANIFEST)
        written = sum(int(shard["target_tokens"]) for shard in answers.get("shards", ()))
        enough = not answers.get("stopped_early") or (wanted is not None and written >= wanted)
        return bool(answers.get("complete")) and enough and bool(features.get("complete"))

    return Job(f"part-{number}", tuple(arguments), done)


def _document(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return found


@dataclass(frozen=True, slots=True)
class _Run:
    """One session of a plan in its folder."""

    plan: TrainPlan
    recipes: dict[str, Recipe]
    out: Path
    at_once: int
    device: str
    screen: Screen

    def stage(self, name: str, jobs: Sequence[Job]) -> None:
        self.screen.say(f"{name}: {len(jobs)} to do, {self.at_once} at once")
        run_jobs(jobs, at_once=self.at_once, logs=self.out / "logs", screen=self.screen)

    # ---------------------------------------------------------------------------------------------- trials

    def searches(self) -> list[Trial]:
        """Every drafter whose rate is not known with every learning rate; all drafters' first rates first."""
        seed, rates = self.plan.seeds[0], self.plan.search.rates
        if len(rates) == 1:
            return []
        unknown = [entry for entry in self.plan.drafters if entry.rate is None]
        return [Trial(entry, "search", rate, seed) for rate in rates for entry in unknown]

    def finals(self, rates: dict[str, float] | None = None) -> list[Trial]:
        """Every drafter with every seed, at its own rate."""
        known = rates or {}
        return [
            Trial(entry, "final", known.get(entry.name, entry.rate or self.plan.search.rates[0]), seed)
            for seed in self.plan.seeds
            for entry in self.plan.drafters
        ]

    def folder(self, trial: Trial) -> Path:
        return self.out / trial.stage / trial.name

    def fit_job(self, trial: Trial, share: float) -> Job:
        sets = self.plan.recipe(trial.entry, rate=trial.rate, seed=trial.seed, share=share)
        arguments = ["train", "fit", "--recipe", trial.entry.recipe, *self._where("--out", self.folder(trial))]
        arguments += [part for text in sets for part in ("--set", text)]
        return Job(f"{trial.stage}-{trial.name}", tuple(arguments), self._has(self.folder(trial) / SUMMARY))

    def export_job(self, outcome: Outcome) -> Job:
        out = self.out / "weights" / outcome.drafter
        where = self._where("--run", self.out / outcome.folder)

        def done() -> bool:
            card = _document(out / "card.json")
            if card and card["recipe"].get("seed", 0) != outcome.seed:
                raise TrainDataError(f"{out} holds the drafter of another seed than {outcome.seed}; move it away")
            return bool(card)

        return Job(f"export-{outcome.drafter}", ("train", "export", "--out", str(out), *where), done)

    def check_job(self) -> Job:
        folders = [self.out / "data" / f"part-{number}" / "answers" for number in range(self.plan.parts)]
        manifests = [_document(folder / MANIFEST).get("content") for folder in folders]
        mark = self.out / "data" / f"checked-{fingerprint(manifests)[:16]}"
        evaluation = self.plan.prepare.get("evaluation") or ()
        arguments = ["train", "check", *[part for folder in folders for part in ("--data", str(folder))]]
        arguments += [part for folder in folders for part in ("--features", str(folder.parent / "features"))]
        arguments += [part for task in evaluation for part in ("--evaluation", str(task))]
        return Job("check", (*arguments, "--mark", str(mark)), self._has(mark))

    def _where(self, flag: str, folder: Path) -> list[str]:
        data = [self.out / "data" / f"part-{number}" / "features" for number in range(self.plan.parts)]
        given = [part for one in data for part in ("--data", str(one))]
        return [*given, flag, str(folder), "--device", self.device, "--threads", "1"]

    @staticmethod
    def _has(path: Path) -> Callable[[], bool]:
        return path.is_file

    # --------------------------------------------------------------------------------------------- outcomes

    def outcomes(self, stage: str, trials: Sequence[Trial]) -> list[Outcome]:
        found = []
        for trial in trials:
            folder = self.folder(trial)
            summary = _document(folder / SUMMARY)
            value = summary.get(self.recipes[trial.entry.name].evaluate.select)
            place = str(folder.relative_to(self.out))
            found.append(Outcome(trial.entry.name, stage, trial.rate, trial.seed, value, place, summary))
        return found

    def best_rates(self) -> dict[str, float]:
        """Of each drafter its own rate or that which did best; said when it is the first or last one tried."""
        rates = self.plan.search.rates
        if len(rates) == 1:
            return {entry.name: entry.rate or rates[0] for entry in self.plan.drafters}
        chosen = {entry.name: entry.rate for entry in self.plan.drafters if entry.rate is not None}
        for name, best in _best(self.outcomes("search", self.searches())).items():
            chosen[name] = best.rate
            edge = ", at the edge of those tried" if best.rate in (min(rates), max(rates)) else ""
            self.screen.say(f"{name}: learning rate {best.rate:g} (held-out tau {best.value:.3f}){edge}")
        return chosen

    def first_finals(self, rates: dict[str, float]) -> dict[str, Outcome]:
        """Of each drafter the training that is exported: with the first seed, however the others came out."""
        trained = self.outcomes("final", self.finals(rates))
        return _best([outcome for outcome in trained if outcome.seed == self.plan.seeds[0]])

    def write(self, rates: dict[str, float]) -> None:
        """Every training that was run, the chosen ones marked."""
        searches, finals = self.outcomes("search", self.searches()), self.outcomes("final", self.finals(rates))
        rows = [outcome.row(chosen=rates[outcome.drafter] == outcome.rate) for outcome in searches]
        rows += [outcome.row(chosen=outcome.seed == self.plan.seeds[0]) for outcome in finals]
        write_durably(self.out / RUNS, json.dumps({"plan": self.plan.name, "runs": rows}, indent=1).encode() + b"\n")
        text = io.StringIO()
        writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_durably(self.out / TABLE, text.getvalue().encode())
        every = [(outcome, curves.read_points(self.out / outcome.folder)) for outcome in (*searches, *finals)]
        write_durably(self.out / CURVES, curves.table((o.names(), points) for o, points in every).encode())
        for outcome, points in every:
            fit = curves.fit_thirds(points) if outcome.stage == "final" else None
            if fit is not None:
                self.screen.say(
                    f"{outcome.drafter}, seed {outcome.seed}: held-out tau {', '.join(f'{t:.3f}' for t in fit.thirds)} "
                    f"after each third; twice the predictions would be expected to give {fit.after(2):.2f}, "
                    f"four times as many {fit.after(4):.2f}"
                )
        self.screen.say(f"all {len(rows)} trainings are listed in {self.out / TABLE}")


def _best(outcomes: Sequence[Outcome]) -> dict[str, Outcome]:
    """The best of each drafter, the first of equals. Errors: TrainDataError where none could be judged."""
    found: dict[str, Outcome] = {}
    for outcome in outcomes:
        if outcome.value is None:
            continue
        held = found.get(outcome.drafter)
        if held is None or held.value is None or outcome.value > held.value:
            found[outcome.drafter] = outcome
    for outcome in outcomes:
        if outcome.drafter not in found:
            raise TrainDataError(
                f"no training of {outcome.drafter} could be judged: the data holds out too little; "
                "begin again in another folder with a larger prepare.heldout_share"
            )
    return found
