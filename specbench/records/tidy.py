"""All estimates of many records as one tidy table: a row per estimate, the run's facts repeated."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from specbench.records.schema import EstimateRow, Record
from specbench.records.store import write_atomic

COUNTED_AS = {
    "tau_deepspec": "DeepSpec",
    "tau_counters": "vLLM",
    "tau_tokens": "SGLang",
    "tau_chunks": "SPEED-Bench",
    "tau_request_mean": "DFlash",
}
"""Whose way of counting accepted length each named variant of tau is (metrics.md gives the formulas)."""

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
    "cell_key",
    "baseline",
    "policy",
    "seed",
    "load",
    "tasks",
    "prompts",
    "git_sha",
    "error",
    "metric",
    "counted_as",
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
        "cell_key": record.cell_key,
        "baseline": record.baseline,
        "policy": record.spec.get("policy"),
        "seed": record.spec.get("seed"),
        "load": record.comparability.get("load"),
        "tasks": _joined(record.spec.get("tasks") or ()),
        "prompts": (record.comparability.get("prompt_set") or {}).get("count"),
        "git_sha": record.provenance.get("git_sha"),
        "error": " ".join(record.error.message.split()) if record.error is not None else None,
    }


def _quoted(text: object) -> str:
    """Free of the characters that join parts; nothing else is touched."""
    return str(text).replace("%", "%25").replace(";", "%3B").replace("=", "%3D")


def _joined(parts: Iterable[object]) -> str:
    return ";".join(_quoted(part) for part in parts)


def scope_text(scope: Mapping[str, str]) -> str:
    """A scope as one text, ``domain=math;k=3``; what joins the parts is percent-encoded inside them."""
    return ";".join(f"{_quoted(name)}={_quoted(value)}" for name, value in scope.items())


def rows(records: Sequence[Record]) -> Iterator[dict[str, Cell]]:
    """One dictionary per estimate with the keys of ``COLUMNS``; a run without estimates gives one without metric."""
    for record in records:
        facts = run_columns(record)
        if not record.estimates:
            yield {**dict.fromkeys(COLUMNS), **facts}
        for row in record.estimates:
            yield {**facts, **_estimate_columns(row)}


def _estimate_columns(row: EstimateRow) -> dict[str, Cell]:
    return {
        "metric": row.metric,
        "counted_as": COUNTED_AS.get(row.metric),
        **{name: row.scope.get(name) for name in SCOPE_COLUMNS},
        "scope": scope_text(row.scope),
        "value": row.value,
        "unit": row.unit,
        "low": row.low,
        "high": row.high,
        "interval": row.interval,
        "n": row.n,
        "n_of": row.n_of,
    }


def csv_lines(records: Iterable[Record], *, metrics: Collection[str] = ()) -> Iterator[str]:
    """The table's lines as CSV, the header first; absent values are empty, floats keep every digit.

    With ``metrics`` the estimates of these alone; a run that has none of them is one line without a metric. What all
    rows of a run repeat is written out once a run.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")

    def line(cells: Iterable[Cell]) -> str:
        text.seek(0)
        text.truncate()
        writer.writerow(cells)
        return text.getvalue()

    yield line(COLUMNS)
    for record in records:
        facts = run_columns(record)
        start = line(facts.values()).removesuffix("\n")
        kept = [row for row in record.estimates if not metrics or row.metric in metrics]
        if not kept:
            yield start + "," * (len(COLUMNS) - len(facts)) + "\n"
        for row in kept:
            yield f"{start},{line(_estimate_columns(row).values())}"


def to_csv(records: Sequence[Record], *, metrics: Collection[str] = ()) -> str:
    """The tidy table as CSV text, of all estimates or of those of ``metrics``."""
    return "".join(csv_lines(records, metrics=metrics))


def write_csv(records: Sequence[Record], path: Path) -> None:
    """Write the tidy table, whole or not at all. Errors: RecordError."""
    write_atomic(path, to_csv(records).encode(errors="backslashreplace"))
