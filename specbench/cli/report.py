"""``report``: documents made from records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Documents made from records.", no_args_is_help=True)


@app.command("figures")
def figures(
    sources: Annotated[
        list[str] | None, typer.Argument(metavar="RECORDS", help="Files, run ids or folders \\[runs].")
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Folder of the figures; earlier ones there are replaced.")
    ] = Path("figures"),
    folder: Annotated[Path, typer.Option("--in", help="Where to look run ids up.")] = Path("runs"),
    inconclusive: Annotated[
        bool, typer.Option("--inconclusive", help="Draw runs whose losslessness verdict could not tell, too; marked.")
    ] = False,
) -> None:
    """Draw the DSpark paper's table 1 and figures 2 to 8 from records, with the measured values beside the paper's.

    Writes PNG, SVG, PDF, LaTeX, Markdown, CSV and index.html. Figures that the records cannot fill are named.
    """
    from specbench.records.sources import collect
    from specbench.report import figure_folder, plots

    plots.require()
    found = collect(sources or [], folder=folder)
    for error in found.broken:
        typer.echo(f"warning: left out: {error}", err=True)
    written = figure_folder.write(found.records, out, inconclusive=inconclusive, say=typer.echo)
    for name, reason in written.missing:
        typer.echo(f"{name}: not drawn: {reason}")
    if written.notes:
        typer.echo(f"{len(written.notes)} of {written.records} records may not be ranked; the page says why")
    typer.echo(f"open {written.index.resolve()}")
