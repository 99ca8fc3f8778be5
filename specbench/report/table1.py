"""The paper's table 1 from records: accepted length of targets and drafters by task.

A column is one task with one set of prompts; rows of one table agree on everything else that decides the number, a
block holds one target. LaTeX, Markdown, CSV and the picture hold the same cells.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from specbench.report import entries as rows
from specbench.report import latex, numbers
from specbench.report.entries import Entry, Measured, bucket
from specbench.report.markdown import escape as markdown_escape
from specbench.report.paper_values import TASKS
from specbench.report.sheet import Figure, Mark, Panel, Series, Sheet
from specbench.report.tables import full_label

KEY = "table1"
PICTURE = "tau"
TITLE = "Accepted length by target, drafter and task"
LACKING = "no run of a drafter that may be ranked and has a tau for a task"
_COLUMNS = ("table", "block", "method", "task", "prompts", "value", "low", "high", "interval", "unit", "n", "n_of",
            "run_ids")  # fmt: skip
Column = tuple[str, str]  # task, hash of its prompts


@dataclass(frozen=True, slots=True)
class Line:
    """A contestant's cells by column."""

    label: str
    cells: dict[Column, Measured]


@dataclass(frozen=True, slots=True)
class Block:
    """Lines of one target."""

    title: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Blocks that agree on everything but target and prompts. ``id`` is the beginning of that setting's hash."""

    id: str
    facts: dict[str, str]
    columns: tuple[Column, ...]
    blocks: tuple[Block, ...]

    def heading(self, column: Column) -> str:
        """The paper's name of a task; with its prompts' hash where a task stands there with different ones."""
        task, prompts = column
        name = TASKS[task][0] if task in TASKS else task
        return f"{name} ({prompts[:6]})" if [c[0] for c in self.columns].count(task) > 1 else name


_TARGET_PARTS = ("target_weights", "stop_ids", "rendering", "prompt_set")


def tables(entries: Sequence[Entry]) -> list[Table]:
    """A table for each setting, those with the most lines first; plain decoding, whose tau is 1, has no line."""
    fit = [entry for entry in entries if entry.record.draft_length and _cells(entry)]
    found = bucket(fit, lambda entry: rows.setting(entry, timings=False, drop=_TARGET_PARTS))
    made = [_table(sha[:12], members) for sha, members in found.items()]
    return sorted(made, key=lambda table: (-sum(len(block.lines) for block in table.blocks), table.id))


def _cells(entry: Entry) -> dict[Column, Measured]:
    tasks = [str(task) for task in entry.record.spec.get("tasks") or ()]
    found = {}
    for task in tasks:
        held = entry.get("tau", task=task) or (entry.get("tau") if len(tasks) == 1 else None)
        if held is not None:
            found[task, rows.prompts_key(entry)] = held
    return found


def _block_key(entry: Entry) -> str:
    return rows.setting(entry, timings=False, drop=("prompt_set",))


def _table(sha: str, members: Sequence[Entry]) -> Table:
    blocks = []
    for key, held in sorted(
        bucket(members, _block_key).items(), key=lambda item: (item[1][0].record.target.name, item[0])
    ):
        lines = list(bucket(held, lambda entry: rows.contestant(entry.record)).values())
        texts = rows.labels([line[0] for line in lines], full_label)
        made = [
            Line(text, {column: cell for entry in line for column, cell in _cells(entry).items()})
            for text, line in zip(texts, lines)
        ]
        blocks.append((key, held[0].record.target.name, tuple(sorted(made, key=lambda line: line.label))))
    names = [name for _, name, _ in blocks]
    columns = {column for entry in members for column in _cells(entry)}
    return Table(
        sha,
        rows.joined_facts(members, without=("device", "prompts", "target")),
        tuple(sorted(columns, key=_order)),
        tuple(Block(name if names.count(name) == 1 else f"{name} ({key[:6]})", lines) for key, name, lines in blocks),
    )


def _order(column: Column) -> tuple[int, str, str]:
    known = list(TASKS)
    return known.index(column[0]) if column[0] in known else len(known), *column


