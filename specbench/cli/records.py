"""``show``: one record on the screen."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def show(
    record: Annotated[str, typer.Argument(help="A record's file, or its run id (or the beginning of it).")],
    folder: Annotated[Path, typer.Option("--in", help="Where to look a run id up.")] = Path("runs"),
    check: Annotated[bool, typer.Option("--check", help="Compute every number again from the rounds.")] = False,
) -> None:
    """Show a record: what ran, its numbers with intervals, the verdict and its evidence."""
    from rich.console import Console

    from specbench.errors import RecordError
    from specbench.records import store
    from specbench.report.tables import show_record

    given = Path(record)
    path = given if given.suffix == ".json" or given.is_file() else store.find(folder, record)
    found = store.read(path)
    Console().print(show_record(found))
    if not check:
        return
    from specbench.report.recompute import verify_record

    differs = verify_record(path.parent, found.run_id)
    if differs:
        raise RecordError(
            f"{path}: {len(differs)} values do not follow from its rounds, first: {differs[0]}; run the cell again"
        )
    typer.echo("every number follows from the rounds")
