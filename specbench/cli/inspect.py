"""``inspect`` and ``export``: what a drafter checkpoint is and would do, and writing it in another layout."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

_SETS = typer.Option("--set", metavar="FIELD=VALUE", help="Read a field otherwise, e.g. taps=2,18,33; repeatable.")
_TARGET = typer.Option("--target", help="The target: a short name, a folder or a hub id.")


def inspect(
    checkpoint: Annotated[str, typer.Argument(help="A checkpoint folder or a hub id.")],
    target: Annotated[str | None, _TARGET] = None,
    sets: Annotated[list[str] | None, _SETS] = None,
    check: Annotated[bool, typer.Option("--check", help="Compare tau with other readings (needs --target).")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    weights: Annotated[bool, typer.Option(help="Read all values: find NaN, hash them.")] = True,
    dtype: Annotated[str, typer.Option(help="Of the target in --check.")] = "float32",
    device: Annotated[str, typer.Option(help="For --check.")] = "cpu",
    tokens: Annotated[int, typer.Option(min=8, help="Tokens of each of the 4 prompts of --check.")] = 50,
) -> None:
    """Show what a checkpoint is, why, what is missing or unused, and what it would do; exit code 2 if unusable."""
    from specbench import registry
    from specbench.errors import ConfigError

    if check and target is None:
        raise ConfigError("--check decodes with the target; name it with --target")
    overrides = _pairs(sets)
    model = _target(target)
    path = _checkpoint(checkpoint)
    tool = registry.load("formats", "inspect")
    report = tool.inspect(path, target_config=model.config if model else None, overrides=overrides, weights=weights)
    found = report.as_dict()
    if not as_json:
        _print(tool.render(report))
    if check and report.usable and model is not None:
        found["check"] = _check(path, model, overrides, dtype=dtype, device=device, tokens=tokens, quiet=as_json)
    if as_json:
        import json

        typer.echo(json.dumps(found, indent=2, default=str))
    if not report.usable:
        raise typer.Exit(2)


def export(
    checkpoint: Annotated[str, typer.Argument(help="A checkpoint folder or a hub id.")],
    destination: Annotated[Path, typer.Argument(help="A new folder.")],
    layout: Annotated[str, typer.Option("--layout", "-l", help="deepspec, speculators or specbench.")],
    target: Annotated[str | None, _TARGET] = None,
    sets: Annotated[list[str] | None, _SETS] = None,
) -> None:
    """Write a checkpoint in another layout, read it back, and refuse what the layout cannot express."""
    from specbench import registry

    model = _target(target)
    tool = registry.load("formats", "export")
    loaded = tool.load(_checkpoint(checkpoint), target_config=model.config if model else None, overrides=_pairs(sets))
    path = tool.export(
        loaded, destination, layout=layout, target=model.path if model else None, target_name=target or ""
    )
    typer.echo(f"{path}: {loaded.spec.kind} in the {layout} layout")


def published_rows(target: str | None = None, method: str | None = None) -> list[tuple[str, str]]:
    """``list drafters``: known public repositories of a target (all without one), and what to know about each.

    Errors: UnknownNameError for a target that has none, with the nearest names.
    """
    from specbench import registry
    from specbench.errors import unknown_name
    from specbench.resolve.names import find_target

    known = registry.load("formats", "published")
    if target is None:
        return [_row(entry) for name in known.targets() for entry in known.find(name, method)]
    short = find_target(target)
    found = known.find(short.hub if short is not None else target, method)
    if not found and short is None and not Path(target).is_dir():
        raise unknown_name("target with published drafters", target, known.targets())
    return [_row(entry) for entry in found]


def _row(entry: Any) -> tuple[str, str]:
    note = f"; {entry.note}" if entry.note else ""
    return f"{entry.method} for {entry.target}", f"{entry.repository} ({entry.layout}{note})"


def _pairs(texts: list[str] | None) -> dict[str, str]:
    from specbench.errors import ConfigError

    found = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise ConfigError(f"--set '{text}' is not FIELD=VALUE; write for example --set taps=2,18,33")
        found[name.strip()] = value.strip()
    return found


def _target(name: str | None) -> Any:
    from specbench.resolve import resolve_target

    return resolve_target(name) if name is not None else None


def _checkpoint(name: str) -> Path:
    """A folder as it is; anything else by way of the hub."""
    if Path(name).exists():
        return Path(name)
    from specbench.resolve import resolve_drafter

    return resolve_drafter(name).path


def _check(
    path: Path, model: Any, overrides: dict[str, str], *, dtype: str, device: str, tokens: int, quiet: bool
) -> dict[str, Any]:
    from transformers import AutoTokenizer

    from specbench.engine.target import Target
    from specbench.selfcheck import check

    def show(outcome: Any) -> None:
        if quiet:
            return
        result = outcome.problem or f"tau {outcome.tau:.2f} over {outcome.rounds} rounds"
        typer.echo(f"  {outcome.reading:<36}{result}")

    if not quiet:
        typer.echo("readings, on the same greedy tokens:")
    result = check(
        path,
        target=Target.load(model.path, dtype=dtype, device=device),
        tokenizer=AutoTokenizer.from_pretrained(str(model.path)),
        overrides=overrides,
        new_tokens=tokens,
        on_outcome=show,
    )
    for line in result.warnings:
        typer.echo(f"warning: {line}", err=True)
    if not quiet:
        for line in result.undecided:
            typer.echo(line)
        if not result.warnings:
            typer.echo("no other reading accepts clearly more")
    return result.as_dict()


def _print(table: Any) -> None:
    from rich.console import Console

    Console(soft_wrap=False).print(table)
