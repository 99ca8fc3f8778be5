"""All estimates of many records as one tidy table: a row per estimate, the run's facts repeated."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from specbench.records.schema import Record
from specbench.records.store import write_atomic

SCOPE_COLUMNS = ("domain", "task", "k", "gamma", "stat", "steps")
COLUMNS = (
    "run_id",
    "created",
    "status",
    "method",
    "draft_length",
    "target",
    "target_sha256",
    "drafter",
    "drafter_sha256",
    "temperature",
    "concurrency",
    "dtype",
    "device_name",
    "verdict",
    "comparability_sha256",
    "metrics_version",
    "metric",
    *SCOPE_COLUMNS,
    "scope",
    "value",
    "unit",
    "low",
    "high",
    "interval",
    "n",
    "n_of",
)

Cell = str | int | float | None


def run_columns(record: Record) -> dict[str, Cell]:
    """The run's facts that every one of its rows repeats."""
    return {
        "run_id": record.run_id,
        "created": record.created,
        "status": record.status,
        "method": record.method,
        "draft_length": record.draft_length,
        "target": record.target.name,
        "target_sha256": record.target.sha256,
        "drafter": record.drafter.name if record.drafter is not None else None,
        "drafter_sha256": record.drafter.sha256 if record.drafter is not None else None,
        "temperature": record.spec.get("temperature"),
        "concurrency": record.spec.get("concurrency"),
        "dtype": record.spec.get("dtype"),
        "device_name": record.provenance.get("device_name"),
        "verdict": record.verdict.outcome if record.verdict is not None else None,
        "comparability_sha256": record.comparability_sha256,
        "metrics_version": record.metrics_version,
    }


def rows(records: Sequence[Record]) -> Iterator[dict[str, Cell]]:
    """One dictionary per estimate with the keys of ``COLUMNS``; a run without estimates gives one without metric."""
    for record in records:
        facts = run_columns(record)
        if not record.estimates:
            yield {**dict.fromkeys(COLUMNS), **facts}
        for row in record.estimates:
            yield {
                **facts,
                "metric": row.metric,
                **{name: row.scope.get(name) for name in SCOPE_COLUMNS},
                "scope": ";".join(f"{name}={value}" for name, value in row.scope.items()),
                "value": row.value,
                "unit": row.unit,
                "low": row.low,
                "high": row.high,
                "interval": row.interval,
                "n": row.n,
                "n_of": row.n_of,
            }


def to_csv(records: Sequence[Record]) -> str:
    """The tidy table as CSV text; absent values are empty, floats keep every digit."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows(records))
    return text.getvalue()


def write_csv(records: Sequence[Record], path: Path) -> None:
    """Write the tidy table, whole or not at all. Errors: RecordError."""
    write_atomic(path, to_csv(records).encode())
