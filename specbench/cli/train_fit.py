"""``train fit`` and ``train export``: features to a drafter, and a drafter to a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

Data = Annotated[Path, Option("--data", "-d", help="The features: what `specbench train features` made.")]
Target = Annotated[str | None, Option("--target", help="A short name, folder or hub id. [the recipe's]")]
Device = Annotated[str, Option("--device", metavar="auto|cpu|cuda[:i]")]
Threads = Annotated[int | None, Option("--threads", help="Torch threads. [by the machine]")]
Trust = Annotated[bool, Option("--trust-remote-code", help="Run model code from the hub.")]


def fit(
    recipe: Annotated[str, Option("--recipe", "-r", help="A recipe's name or TOML file; `list` names them all.")],
    data: Data = Path(),
    out: Annotated[Path, Option("--out", "-o", help="The training's folder; the same one goes on.")] = Path(),
    sets: Annotated[
        list[str] | None, Option("--set", metavar="A.B=C", help="Change a setting of the recipe; repeatable.")
    ] = None,
    target: Target = None,
    device: Device = "auto",
    threads: Threads = None,
    trust_remote_code: Trust = False,
) -> None:
    """Train a drafter: `specbench train fit --recipe smollm2-135m-dspark --data features --out runs/dspark`."""
    if recipe == "list":
        _list_recipes()
        return
    _given(data, "--data")
    _given(out, "--out")

    def work(screen: Any) -> None:
        from specbench.resolve import rich_step
        from specbench.train.fit import FitSpec
        from specbench.train.fit import fit as run_stage
        from specbench.train.recipe import read_recipe
        from specbench.train.store import FeatureStore

        spec = FitSpec(out, target, device, threads, trust_remote_code)
        run_stage(read_recipe(recipe, sets=sets or []), FeatureStore.open(data), spec, screen=screen, step=rich_step)

    _resumable(work)


def export(
    run: Annotated[Path, Option("--run", help="A training's folder.")],
    data: Data,
    out: Annotated[Path, Option("--out", "-o", help="A new folder for the checkpoint and its card.")],
    dtype: Annotated[str, Option("--dtype", metavar="bfloat16|float32", help="Of the stored weights.")] = "bfloat16",
    target: Target = None,
    device: Device = "auto",
    threads: Threads = None,
    trust_remote_code: Trust = False,
) -> None:
    """Write the best weights of a training as a checkpoint, judged again after rounding."""

    def work(screen: Any) -> None:
        from specbench.errors import unknown_name
        from specbench.resolve import rich_step
        from specbench.train.export import ExportSpec
        from specbench.train.export import export as run_stage
        from specbench.train.store import FeatureStore

        if dtype not in ("bfloat16", "float32"):
            raise unknown_name("dtype", dtype, ("bfloat16", "float32"))
        spec = ExportSpec(run, out, dtype, target, device, threads, trust_remote_code)  # type: ignore[arg-type]
        run_stage(FeatureStore.open(data), spec, screen=screen, step=rich_step)

    _resumable(work)


def _list_recipes() -> None:
    from specbench.train.recipe import packaged_recipes, read_recipe

    for name in packaged_recipes():
        found = read_recipe(name)
        typer.echo(f"{name:<28}{found.method} for {found.target}; {found.note}")


def _given(path: Path, flag: str) -> None:
    from specbench.errors import ConfigError

    if path == Path():
        raise ConfigError(f"{flag} is missing; name a folder")


def _resumable(work: Any) -> None:
    """Run a stage; Ctrl-C says how to go on instead of a traceback."""
    from specbench.cli.train import Terminal

    screen = Terminal()
    try:
        work(screen)
    except KeyboardInterrupt:
        screen.say("interrupted: everything up to here is saved; the same command goes on")
        raise typer.Exit(130) from None
