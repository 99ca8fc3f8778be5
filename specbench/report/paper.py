"""What a paper's tables hold, before any markup: one table for each comparability group, every row with its run id.

LaTeX and Markdown write the same cells, so a number has one spelling in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.records import keys
from specbench.records.schema import EstimateRow, Record
from specbench.records.tidy import COUNTED_AS
from specbench.report import numbers
from specbench.report.board import facts_of
from specbench.report.numbers import ABSENT
from specbench.report.tables import domains, full_label

HEADINGS = ("tau", "95 %", "n", "speed-up", "95 %", "n", "tok/s", "lossless")
COUNTED_HEADINGS = ("tau", *COUNTED_AS.values())
_METRICS = ("tau", "speed_up", "decode_tokens_per_s")


@dataclass(frozen=True, slots=True)
class PaperRow:
    """One run's cells as text. ``exact`` are the values behind them, by metric, with every digit."""

    label: str
    run_id: str
    baseline: str | None
    cells: tuple[str, ...]
    exact: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Block:
    """Rows over the same prompts: one domain, or all together."""

    title: str
    rows: tuple[PaperRow, ...]


@dataclass(frozen=True, slots=True)
class PaperTable:
    """A comparability group. ``counted`` holds tau as other projects count it; ``notes`` what the cells do not say."""

    group: str  # 12 digits of the comparability key's hash
    facts: dict[str, str]
    blocks: tuple[Block, ...]
    counted: tuple[PaperRow, ...]
    legend: str
    notes: tuple[str, ...]


def paper_tables(records: Sequence[Record]) -> list[PaperTable]:
    """A table for each comparability group of the records, in the order in which the groups first come up."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.comparability_sha256, []).append(record)
    return [_table(members) for members in groups.values()]


def _table(records: Sequence[Record]) -> PaperTable:
    labels = row_labels(records)
    shown = [record for record in records if record.estimates]
    scopes: list[dict[str, str]] = [{"domain": name} for name in domains(shown)]
    if len(scopes) != 1:
        scopes.append({})
    blocks = [
        Block(
            scope.get("domain", "all"),
            tuple(_row(record, labels[record.run_id], scope) for record in shown),
        )
        for scope in scopes
        if shown
    ]
    return PaperTable(
        group=records[0].comparability_sha256[:12],
        facts=facts_of(records[0]),
        blocks=tuple(blocks),
        counted=tuple(_counted(record, labels[record.run_id]) for record in shown),
        legend=_legend(shown, scopes),
        notes=tuple(note for record in records for note in row_notes(record, labels[record.run_id])),
    )


def row_labels(records: Sequence[Record]) -> dict[str, str]:
    """A label for each run id, as users write methods; runs that share one are told apart by what they differ in."""
    found = {record.run_id: full_label(record) for record in records}
    for label in sorted(set(found.values())):
        same = [record for record in records if found[record.run_id] == label]
        if len(same) < 2:
            continue
        told = [_distinction(record, same) for record in same]
        for record, text in zip(same, told):
            found[record.run_id] = f"{label} ({text if text and told.count(text) == 1 else f'run {record.run_id}'})"
    return found


def _distinction(record: Record, others: Sequence[Record]) -> str:
    """What of the drafter and the settings is not the same in all of these runs."""

    def facts(one: Record) -> dict[str, str]:
        options = one.spec.get("options") or {}
        return {
            "drafter": one.drafter.name if one.drafter is not None else "none",
            "weights": one.drafter.sha256[:12] if one.drafter is not None else "none",
            "policy": str(one.spec.get("policy")),
            **{str(name): str(value) for name, value in sorted(options.items())},
            "seed": str(one.spec.get("seed")),
        }

    mine, theirs = facts(record), [facts(other) for other in others]
    return ", ".join(f"{name} {mine[name]}" for name in mine if len({t.get(name) for t in theirs}) > 1)


def _row(record: Record, label: str, scope: dict[str, str]) -> PaperRow:
    tau, speed, rate = (record.find(metric, **scope) for metric in _METRICS)
    cells = (*_with_interval(tau), *_with_interval(speed), numbers.number(rate), outcome(record))
    exact = [(row.metric, row.value) for row in (tau, speed, rate) if row is not None]
    return PaperRow(label, record.run_id, record.baseline, cells, tuple(exact))


def _with_interval(row: EstimateRow | None) -> tuple[str, str, str]:
    """Value, interval and number of samples."""
    limits = numbers.bounds(row)
    interval = ABSENT if limits is None else f"[{limits[0]}, {limits[1]}]"
    return numbers.number(row), interval, ABSENT if row is None else numbers.count(row.n)


def _counted(record: Record, label: str) -> PaperRow:
    """tau by its own definition and by those of others, each with its n: ``2.75 (4)``."""
    rows = [record.find("tau"), *(_anyhow(record, metric) for metric in COUNTED_AS)]
    cells = [ABSENT if row is None else f"{numbers.number(row)} ({numbers.count(row.n)})" for row in rows]
    exact = [(row.metric, row.value) for row in rows if row is not None]
    return PaperRow(label, record.run_id, record.baseline, tuple(cells), tuple(exact))


def _anyhow(record: Record, metric: str) -> EstimateRow | None:
    """The only estimate of a metric, whatever its scope says of the way it averages."""
    found = [row for row in record.estimates if row.metric == metric]
    return found[0] if len(found) == 1 else None


def outcome(record: Record) -> str:
    """The losslessness verdict; plain decoding is the control."""
    if record.verdict is None:
        return "control" if record.method == "vanilla" else ABSENT
    return record.verdict.outcome


def _legend(records: Sequence[Record], scopes: Sequence[dict[str, str]]) -> str:
    """What brackets and n stand for, from the estimates that are shown."""
    rows = {
        metric: [row for record in records for scope in scopes if (row := record.find(metric, **scope)) is not None]
        for metric in ("tau", "speed_up")
    }
    kinds = list(dict.fromkeys(row.interval for found in rows.values() for row in found if row.interval is not None))
    counts = [
        f"{' or '.join(dict.fromkeys(row.n_of for row in found))} ({word})"
        for word, found in (("tau", rows["tau"]), ("speed-up", rows["speed_up"]))
        if found
    ]
    parts = [f"brackets: 95 % interval, {'; '.join(kinds)}"] if kinds else []
    parts += [f"n: {', '.join(counts)}"] if counts else []
    return "; ".join(parts)


def row_notes(record: Record, label: str) -> list[str]:
    """What a reader must know of a row beside its numbers: why it may not be ranked, and its alarms."""
    found = []
    if record.error is not None:
        found.append(f"{label}: {record.status}: {record.error.message}")
    found += [f"{label}: not ranked: {reason}" for reason in keys.obstacles(record)]
    found += [f"{label}: {alarm.name}: {alarm.message}" for alarm in record.alarms if alarm.name != "invalid-row"]
    return found
