"""Re-reading a record reproduces every number, and says which it does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from support_records import save_run
from support_traces import plain_trace, simulate_trace

from specbench.errors import RecordError
from specbench.records import schema, store
from specbench.records.schema import Record
from specbench.report.recompute import recompute, verify_record


@pytest.fixture
def saved(tmp_path: Path) -> Record:
    trace = simulate_trace(0.8, gamma=3, rounds=200)
    plain = plain_trace(trace)
    control = save_run(tmp_path, plain)
    return save_run(tmp_path, trace, baseline=(control, plain))


def test_every_number_is_reproduced(tmp_path: Path, saved: Record) -> None:
    again = recompute(tmp_path, saved.run_id)
    assert again == [row.estimate() for row in saved.estimates]
    assert {"tau", "speed_up", "break_even_tau"} <= {e.metric for e in again}
    assert verify_record(tmp_path, saved.run_id[:6]) == []


def rewrite(tmp_path: Path, saved: Record, **changes: object) -> Record:
    """A forger who also renames the record after editing it."""
    document = {**saved.model_dump(mode="json"), **changes}
    document.pop("run_id")
    forged = schema.build(**document)
    store.write(tmp_path, forged, rounds_data=store.rounds_path(tmp_path, saved.run_id).read_bytes())
    return forged


def test_changed_missing_and_added_numbers_are_named(tmp_path: Path, saved: Record) -> None:
    rows = [row.model_dump(mode="json") for row in saved.estimates]
    rows[0] = {**rows[0], "value": rows[0]["value"] + 0.01}
    extra = {**rows[1], "metric": "invented"}
    forged = rewrite(tmp_path, saved, estimates=[*rows[:-1], extra])
    found = verify_record(tmp_path, forged.run_id)
    assert len(found) == 3
    assert any(text.startswith("tau: ") and "from the rounds" in text for text in found)
    assert any("not in the record" in text for text in found)
    assert any(text.startswith("invented[") and "no data" in text for text in found)


def test_a_changed_verdict_and_a_hidden_alarm_are_named(tmp_path: Path, saved: Record) -> None:
    assert saved.verdict is not None
    assert saved.verdict.outcome == "pass"
    worse = saved.verdict.model_copy(update={"outcome": "fail"})
    forged = rewrite(tmp_path, saved, verdict=worse.model_dump(mode="json"))
    assert verify_record(tmp_path, forged.run_id) == ["verdict: fail in the record, pass from the rounds"]


def test_numbers_of_other_definitions_are_refused(tmp_path: Path, saved: Record) -> None:
    forged = rewrite(tmp_path, saved, metrics_version="0")
    with pytest.raises(RecordError, match="metrics version 0"):
        recompute(tmp_path, forged.run_id)


def test_a_missing_baseline_is_named(tmp_path: Path, saved: Record) -> None:
    assert saved.baseline is not None
    store.record_path(tmp_path, saved.baseline).unlink()
    with pytest.raises(RecordError, match=saved.baseline):
        recompute(tmp_path, saved.run_id)
