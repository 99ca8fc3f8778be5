"""Re-reading a record: every number again from its rounds, and what differs from what was written."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path

from specbench.errors import RecordError
from specbench.metrics import METRICS_VERSION
from specbench.metrics._all import compute_all
from specbench.metrics._identities import check_identities
from specbench.metrics._recorded import graded_estimates, recorded_estimates
from specbench.metrics.alarms import find_alarms
from specbench.metrics.losslessness import Losslessness, verdict
from specbench.records import store
from specbench.records.schema import DifferenceRow, GradedRow, Record, VerdictRow
from specbench.types import Estimate, RunTrace

RELATIVE_TOLERANCE = 1e-9  # sums of times may round differently on another machine


def verdict_row(found: Losslessness, *, control: str | None) -> VerdictRow:
    """A verdict as kept in a record; ``control`` is the run id of the plain decoding that it was judged against."""
    return VerdictRow(
        outcome=found.outcome.value,
        rule=found.rule,
        reason=found.reason,
        requests_compared=found.requests_compared,
        rounds_with_drafts=found.rounds_with_drafts,
        differences=[DifferenceRow(**asdict(difference)) for difference in found.differences],
        noise_floor=found.noise_floor,
        share_compared=found.share_compared,
        p_value=found.p_value,
        power=found.power,
        samples=list(found.samples),
        degrees=list(found.degrees),
        control=control,
    )


def _trace_of(path: Path, record: Record) -> RunTrace:
    trace = store.read_trace(path.parent, record)
    check_identities(trace)
    return trace


def _other(folder: Path, run_id: str | None) -> RunTrace | None:
    """The trace of the run that a record was compared with."""
    if run_id is None:
        return None
    path = store.find(folder, run_id)
    return _trace_of(path, store.read(path))


def recompute(folder: Path, run_id: str) -> list[Estimate]:
    """Every estimate of a run, computed again from its rounds and those of the baseline that it was compared with.

    Errors: RecordError when a file is missing or damaged, or the metrics' definitions have changed since.
    """
    path = store.find(folder, run_id)
    record = store.read(path)
    _same_definitions(record)
    return _computed(folder, record, _trace_of(path, record))


def _computed(folder: Path, record: Record, trace: RunTrace) -> list[Estimate]:
    """From the rounds, the baseline's rounds, and the blocks of the record itself."""
    recorded = recorded_estimates(trace, telemetry=record.telemetry, vocabulary=record.draft_vocabulary)
    graded = graded_estimates(record.graded or [], control=_graded(folder, record.baseline))
    return [*compute_all(trace, baseline=_other(folder, record.baseline)), *recorded, *graded]


def _graded(folder: Path, run_id: str | None) -> list[GradedRow]:
    """What the grader gave the answers of the run that a record was compared with."""
    return [] if run_id is None else store.read(store.find(folder, run_id)).graded or []


def _same_definitions(record: Record) -> None:
    if record.metrics_version != METRICS_VERSION:
        raise RecordError(
            f"run {record.run_id} was computed with metrics version {record.metrics_version}, this is "
            f"{METRICS_VERSION}: its numbers cannot be reproduced here; use the version that wrote it"
        )


def verify_record(folder: Path, run_id: str) -> list[str]:
    """What of a record's estimates, alarms and verdict its rounds do not reproduce, one phrase each; empty is good.

    Errors: as `recompute`.
    """
    path = store.find(folder, run_id)
    record = store.read(path)
    _same_definitions(record)
    trace = _trace_of(path, record)
    found = _estimate_differences(record, _computed(folder, record, trace))
    stated, seen = {alarm.name for alarm in record.alarms}, {alarm.name for alarm in find_alarms(trace)}
    found += [f"alarm '{name}': not in the record" for name in sorted(seen - stated)]
    stated_verdict = record.verdict
    if stated_verdict is not None and stated_verdict.control is not None and stated_verdict.rule != "synthetic":
        control = _other(folder, stated_verdict.control)
        assert control is not None
        again = verdict(trace, control, noise_floor=stated_verdict.noise_floor)
        if again.outcome.value != stated_verdict.outcome:
            found.append(f"verdict: {stated_verdict.outcome} in the record, {again.outcome.value} from the rounds")
    return found


def _estimate_differences(record: Record, computed: list[Estimate]) -> list[str]:
    stated = {_key(row.estimate()): row.estimate() for row in record.estimates}
    again = {_key(estimate): estimate for estimate in computed}
    found = [f"{_name(new)}: not in the record" for key, new in again.items() if key not in stated]
    for key, old in stated.items():
        new_one = again.get(key)
        if new_one is None:
            found.append(f"{_name(old)}: in the record, but its rounds have no data for it")
        elif not _agree(old, new_one):
            found.append(f"{_name(old)}: {_shown(old)} in the record, {_shown(new_one)} from the rounds")
    return found


def _key(estimate: Estimate) -> tuple[str, frozenset[tuple[str, str]]]:
    return estimate.metric, frozenset(estimate.scope)


def _name(estimate: Estimate) -> str:
    scope = ", ".join(f"{name}={value}" for name, value in estimate.scope)
    return f"{estimate.metric}[{scope}]" if scope else estimate.metric


def _close(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=RELATIVE_TOLERANCE, abs_tol=1e-12)


def _agree(old: Estimate, new: Estimate) -> bool:
    numbers = all(_close(getattr(old, name), getattr(new, name)) for name in ("value", "low", "high"))
    return numbers and all(getattr(old, name) == getattr(new, name) for name in ("unit", "n", "n_of", "interval"))


def _shown(estimate: Estimate) -> str:
    bounds = f" [{estimate.low:.6g}, {estimate.high:.6g}]" if estimate.low is not None else ""
    return f"{estimate.value:.9g}{bounds} (n = {estimate.n})"
