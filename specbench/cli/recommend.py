"""``recommend``: the method, draft length and policy for a service level, from records."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from specbench.cli import level_options as level

Runs = Annotated[list[str] | None, Argument(metavar="RUN...", help="Folders, record files or run ids. \\[--in]")]
In = Annotated[Path, Option("--in", help="Where to look run ids up.")]
Load = Annotated[str | None, Option(help="Weigh this load only, as tables name it: closed:8. \\[all]")]
Floor = Annotated[float | None, Option(metavar="TOK/S", help="Least mean tok/s/user.")]


def recommend(
    runs: Runs = None,
    floor: Floor = None,
    ttft_p50: level.TtftP50 = None,
    ttft_p90: level.TtftP90 = None,
    ttft_p99: level.TtftP99 = None,
    tpot_p50: level.TpotP50 = None,
    tpot_p90: level.TpotP90 = None,
    tpot_p99: level.TpotP99 = None,
    load: Load = None,
    folder: In = Path("runs"),
) -> None:
    """Choose a setting for a service level, with reasons: `specbench recommend runs --floor 20 --ttft-p99 2`.

    Exit code 1 when no setting attains it.
    """
    given = dict(locals())
    from rich.console import Console

    from specbench.cli.outcome import PLAIN_WIDTH
    from specbench.cli.sla import service_levels
    from specbench.records.sources import collect
    from specbench.report.recommend import recommend as choose
    from specbench.report.recommend_table import recommend_table

    (wanted,) = service_levels([floor] if floor is not None else None, given)
    collected = collect(runs or [], folder=folder)
    found = choose(collected.records, wanted, load=load)
    console = Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH)
    console.print(recommend_table(found))
    for error in collected.broken:
        print(f"warning: left out: {error}", file=sys.stderr)
    if found.chosen is None:
        raise typer.Exit(1)
