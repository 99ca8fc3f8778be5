"""``list`` and ``fetch``: what there is to choose from. Listing imports no plugin."""

from __future__ import annotations

import ast
import importlib.util
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Listed(StrEnum):
    """What ``list`` can list."""

    METHODS = "methods"
    TASKS = "tasks"
    TARGETS = "targets"
    DRAFTERS = "drafters"


def list_names(what: Annotated[Listed, typer.Argument(help="What to list.")]) -> None:
    """List methods, tasks, targets or drafter checkpoints."""
    rows = {
        Listed.METHODS: lambda: _plugins("drafters"),
        Listed.TASKS: _tasks,
        Listed.TARGETS: _targets,
        Listed.DRAFTERS: _drafters,
    }[what]()
    width = max((len(name) for name, _ in rows), default=0)
    for name, text in rows:
        typer.echo(f"{name:<{width}}  {text}".rstrip())


def fetch(
    target: Annotated[str, typer.Argument(help="A short name, a hub id or a folder.")],
    trust_remote_code: Annotated[bool, typer.Option("--trust-remote-code", help="Also fetch model code.")] = False,
) -> None:
    """Fetch a target's weights once, so that later runs need no network."""
    from specbench.resolve import resolve_target

    found = resolve_target(target, trust_remote_code=trust_remote_code)
    typer.echo(f"{found.name}: {found.path}")
    typer.echo(
        f"from {found.source}{f' at {found.revision}' if found.revision else ''}, weights {found.weights_sha256}"
    )


def _plugins(kind: str) -> list[tuple[str, str]]:
    from specbench import registry

    return [(name, _summary(kind, name)) for name in registry.names(kind)]


def _summary(kind: str, name: str) -> str:
    """The first line of a plugin module's docstring, read from its source: importing it would cost seconds."""
    from specbench import registry

    spec = importlib.util.find_spec(f"{registry.KINDS[kind].package}.{name.replace('-', '_')}")
    if spec is None or spec.origin is None:
        return "(from another distribution)"
    text = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]


def _tasks() -> list[tuple[str, str]]:
    named = [(name, text) for name, text in _plugins("tasks") if name != "file"]
    return [*named, ("PATH.jsonl", _summary("tasks", "file"))]


def _targets() -> list[tuple[str, str]]:
    from specbench.resolve import known_targets

    return [(known.name, f"{known.hub}{f': {known.note}' if known.note else ''}") for known in known_targets()]


def _drafters() -> list[tuple[str, str]]:
    from specbench.checkpoints import packaged_checkpoints
    from specbench.cli.inspect import published_rows

    packaged = [(f"{found.method} for {found.target}", f"packaged. {found.note}") for found in packaged_checkpoints()]
    return [*packaged, *published_rows()]
