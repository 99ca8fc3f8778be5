"""``export``: records as tables and text for a paper or another program, or a checkpoint in another layout."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from specbench.records.schema import Record

FORMATS = ("csv", "latex", "markdown", "methods", "schema")
_CHECKPOINT = "A checkpoint"


def export(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RECORDS", help="Files, run ids or folders \\[runs]. With --layout: CHECKPOINT DESTINATION."
        ),
    ] = None,
    form: Annotated[
        str | None,
        typer.Option("--format", "-f", metavar="|".join(FORMATS), help="What to write; methods as LaTeX to a .tex."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Where to. \\[the screen]")] = None,
    folder: Annotated[Path, typer.Option("--in", help="Where to look run ids up.")] = Path("runs"),
    metric: Annotated[
        list[str] | None, typer.Option("--metric", help="CSV of this metric alone; repeatable. \\[all]")
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option("--layout", "-l", help="deepspec, speculators or specbench.", rich_help_panel=_CHECKPOINT),
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", help="The checkpoint's target.", rich_help_panel=_CHECKPOINT)
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Read a field of it otherwise.", rich_help_panel=_CHECKPOINT),
    ] = None,
) -> None:
    """Write records as a tidy CSV, LaTeX or Markdown tables, a methods paragraph, or give their JSON Schema.

    With --layout: write a checkpoint in another layout, read it back, and refuse what the layout cannot express.
    """
    from specbench.errors import ConfigError, unknown_name

    given = sources or []
    if layout is not None:
        if form is not None or out is not None or metric:
            raise ConfigError("--layout writes a checkpoint, --format and --out write records; give one of the two")
        if len(given) != 2:
            raise ConfigError(f"--layout takes a checkpoint and a new folder, seen {len(given)} names; give both")
        from specbench.cli.inspect import export as export_checkpoint

        export_checkpoint(given[0], Path(given[1]), layout=layout, target=target, sets=sets)
        return
    if target is not None or sets:
        raise ConfigError("--target and --set belong to a checkpoint; add --layout, or drop them")
    if form is None:
        raise ConfigError(f"nothing says what to write; give --format {'|'.join(FORMATS)} (checkpoints: --layout)")
    if form not in FORMATS:
        raise unknown_name("format", form, FORMATS)
    if metric and form != "csv":
        raise ConfigError(f"--metric chooses rows of the CSV; drop it, or give --format csv instead of {form}")
    _export_records(given, form, out=out, folder=folder, metrics=metric or [])


def _export_records(sources: list[str], form: str, *, out: Path | None, folder: Path, metrics: list[str]) -> None:
    from specbench.errors import ConfigError, unknown_name
    from specbench.metrics._definitions import DEFINITIONS
    from specbench.records import store
    from specbench.records.sources import collect

    records: list[Record] = []
    if form != "schema":
        found = collect(sources, folder=folder)
        if out is not None and out.resolve() in {path.resolve() for path in found.files}:
            raise ConfigError(f"{out} is one of the records; name another file with --out")
        for error in found.broken:
            typer.echo(f"warning: left out: {error}", err=True)
        records = list(found.records)
        known = {row.metric for record in records for row in record.estimates}
        known |= {name for family in DEFINITIONS.values() for name in family}
        for name in metrics:
            if name not in known:
                raise unknown_name("metric", name, known)
    elif sources:
        raise ConfigError(f"the schema is that of every record; drop '{sources[0]}'")
    text = _text(records, form, latex=out is not None and out.suffix == ".tex", metrics=metrics)
    data = text.encode(errors="backslashreplace")
    if out is None:
        typer.echo(data.decode(), nl=False)
        return
    store.write_atomic(out, data)
    of = f" of {len(records)} record{'s' if len(records) > 1 else ''}" if records else " of records"
    typer.echo(f"{out}: {form}{of}")


def _text(records: list[Record], form: str, *, latex: bool, metrics: list[str]) -> str:
    if form == "schema":
        from specbench.records.json_schema import to_json

        return to_json()
    if form == "csv":
        from specbench.records.tidy import to_csv

        return to_csv(records, metrics=metrics)
    if form == "markdown":
        from specbench.report.markdown import to_markdown

        return to_markdown(records)
    from specbench.report.latex import escape_paragraphs, to_latex

    if form == "latex":
        return to_latex(records)
    from specbench.report.methods import methods_text

    text = methods_text(records)
    return escape_paragraphs(text) if latex else text
