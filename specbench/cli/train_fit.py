"""``train fit`` and ``train export``: features to a drafter, and a drafter to a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from typer import Option

from specbench.cli.train import resumable

T = TypeVar("T")

Data = Annotated[
    list[Path] | None, Option("--data", "-d", help="Features of `train features`; with --online answers; repeatable.")
]
Online = Annotated[bool, Option("--online", help="Run the target beside the drafter instead of reading features.")]
Target = Annotated[str | None, Option("--target", help="A short name, folder or hub id. \\[the recipe's]")]
Device = Annotated[str, Option("--device", metavar="auto|cpu|cuda[:i]")]
Threads = Annotated[int | None, Option("--threads", help="Torch threads. \\[by the machine]")]
Trust = Annotated[bool, Option("--trust-remote-code", help="Run model code from the hub.")]


def fit(
    recipe: Annotated[str, Option("--recipe", "-r", help="A recipe's name or TOML file; `list` names them all.")],
    data: Data = None,
    out: Annotated[
        Path | None, Option("--out", "-o", help="The training's folder; the same folder goes on after a stop.")
    ] = None,
    sets: Annotated[
        list[str] | None, Option("--set", metavar="A.B=C", help="Change a setting of the recipe; repeatable.")
    ] = None,
    online: Online = False,
    target: Target = None,
    device: Device = "auto",
    threads: Threads = None,
    trust_remote_code: Trust = False,
) -> None:
    """Train a drafter: `specbench train fit --recipe smollm2-135m-dspark --data features --out trained`."""
    if recipe == "list":
        _list_recipes()
        return

    def work(screen: Any) -> None:
        from specbench.resolve import rich_step
        from specbench.train.fit import FitSpec
        from specbench.train.fit import fit as run_stage
        from specbench.train.recipe import read_recipe

        wanted = read_recipe(recipe, sets=sets or [])
        folders = tuple(given(data, "--data"))
        spec = FitSpec(folders, given(out, "--out"), online, target, device, threads, trust_remote_code)
        run_stage(wanted, spec, screen=screen, step=rich_step)

    resumable(work)


def export(
    run: Annotated[Path, Option("--run", help="A training's folder.")],
    out: Annotated[Path, Option("--out", "-o", help="A new folder for the checkpoint and its card.")],
    data: Data = None,
    dtype: Annotated[str, Option("--dtype", metavar="bfloat16|float32", help="Of the stored weights.")] = "bfloat16",
    online: Online = False,
    target: Target = None,
    device: Device = "auto",
    threads: Threads = None,
    trust_remote_code: Trust = False,
) -> None:
    """Write the best weights of a training as a checkpoint with a card, judged again after rounding."""

    def work(screen: Any) -> None:
        from specbench.errors import unknown_name
        from specbench.resolve import rich_step
        from specbench.train.export import ExportSpec
        from specbench.train.export import export as run_stage

        if dtype not in ("bfloat16", "float32"):
            raise unknown_name("dtype", dtype, ("bfloat16", "float32"))
        folders = tuple(given(data, "--data"))
        spec = ExportSpec(run, folders, out, dtype, online, target, device, threads, trust_remote_code)  # type: ignore[arg-type]
        run_stage(spec, screen=screen, step=rich_step)

    resumable(work)


def _list_recipes() -> None:
    from specbench.train.recipe import packaged_recipes, read_recipe

    for name in packaged_recipes():
        found = read_recipe(name)
        typer.echo(f"{name:<28}{found.method} for {found.target}; {found.note}")


def given(value: T | None, flag: str) -> T:
    """The value of a flag that a command needs. Errors: ConfigError."""
    if value is None:
        from specbench.errors import ConfigError

        raise ConfigError(f"{flag} is missing; name a folder")
    return value
