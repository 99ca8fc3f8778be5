"""The record of a prediction: the recorded run's settings under the simulated load, marked so that it never ranks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from specbench import provenance
from specbench.config import BASELINE
from specbench.metrics import METRICS_VERSION
from specbench.metrics._all import compute_all
from specbench.metrics._identities import check_identities
from specbench.records import keys, schema, store
from specbench.records.schema import EstimateRow, Record
from specbench.simulation.costs import StepCosts
from specbench.simulation.replay import Replay
from specbench.types import RunTrace
from specbench.workloads.patterns import load_label

NOT_RANKED = "simulated: predicted from another run's rounds under a cost table, nothing was measured"
BACKEND = "simulated"


@dataclass(frozen=True, slots=True)
class Source:
    """A recorded run that is replayed, and what its steps cost under the table."""

    record: Record
    replay: Replay
    costs: StepCosts
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Setting:
    """What was simulated: rows of each replica, the load (its options as records keep them), policy and length."""

    rows: int
    replicas: int
    workload: str
    load: Mapping[str, Any]
    policy: str
    draft_length: int
    seed: int

    @property
    def label(self) -> str:
        """As rows are compared by it; one replica is named as a measured run is."""
        found = load_label(self.workload, concurrency=self.rows, load=self.load)
        return found if self.replicas == 1 else f"{found} on {self.replicas} replicas"


def record_of(
    source: Source,
    setting: Setting,
    trace: RunTrace,
    *,
    control: tuple[Record, RunTrace] | None,
    skipped: int,
    command: Sequence[str],
) -> tuple[Record, bytes]:
    """The record and its rounds' file; ``control`` is plain decoding under the same load, with its record."""
    data, described = store.encode_rounds(trace, check=check_identities)
    table, held, method = source.costs.table, source.record, source.replay.method
    asked = {
        **held.spec,
        "method": method,
        "backend": BACKEND,
        "policy": setting.policy,
        "draft_length": setting.draft_length,
        "concurrency": setting.rows,
        "replicas": setting.replicas,
        "workload": setting.workload,
        "load": dict(setting.load),
        "seed": setting.seed,
        "inputs": {**held.spec.get("inputs", {}), "simulated_from": held.run_id, "cost_table": table.sha256()},
    }
    estimates = compute_all(trace, baseline=None if control is None else control[1])
    record = schema.build(
        cell_key=schema.digest(asked)[:16],
        metrics_version=METRICS_VERSION,
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        command=list(command),
        method=method,
        draft_length=setting.draft_length,
        spec=asked,
        provenance=_provenance(source, setting),
        target=held.target,
        drafter=None if method == BASELINE else held.drafter,
        status=str(trace.status),
        estimates=[EstimateRow.of(estimate) for estimate in estimates],
        counts={"ok": len(trace.requests)} | ({"skipped": skipped} if skipped else {}),
        notes=list(dict.fromkeys([NOT_RANKED, *source.notes, *_price_notes(source, setting.draft_length)])),
        rounds=described,
        baseline=None if control is None else control[0].run_id,
        **_key(source, setting),
    )
    return record, data


def _price_notes(source: Source, length: int) -> list[str]:
    measured = source.costs.draft.draft_length
    if source.costs.draft.by_length or measured is None or not length or measured == length:
        return []
    return [f"drafting is charged as measured for {measured} drafts a row, {length} are made"]


@cache
def _code() -> dict[str, Any]:
    return {**provenance.git_state(), "packages": provenance.package_versions()}


def _provenance(source: Source, setting: Setting) -> dict[str, Any]:
    """The code that simulated, and the recorded run's machine; nothing of the machine that simulated matters."""
    held, overhead = source.record.provenance, source.costs.overhead
    return {
        **_code(),
        **{name: held[name] for name in ("device_name", "cpu", "gpu") if name in held},
        "simulation": {
            "from": source.record.run_id,
            "cost_table": source.costs.table.sha256(),
            "rows": setting.rows,
            "replicas": setting.replicas,
            "overhead_s": overhead.fixed_s,
            "overhead_row_s": overhead.row_s,
        },
        "rankable": False,
        "not_rankable_because": [NOT_RANKED],
    }


def _key(source: Source, setting: Setting) -> dict[str, Any]:
    """As the recorded run's, under the simulated load, by an engine of another name: never beside a measured row."""
    table, document = source.costs.table, source.record.comparability
    hardware = table.origin.device or "not stated by the cost table"
    key = keys.build_key(
        {
            **document,
            "engine": f"specbench, simulated with cost table {table.sha256()[:12]}",
            "load": setting.label,
            "timing": {**document["timing"], "row_limit": setting.rows, "hardware": hardware},
        }
    )
    return {"comparability": key.as_dict(), "comparability_sha256": key.sha256()}
