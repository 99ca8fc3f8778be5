"""What a figure holds before it is drawn: sheets of panels of series of points, each with the runs it came from."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specbench.records.schema import EstimateRow
from specbench.records.tidy import scope_text

COLUMNS = (
    "figure", "sheet", "panel", "series", "x_name", "x", "x_low", "x_high", "metric", "scope", "value", "low", "high",
    "interval", "unit", "n", "n_of", "run_ids",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mark:
    """One point. ``x`` is a number, or an estimate where both axes are measured; ``hollow``: another one beats it."""

    x: float | EstimateRow
    row: EstimateRow
    run_ids: tuple[str, ...]
    hollow: bool = False

    @property
    def at(self) -> float:
        """Where it stands on the first axis."""
        return self.x.value if isinstance(self.x, EstimateRow) else self.x


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one contestant by rising ``x``."""

    label: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes. ``scale`` multiplies values where they are drawn, never where they are written.

    ``steps`` axes show their points' own values of x; ``doubling`` ones are logarithmic; ``diagonal`` draws y = x.
    With ``names`` x is the place of a name among them: series stand side by side there and are not joined.
    """

    title: str
    x_name: str
    y_name: str
    series: tuple[Series, ...]
    scale: float = 1.0
    steps: bool = False
    doubling: bool = False
    diagonal: bool = False
    names: tuple[str, ...] = ()

    def where(self, mark: Mark) -> float | str:
        """Where a point stands on the first axis, by name where it has names."""
        return self.names[int(mark.at)] if self.names else mark.at


@dataclass(frozen=True, slots=True)
class Sheet:
    """One image: panels of points that may be compared. ``id`` is the beginning of their setting's hash."""

    id: str
    facts: dict[str, str]
    panels: tuple[Panel, ...]
    notes: tuple[str, ...] = ()

    @property
    def labels(self) -> list[str]:
        """Every series' label once, in the order in which they come up: the order of colours and shapes."""
        return list(dict.fromkeys(series.label for panel in self.panels for series in panel.series))

    @property
    def runs(self) -> int:
        """How many runs its points come from."""
        marks = (mark for panel in self.panels for series in panel.series for mark in series.marks)
        return len({name for mark in marks for name in mark.run_ids})


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure from records, most of them the paper's. Without sheets, ``missing`` says what the records lack."""

    key: str  # "fig2"
    title: str
    caption: str
    sheets: tuple[Sheet, ...] = ()
    missing: str = ""
    notes: tuple[str, ...] = ()


def to_csv(figure: Figure) -> str:
    """Every point of a figure with its runs; floats keep every digit, absent values are empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(line for sheet in figure.sheets for line in _lines(figure, sheet))
    return text.getvalue()


def _lines(figure: Figure, sheet: Sheet) -> Iterator[list[object]]:
    for panel in sheet.panels:
        for series in panel.series:
            for mark in series.marks:
                row = mark.row
                x: tuple[object, ...] = (panel.where(mark), None, None)
                if isinstance(mark.x, EstimateRow):
                    x = (mark.x.value, mark.x.low, mark.x.high)
                yield [
                    figure.key, sheet.id, panel.title, series.label, panel.x_name, *x, row.metric,
                    scope_text(row.scope), row.value, row.low, row.high, row.interval, row.unit, row.n, row.n_of,
                    ";".join(mark.run_ids),
                ]  # fmt: skip


def described(sheet: Sheet) -> str:
    """A sheet in words, for those who do not see it: each panel's axes, series, and where these begin and end."""
    return " ".join(_panel_words(panel) for panel in sheet.panels)


def _panel_words(panel: Panel) -> str:
    parts = [f"{series.label}: {_ends(panel, series.marks)}" for series in panel.series]
    return f"{panel.title}: {panel.y_name} by {panel.x_name}. {'; '.join(parts)}."


def _ends(panel: Panel, marks: Sequence[Mark]) -> str:
    if panel.names:
        return ", ".join(f"{panel.scale * mark.row.value:.3g} at {panel.where(mark)}" for mark in marks)
    texts = [f"{panel.scale * mark.row.value:.3g} at {mark.at:.3g}" for mark in (marks[0], marks[-1])]
    return texts[0] if len(marks) == 1 else f"from {texts[0]} to {texts[1]}, {len(marks)} points"
