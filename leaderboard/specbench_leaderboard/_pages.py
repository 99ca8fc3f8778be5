"""Pages from templates. What a record says is text: autoescape is on, and only `_estimates` writes markup itself."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from specbench.records.schema import Record
from specbench.records.sla_result import SlaResult
from specbench.report import glossary, numbers, sla_rows
from specbench.report.board import COLUMNS, EVERYTHING, Group, Row
from specbench.report.tables import method_label
from specbench_leaderboard import _estimates, _shards

TEMPLATES = Path(__file__).parent / "site" / "templates"
_FEW_GROUPS = 400  # more are reached through the filters and the rows' own pages


def group_title(group: Group) -> str:
    """One line that tells a reader which group this is."""
    facts = group.facts
    return f"{facts['target']}, {facts['device']}, {facts['sampling']}, {facts['load']}"


def flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as (dotted name, text); absent values are left out."""
    for name, part in value.items():
        if isinstance(part, Mapping):
            yield from flat(part, f"{prefix}{name}.")
        elif isinstance(part, list | tuple):
            if part:
                yield prefix + name, ", ".join(map(str, part))
        elif part is not None:
            yield prefix + name, str(part)


class Pages:
    """Renders every kind of page."""

    def __init__(self) -> None:
        self._environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(TEMPLATES),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=jinja2.StrictUndefined,
        )
        self._environment.filters["number"] = _estimates.number_text
        self._entries = glossary.entries()
        self._columns = [_shards.column_data(column) for column in COLUMNS]

    def _render(self, template: str, *, root: str, section: str, **values: Any) -> str:
        return self._environment.get_template(template).render(root=root, section=section, **values)

    def ranking(self, groups: Sequence[Group]) -> str:
        """The first page: the first group's table without any script, and the list of all groups."""
        entries = [
            {"group": group, "title": group_title(group), "rows": _shards.table_rows(group) if not number else []}
            for number, group in enumerate(groups[:_FEW_GROUPS])
        ]
        columns = _used(groups[0], self._columns) if groups else []
        return self._render("ranking.html", root="", section="Ranking", groups=entries, columns=columns)

    def charts(self, records: int) -> str:
        """The page that scripts draw charts on."""
        return self._render("charts.html", root="", section="Charts", records=records)

    def sla(self, searches: Sequence[SlaResult], known: Collection[str]) -> str:
        """Searches for SLA-bound throughput, a table per service level; ``known`` are the runs that have a page."""
        entries = [
            {
                "result": result,
                "command": shlex.join(result.command),
                "unit": "users" if result.space.over == "concurrency" else "requests/s",
                "levels": [(level.label, list(sla_rows.lines(result, i))) for i, level in enumerate(result.levels)],
            }
            for result in searches
        ]
        return self._render("sla.html", root="", section="SLA", searches=entries, known=known)

    def data(self, records: Sequence[Record], groups: Sequence[Group], unreadable: Sequence[str]) -> str:
        """Downloads, what could not be read, and the rules of ranking."""
        values = {"records": len(records), "groups": len(groups), "unreadable": unreadable}
        return self._render("data.html", root="", section="Data", **values)

    def group(self, group: Group) -> str:
        """One group's table in full, what its rows share and what keeps them apart from the nearest other group."""
        return self._render(
            "group.html",
            root="../",
            section="Ranking",
            title=group_title(group),
            group=group,
            rows=_shards.table_rows(group),
            columns=_used(group, self._columns),
            key=list(flat(group.key)),
        )

    def run(self, record: Record, group: Group, row: Row, others: Sequence[Record]) -> str:
        """Everything that a record holds."""
        cells = row.cells.get(EVERYTHING, {})
        verdict = record.verdict
        return self._render(
            "run.html",
            root="../",
            section="Ranking",
            record=record,
            label=method_label(record),
            group=group,
            group_title=group_title(group),
            row=row,
            outcome=verdict.outcome if verdict is not None else "control" if record.method == "vanilla" else "",
            synthetic=bool(record.comparability.get("synthetic_acceptance")),
            headline=[(data, cells[column.key]) for column, data in zip(COLUMNS, self._columns) if column.key in cells],
            command=_command(record),
            evidence=_evidence(record),
            tables=list(_estimates.tables(record.estimates)),
            pages={entry.name for entry in self._entries},
            identities=list(_identities(record)),
            environment=list(flat(record.provenance)),
            settings=list(flat({name: value for name, value in record.spec.items() if name != "inputs"})),
            others=others,
        )

    def metrics(self, seen: Iterable[str]) -> Iterator[tuple[str, str]]:
        """A page per metric group, and their list; ``seen`` are the metrics that records hold."""
        known = {name for entry in self._entries for name in entry.estimates}
        undefined = sorted(set(seen) - known)
        values = {"entries": self._entries, "undefined": undefined}
        yield "metrics/index.html", self._render("metrics.html", root="../", section="Metrics", **values)
        for entry in self._entries:
            text = self._render("metric.html", root="../", section="Metrics", entry=entry)
            yield f"metrics/{entry.name}.html", text


def _used(group: Group, columns: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The columns that some row of the group has a value for."""
    keys = {key for row in group.rows for cells in row.cells.values() for key in cells}
    return [column for column in columns if column["key"] in keys]


def _command(record: Record) -> str:
    sha = record.provenance.get("git_sha")
    lines = [shlex.join(record.command)]
    if sha and sha != "unknown":
        lines.insert(0, f"git checkout {sha}" + ("  # and changes that were not committed" if _dirty(record) else ""))
    return "\n".join(lines)


def _dirty(record: Record) -> bool:
    return record.provenance.get("git_dirty") is True


def _evidence(record: Record) -> list[tuple[str, str]]:
    verdict = record.verdict
    if verdict is None:
        return []
    pairs = [
        ("rule", verdict.rule),
        ("requests compared", numbers.count(verdict.requests_compared)),
        ("rounds with drafts", numbers.count(verdict.rounds_with_drafts)),
    ]
    if verdict.share_compared is not None:
        pairs.append(("tokens compared before the first tie", numbers.percent(verdict.share_compared)))
    for name in ("noise_floor", "p_value", "power"):
        value = getattr(verdict, name)
        if value is not None:
            pairs.append((name.replace("_", " "), numbers.general(value)))
    if verdict.control is not None:
        pairs.append(("control", verdict.control))
    return pairs


def _identities(record: Record) -> Iterator[tuple[str, str]]:
    yield "target", f"{record.target.name} ({record.target.source})"
    yield "target weights", record.target.sha256
    if record.drafter is not None:
        yield "drafter", f"{record.drafter.name} ({record.drafter.source})"
        yield "drafter weights", record.drafter.sha256
    inputs = record.spec.get("inputs")
    if isinstance(inputs, Mapping):
        yield from flat({k: v for k, v in inputs.items() if k not in ("target_weights", "drafter")})
    yield "cell", record.cell_key
    yield "comparability", record.comparability_sha256
    yield "schema version", str(record.schema_version)
    yield "metrics version", record.metrics_version
