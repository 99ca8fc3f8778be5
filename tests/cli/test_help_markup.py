"""What help says is shown as it is written: square brackets are no markup that vanishes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import typer
from rich.text import Text

from specbench.cli.main import app


def texts() -> Iterator[tuple[str, str]]:
    root = typer.main.get_command(app)
    waiting = [("specbench", root)]
    while waiting:
        name, command = waiting.pop()
        yield name, command.help or ""
        for parameter in command.params:
            yield f"{name} {parameter.name}", getattr(parameter, "help", None) or ""
        waiting += [(f"{name} {key}", child) for key, child in getattr(command, "commands", {}).items()]


def test_no_bracket_of_a_help_text_vanishes() -> None:
    found = list(texts())
    assert len(found) > 100
    lost = [name for name, text in found if Text.from_markup(text).plain != text.replace("\\[", "[")]
    assert lost == []


@pytest.mark.parametrize("text", ["The sweep: [base].", "[the recipe's]"])
def test_a_bracket_that_would_vanish_is_seen(text: str) -> None:
    assert Text.from_markup(text).plain != text
