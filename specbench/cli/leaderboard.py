"""``leaderboard``: a static site of records, built and served by what the registry names."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="A static site of records: ranking, charts, a page per run.", no_args_is_help=True)

Records = Annotated[Path, typer.Option("--records", help="Folder of records; folders below it count.")]
Out = Annotated[Path, typer.Option("--out", "-o", help="Folder of the site; an earlier site there is replaced.")]


@app.command("build")
def build(records: Records = Path("runs"), out: Out = Path("site")) -> None:
    """Write the site; its pages open from the disk, without a server or a network."""
    typer.echo(f"open {_built(records, out).resolve()}")


@app.command("open")
def open_site(
    records: Records = Path("runs"),
    out: Out = Path("site"),
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")] = 0,
) -> None:
    """Build the site and serve it on this machine alone, until Ctrl-C."""
    from specbench import registry

    index = _built(records, out)
    registry.load("leaderboard", "serve")(index.parent, port=port, ready=lambda url: typer.echo(f"serving {url}"))


def _built(records: Path, out: Path) -> Path:
    from specbench import registry

    found = registry.load("leaderboard", "build")(records, out=out)
    for text in found.unreadable:
        typer.echo(f"warning: {text}", err=True)
    if not found.records:
        typer.echo(f"warning: no records in {records}; 'specbench run --out {records}' makes some", err=True)
    groups = "1 comparison group" if found.groups == 1 else f"{found.groups} comparison groups"
    typer.echo(f"{found.records} records in {groups}, {found.pages} pages")
    return Path(found.index)
