"""Markdown tables from records: the cells of the LaTeX tables, with the run ids in a column."""

from __future__ import annotations

from collections.abc import Sequence

from specbench.records.schema import Record
from specbench.report.paper import COUNTED_HEADINGS, HEADINGS, PaperTable, paper_tables

_SPECIAL = r"\`*_{}[]()#+!|~$^"
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def escape(text: str) -> str:
    """Any text as Markdown that shows it, in a table's cell too. Line breaks become spaces."""
    shown = "".join(c if c.isprintable() else f"U+{ord(c):04X}" for c in " ".join(text.split()))
    return "".join(_ENTITIES.get(c, f"\\{c}" if c in _SPECIAL else c) for c in shown)


def to_markdown(records: Sequence[Record]) -> str:
    """A section for each comparability group."""
    return "\n".join(line for table in paper_tables(records) for line in _section(table)) + "\n"


def _section(table: PaperTable) -> list[str]:
    facts = table.facts
    lines = [f"### {escape(facts['target'])}: {escape(facts['sampling'])}, load {escape(facts['load'])}", ""]
    lines += [f"- {name}: {escape(value)}" for name, value in facts.items()]
    lines += [f"- comparability group: {table.group}", ""]
    if table.blocks:
        wide = ("prompts", "method", *HEADINGS, "run")
        rows = [(block.title, row.label, *row.cells, row.run_id) for block in table.blocks for row in block.rows]
        lines += [*_grid(wide, rows, left=2), "", f"{escape(table.legend)}.", ""]
        lines += ["Accepted length as other projects count it, n in brackets:", ""]
        counted = [(row.label, *row.cells, row.run_id) for row in table.counted]
        lines += [*_grid(("method", *COUNTED_HEADINGS, "run"), counted, left=1), ""]
    else:
        lines += ["No row has a result.", ""]
    lines += [f"- {escape(note)}" for note in table.notes]
    return [*lines, ""] if table.notes else lines


def _grid(headings: Sequence[str], rows: Sequence[Sequence[str]], *, left: int) -> list[str]:
    """A pipe table whose first ``left`` columns and last one hold words."""
    marks = ["---" if i < left or i == len(headings) - 1 else "---:" for i in range(len(headings))]
    body = [[_cell(text, words=i < left) for i, text in enumerate(row)] for row in rows]
    return [f"| {' | '.join(line)} |" for line in ([escape(name) for name in headings], marks, *body)]


def _cell(text: str, *, words: bool) -> str:
    # numbers and intervals hold nothing that Markdown reads, but for a link's brackets, and no link follows them
    return escape(text) if words else text.replace("|", "\\|")
