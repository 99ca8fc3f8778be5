"""What the site shows held against the records, number by number, in the spelling of the reports."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from specbench.records.schema import EstimateRow, Record
from specbench.report import board, numbers


class RunPage(HTMLParser):
    """(metric, scope) -> (value, text, low, high, bounds) of a run page's tables, and the tags of the page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[tuple[str, str], list[str | None]] = {}
        self.tags: list[str] = []
        self._row: list[str | None] | None = None
        self._into: int | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append(tag)
        if tag == "tr" and "data-metric" in given:
            self._row = ["", "", None, None, ""]
            self.found[str(given["data-metric"]), str(given["data-scope"])] = self._row
        elif tag == "data" and self._row is not None:
            self._row[0], self._into = given["value"], 1
        elif tag == "td" and "data-low" in given and self._row is not None:
            self._row[2], self._row[3], self._into = given["data-low"], given["data-high"], 4

    def handle_endtag(self, tag: str) -> None:
        if tag in ("data", "td"):
            self._into = None

    def handle_data(self, data: str) -> None:
        if self._row is not None and self._into is not None:
            self._row[self._into] = str(self._row[self._into]) + data


def run_page_holds(site: Path, record: Record) -> None:
    """Every estimate of a record is on its page, with value, bounds and text, and nothing else is."""
    parser = RunPage()
    parser.feed((site / "runs" / f"{record.run_id}.html").read_text(encoding="utf-8"))
    assert len(parser.found) == len(record.estimates)
    for row in record.estimates:
        value, text, low, high, bounds = parser.found[row.metric, json.dumps(row.scope, sort_keys=True)]
        assert json.loads(str(value)) == row.value
        assert text == numbers.number(row)
        if row.low is None or row.high is None:
            assert (low, high) == (None, None)
        else:
            assert (json.loads(str(low)), json.loads(str(high))) == (row.low, row.high)
            assert bounds == "[" + ",".join(numbers.bounds(row) or ()) + "]"


def _wanted(record: Record, column: board.Column, domain: str) -> EstimateRow | None:
    scope = dict(column.scope) | ({"domain": domain} if domain else {})
    estimates = [e for e in record.estimates if e.metric == column.metric]
    if column.over:
        along = [e for e in estimates if set(e.scope) == {*scope, column.over} and scope.items() <= e.scope.items()]
        return max(along, key=lambda e: e.value, default=None)
    return next((e for e in estimates if e.scope == scope), None)


def table_holds(
    rows: Sequence[Mapping[str, Any]],
    by_id: Mapping[str, Record],
    *,
    domain: str = "",
    searched: Mapping[str, Sequence[EstimateRow]] | None = None,
) -> int:
    """Every cell of the rows that a browser shows is the record's estimate or absent; gives how many were held.

    ``searched`` has, by run, what searches for a service level ended with; the cell shows one of them.
    """
    checked = 0
    for row in rows:
        columns = [column for column in board.COLUMNS if column.title in row["heads"]]
        assert len(columns) == len(row["cells"]) - 5
        for column, cell in zip(columns, row["cells"][2:]):
            wanted = _wanted(by_id[row["run"]], column, domain)
            found = (searched or {}).get(row["run"], ())
            if column.key == board.SLA and not domain and found:
                wanted = next(one for one in found if one.value == float(cell["value"]))
            if wanted is None:
                assert (cell["value"], cell["text"]) == (None, "–")
                continue
            assert float(cell["value"]) == wanted.value
            text = numbers.milliseconds(wanted) if column.unit == "ms" else numbers.bounded(wanted)
            assert cell["text"].startswith(text.replace(" ", "", 1))
            checked += 1
    return checked
