"""``verdicts``: is every cell of a folder lossless, and what alarms did it raise."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def verdicts(folder: Annotated[Path, typer.Argument(help="A folder with records, of a sweep or a run.")]) -> None:
    """The losslessness verdict of every cell, sampled ones corrected over the folder (Holm), and its alarms."""
    from rich.console import Console

    from specbench.cli.outcome import PLAIN_WIDTH
    from specbench.errors import RecordError
    from specbench.records import store
    from specbench.report.verdicts import sweep_verdicts, verdicts_table

    records, broken = store.scan(folder)
    if not records:
        raise RecordError(f"{folder} holds no readable record; name the folder of a run or sweep")
    console = Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH)
    console.print(verdicts_table(sweep_verdicts(records)))
    for error in broken:
        print(f"warning: left out: {error}", file=sys.stderr)
