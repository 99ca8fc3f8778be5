"""What a run leaves on the screen: the closing table, what went wrong, and where the records are."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console

PLAIN_WIDTH = 120  # of the table in a file or pipe, which has no width of its own


def print_outcome(summary: Any) -> int:
    """Print a `specbench.runner.RunSummary`; the exit code."""
    from specbench.report import tables

    console = Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH)
    records = [result.record for result in summary.results]
    if any(record.estimates for record in records):
        console.print(tables.summary(records))
    written = [result for result in summary.results if result.path is not None]
    for result in written:
        console.print(f"{result.label}: {result.path}", markup=False, highlight=False, soft_wrap=True)
    if summary.table_trouble is None:
        console.print(f"all estimates: {summary.table}", markup=False, highlight=False, soft_wrap=True)
    else:
        _complain(f"warning: {summary.table_trouble}")
    notes = dict.fromkeys(note for record in records for note in record.notes)
    for note in (note for note in notes if note not in summary.warnings):
        console.print(f"note: {note}", style="dim", markup=False, highlight=False, soft_wrap=True)
    if summary.interrupted:
        rest = f"; not measured: {', '.join(summary.left_out)}" if summary.left_out else ""
        _complain(f"interrupted: finished requests are in the records{rest}")
    for result in summary.results:
        if result.error is not None:
            _complain(f"error: {result.error}")
    return int(summary.exit_code)


def _complain(text: str) -> None:
    print(" ".join(text.split()), file=sys.stderr)
