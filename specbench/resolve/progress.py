"""What a long step tells the user while a model is fetched or converted."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

Step = Callable[[str], AbstractContextManager[object]]


def rich_step(text: str) -> AbstractContextManager[object]:
    """A spinner with the elapsed time on a terminal's stderr, one plain line elsewhere."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    # bound to the stream itself: a library's own bar can then be caught by redirecting sys.stderr
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        console.print(f"{text} ...", markup=False, highlight=False, soft_wrap=True)
        return nullcontext()
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    bar = Progress(*columns, console=console, transient=True)
    bar.add_task(text, total=None)
    return bar


def silent_step(text: str) -> AbstractContextManager[object]:
    """Says nothing."""
    return nullcontext(text)