def picture(found: Sequence[Table]) -> Figure:
    """The same cells drawn: an image for each table, a panel for each block, contestants side by side at each task."""
    sheets = tuple(
        Sheet(table.id, table.facts, tuple(_panel(table, block) for block in table.blocks)) for table in found
    )
    return Figure(
        PICTURE,
        "Accepted length by task",
        "Tokens committed per round, bonus included; plain decoding has 1.",
        sheets,
        "" if sheets else LACKING,
    )


def _panel(table: Table, block: Block) -> Panel:
    columns = [column for column in table.columns if any(column in line.cells for line in block.lines)]
    series = []
    for line in block.lines:
        held = [(float(place), line.cells[column]) for place, column in enumerate(columns) if column in line.cells]
        series.append(Series(line.label, tuple(Mark(place, cell.row, cell.run_ids) for place, cell in held)))
    names = tuple(table.heading(column) for column in columns)
    return Panel(block.title, "task", "tau", tuple(series), names=names)


def to_csv(found: Sequence[Table]) -> str:
    """A row for each cell with its runs."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for table in found:
        for block in table.blocks:
            for line in block.lines:
                for (task, prompts), cell in line.cells.items():
                    row = cell.row
                    place = (table.id, block.title, line.label, task, prompts[:12])
                    value = (row.value, row.low, row.high, row.interval, row.unit, row.n, row.n_of)
                    writer.writerow([*place, *value, ";".join(cell.run_ids)])
    return text.getvalue()


def caption(table: Table) -> str:
    """One line that says what the numbers are and how they were measured."""
    facts = "; ".join(f"{name}: {text}" for name, text in table.facts.items())
    return f"Tokens committed per round, bonus included, with 95 % intervals. {facts}."


def to_latex(found: Sequence[Table]) -> str:
    """A ``table*`` for each setting; needs ``\\usepackage{booktabs}``."""
    lines = [latex.comment("needs \\usepackage{booktabs}; the comment behind a row names its runs and exact values")]
    for table in found:
        width = len(table.columns) + 1
        heads = ["method", *(table.heading(column) for column in table.columns)]
        lines += ["", r"\begin{table*}[t]", r"\centering", rf"\caption{{{latex.escape(caption(table))}}}",
                  rf"\label{{tab:specbench-table1-{table.id}}}", r"\scriptsize",
                  r"\begin{tabular}{l" + "r" * len(table.columns) + "}", r"\toprule",
                  " & ".join(map(latex.escape, heads)) + r" \\"]  # fmt: skip
        for block in table.blocks:
            lines += [r"\midrule", rf"\multicolumn{{{width}}}{{l}}{{\emph{{{latex.escape(block.title)}}}}} \\"]
            lines += [_latex_line(table, line) for line in block.lines]
        lines += [r"\bottomrule", r"\end{tabular}", r"\end{table*}"]
    return "\n".join(lines) + "\n"


def texts(table: Table, line: Line) -> list[str]:
    """A line's cells as they are written, its label first."""
    held = [line.cells.get(column) for column in table.columns]
    return [line.label, *(numbers.ABSENT if cell is None else numbers.bounded(cell.row) for cell in held)]


def _latex_line(table: Table, line: Line) -> str:
    behind = [f"{task} {cell.row.value!r} of {', '.join(cell.run_ids)}" for (task, _), cell in line.cells.items()]
    return " & ".join(map(latex.escape, texts(table, line))) + rf" \\ {latex.comment('; '.join(behind))}"


def to_markdown(found: Sequence[Table]) -> str:
    """The same tables in Markdown, a line that names a target before its methods."""
    parts = []
    for table in found:
        heads = ["method", *(table.heading(column) for column in table.columns)]
        lines = [markdown_escape(caption(table)), "", _pipes(heads), "|---" + "|---:" * len(table.columns) + "|"]
        for block in table.blocks:
            lines.append(_pipes([block.title, *[""] * len(table.columns)]))
            lines += [_pipes(texts(table, line)) for line in block.lines]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _pipes(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(markdown_escape, cells)) + " |"
