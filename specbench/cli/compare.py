"""``compare``: two runs, or two folders row by row, paired on prompt and seed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

_NAME = "A record's file, a run id (or its beginning), a folder, or a method of --in, as dspark:7."


def compare(
    first: Annotated[str, Argument(metavar="A", help=_NAME)],
    second: Annotated[str, Argument(metavar="B", help=_NAME)],
    folder: Annotated[Path, Option("--in", help="Where to look run ids and methods up.")] = Path("runs"),
    timings: Annotated[
        bool, Option("--timings/--no-timings", help="Compare times too; the machines must agree then.")
    ] = True,
) -> None:
    """Compare B with A: differences and ratios with paired intervals; refuses rows that are not comparable."""
    import sys

    from rich.console import Console

    from specbench.cli.outcome import PLAIN_WIDTH
    from specbench.report.compare import compare as compared
    from specbench.report.compare import comparison_table

    console = Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH)
    for found in compared(first, second, folder=folder, timings=timings):
        console.print(comparison_table(found))
