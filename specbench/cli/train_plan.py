"""``train plan``: the whole pipeline of a plan file in one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option, echo

from specbench.cli.train import resumable
from specbench.cli.train_fit import given


def plan(
    name: Annotated[str, Argument(metavar="PLAN", help="A plan's name or TOML file; `list` names them all.")],
    out: Annotated[Path | None, Option("--out", "-o", help="Its folder; the same folder goes on after a stop.")] = None,
    jobs: Annotated[int, Option("--jobs", "-j", min=1, help="Processes at once, each on one thread.")] = 1,
    device: Annotated[str, Option("--device", metavar="auto|cpu|cuda[:i]")] = "auto",
    packed: Annotated[
        Path | None, Option("--pack", metavar="FOLDER", help="Put what it made there, in at most 8 files of 16 MB.")
    ] = None,
) -> None:
    """Data, a search over learning rates, final trainings, exports: `specbench train plan smollm2-135m --out work`."""
    if name == "list":
        _list_plans()
        return

    def work(screen: Any) -> None:
        from specbench.resolve import rich_step
        from specbench.train.pack import pack
        from specbench.train.plan import RUNS, run_plan
        from specbench.train.plan_spec import read_plan

        work_folder = given(out, "--out")
        run_plan(read_plan(name), out=work_folder, jobs=jobs, device=device, screen=screen, step=rich_step)
        if packed is not None:
            files = pack(work_folder, packed, runs=(RUNS,))
            screen.say(f"{packed}: {', '.join(path.name for path in files)}")

    resumable(work)


def _list_plans() -> None:
    from specbench.train.plan_spec import packaged_plans, read_plan

    for name in packaged_plans():
        found = read_plan(name)
        drafters = ", ".join(entry.name for entry in found.drafters)
        echo(f"{name:<28}{found.target}: {drafters}; {len(found.search.rates)} rates, {len(found.seeds)} seeds")
