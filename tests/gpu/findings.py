"""What a section hands over: tables, aims that are met or missed, remarks. Plain values only, written as JSON."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

Cell = str | float | int | None
"""None is a figure that was not measured: it is shown as absent, never as zero."""


@dataclass(slots=True)
class Table:
    """Rows under named columns; units are in the names."""

    title: str
    columns: list[str]
    rows: list[list[Cell]] = field(default_factory=list)

    def add(self, *cells: Cell) -> None:
        """One more row."""
        assert len(cells) == len(self.columns), (self.title, cells)
        self.rows.append(list(cells))


@dataclass(slots=True)
class Aim:
    """A measured value and what it is to stay under. ``met`` None: measured where the aim says nothing (no GPU)."""

    name: str
    value: float
    limit: float
    unit: str
    met: bool | None


@dataclass(slots=True)
class Findings:
    """All that a section found. ``cut`` says what was left out to stay within the budget."""

    tables: list[Table] = field(default_factory=list)
    aims: list[Aim] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def table(self, title: str, *columns: str) -> Table:
        """A new table of this section."""
        self.tables.append(Table(title, list(columns)))
        return self.tables[-1]

    def aim(self, name: str, value: float, *, limit: float, unit: str, judged: bool) -> None:
        """A value that is to stay at or under ``limit``; ``judged`` False where the limit does not apply."""
        self.aims.append(Aim(name, value, limit, unit, value <= limit if judged else None))


def write(
    folder: Path,
    name: str,
    *,
    status: str,
    seconds: float,
    budget_s: float,
    found: Findings,
    error: str | None = None,
) -> None:
    """Write a section's results whole: readers see the file before or the file after.

    ``status``: "running" (what there is so far), "ok" or "failed" with the ``error``.
    """
    head = {"name": name, "status": status, "seconds": round(seconds, 2), "budget_s": round(budget_s, 2)}
    document = {**head, "error": error, **asdict(found)}
    text = json.dumps(document, indent=1, allow_nan=False, default=str)
    temporary = folder / f".{name}.tmp"
    temporary.write_text(text + "\n", encoding="utf-8")
    os.replace(temporary, folder / f"{name}.json")


def read(folder: Path, name: str) -> dict[str, Any] | None:
    """A section's results so far; None where it has written none."""
    path = folder / f"{name}.json"
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found
