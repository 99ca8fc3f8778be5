"""``frontier``: throughput against tok/s/user of every method in a folder, and what it gains over plain decoding."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from typer import Option


def frontier(
    folder: Annotated[Path, typer.Argument(help="A folder with records of several loads, of a sweep or a search.")],
    baseline: Annotated[str, Option(help="The method that gains are over.")] = "vanilla",
) -> None:
    """Both axes of every load with intervals, gains at equal speed and at equal throughput, and break-even tau."""
    from rich.console import Console

    from specbench.cli.outcome import PLAIN_WIDTH
    from specbench.errors import RecordError
    from specbench.records import store
    from specbench.report.frontier import frontier as curves_of
    from specbench.report.frontier import frontier_table

    records, broken = store.scan(folder)
    if not records:
        raise RecordError(f"{folder} holds no readable record; name the folder of a sweep or search")
    console = Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH)
    console.print(frontier_table(curves_of(records), baseline=baseline))
    for error in broken:
        print(f"warning: left out: {error}", file=sys.stderr)
