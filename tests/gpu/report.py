"""The check's results as Markdown: the aims first, then a part for each section. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

ABSENT = "n/a"


def to_markdown(results: Mapping[str, Any]) -> str:
    """The whole report from what `driver` collected."""
    lines = ["# GPU check", ""]
    if results["dry"]:
        lines += ["Dry run: tiny shapes on a CPU. It shows that the script works; its times say nothing of a GPU.", ""]
    lines += [*_summary(results), "", *_aims(results), ""]
    if results.get("records_left_out"):
        lines += [f"Records that had no room in the archives: {', '.join(results['records_left_out'])}", ""]
    for section in results["sections"]:
        lines += [*_section(section), ""]
    return "\n".join(lines).rstrip() + "\n"


def _summary(results: Mapping[str, Any]) -> list[str]:
    rows = []
    for section in results["sections"]:
        said = "; ".join([*([section["error"]] if section["error"] else []), *section["cut"]])
        rows.append(
            [section["name"], section["status"], f"{section['seconds']:.1f}", f"{section['budget_s']:.0f}", said]
        )
    return _grid(["section", "outcome", "seconds", "budget s", "what was cut, or why it failed"], rows)


def _aims(results: Mapping[str, Any]) -> list[str]:
    words = {True: "met", False: "missed", None: "not judged without a GPU"}
    rows = [
        [section["name"], aim["name"], f"{_number(aim['value'])} {aim['unit']}".strip(),
         f"{_number(aim['limit'])} {aim['unit']}".strip(), words[aim["met"]]]
        for section in results["sections"]
        for aim in section["aims"]
    ]  # fmt: skip
    return _grid(["section", "aim", "measured", "at most", ""], rows) if rows else ["No aim was measured."]


def _section(section: Mapping[str, Any]) -> list[str]:
    lines = [f"## {section['name']}: {section['about']}", ""]
    for table in section["tables"]:
        lines += [f"**{_text(table['title'])}**", "", *_grid(table["columns"], table["rows"]), ""]
    lines += [f"- {_text(note)}" for note in section["notes"]]
    if section["error"]:
        lines.append(f"- failed: {_text(section['error'])}")
    return lines


def _grid(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """A pipe table; numbers to the right."""
    numeric = [all(isinstance(row[i], int | float) or row[i] is None for row in rows) for i in range(len(columns))]
    marks = ["---:" if right and rows else "---" for right in numeric]
    body = [[ABSENT if cell is None else _number(cell) for cell in row] for row in rows]
    return [f"| {' | '.join(_text(cell) for cell in line)} |" for line in (list(columns), marks, *body)]


def _text(value: str) -> str:
    return " ".join(value.split()).replace("|", "\\|")


def _number(value: Any) -> str:
    """Four significant digits; whole numbers and words as they are."""
    if not isinstance(value, float):
        return str(value)
    shown = f"{value:.4g}"
    return f"{value:.0f}" if "e+" in shown else shown
