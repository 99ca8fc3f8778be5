"""Records for tests: complete, valid, and made from real traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specbench.metrics import METRICS_VERSION
from specbench.metrics._all import compute_all
from specbench.metrics._identities import check_identities
from specbench.metrics.alarms import find_alarms
from specbench.metrics.losslessness import verdict
from specbench.records import schema, store
from specbench.records.keys import build_key
from specbench.records.schema import AlarmRow, EstimateRow, Record
from specbench.report.recompute import verdict_row
from specbench.types import RunTrace

KEY: dict[str, Any] = {
    "target_weights": "a" * 64,
    "rendering": {"dataset": "b" * 64, "template": "c" * 64, "thinking": "default", "turns": 10},
    "sampling": {"temperature": 0.0, "top_p": 1.0, "top_k": None},
    "acceptance_rule": "rejection",
    "draft_sampling": "same as target",
    "prompt_set": {"ids": "d" * 64, "order": "e" * 64, "count": 10},
    "max_new_tokens": 64,
    "stop_ids": [0],
    "ignore_eos": False,
    "dtype": "float32",
    "engine": "specbench",
    "load": "closed:1",
    "metrics_version": METRICS_VERSION,
    "timing": {
        "hardware": "a processor",
        "kv_budget_bytes": None,
        "row_limit": 1,
        "threads": 1,
        "torch": "2.13.0",
        "driver": None,
    },
}


def make_record(**fields: Any) -> Record:
    """A valid record without rounds; any field can be given."""
    key = build_key(fields.pop("key", KEY))
    base: dict[str, Any] = {
        "cell_key": "cell",
        "metrics_version": METRICS_VERSION,
        "status": "ok",
        "created": "2026-01-02T03:04:05Z",
        "command": ["specbench", "run", "--method", "toy"],
        "method": "toy",
        "draft_length": 3,
        "spec": {"temperature": 0.0, "concurrency": 1, "dtype": "float32", "tasks": ["starter-math"]},
        "provenance": {"git_sha": "f" * 40, "git_dirty": False, "device_name": "a processor"},
        "target": {"name": "tiny", "sha256": "a" * 64, "source": "folder"},
        "drafter": {"name": "toy", "sha256": "9" * 64, "source": "folder"},
        "comparability": key.as_dict(),
        "comparability_sha256": key.sha256(),
    }
    return schema.build(**{**base, **fields})


def save_run(
    folder: Path, trace: RunTrace, *, baseline: tuple[Record, RunTrace] | None = None, **fields: Any
) -> Record:
    """Write a trace with everything that is computed from it, as the runner does."""
    data, described = store.encode_rounds(trace, check=check_identities)
    other = baseline[1] if baseline is not None else None
    judged = verdict(trace, other, noise_floor=1e-4) if other is not None else None
    control = baseline[0].run_id if baseline is not None else None
    record = make_record(
        method=trace.method,
        draft_length=trace.draft_length,
        estimates=[EstimateRow.of(estimate) for estimate in compute_all(trace, baseline=other)],
        verdict=verdict_row(judged, control=control) if judged is not None else None,
        alarms=[AlarmRow(name=alarm.name, message=alarm.message) for alarm in find_alarms(trace)],
        rounds=described,
        baseline=control,
        **fields,
    )
    store.write(folder, record, rounds_data=data)
    return record
