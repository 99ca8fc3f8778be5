"""``loads``: every policy and length at each load, beside the best fixed length."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def loads(
    folder: Annotated[Path, typer.Argument(help="A folder with records of several policies at the same loads.")],
) -> None:
    """Steady throughput at each load over that of the best fixed length, paired by repeat, and the budget."""
    from rich.console import Console

    from specbench.cli.outcome import PLAIN_WIDTH
    from specbench.errors import RecordError
    from specbench.records import store
    from specbench.report.loads import at_loads, loads_table

    records, broken = store.scan(folder)
    if not records:
        raise RecordError(f"{folder} holds no readable record; name the folder of a sweep")
    console = Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH)
    found, notes = at_loads(records)
    console.print(loads_table(found, notes))
    for error in broken:
        print(f"warning: left out: {error}", file=sys.stderr)
