"""The exported JSON Schema and the model that reads records say the same."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support_json_schema import faults
from support_records import make_record, save_run
from support_traces import plain_trace, simulate_trace

from specbench.errors import RecordError
from specbench.records import schema
from specbench.records.json_schema import DIALECT, json_schema, to_json
from specbench.records.schema import SCHEMA_VERSION, Record

SCHEMA = json_schema()
OLD = Path(__file__).parent.parent / "data" / "record-schema-1.json"
TELEMETRY = {
    "source": "nvml", "device": "a device", "period_s": 0.1, "start_s": 1.0, "end_s": 2.0, "samples": 9, "tokens": 10,
    "readings": {"power": {"unit": "W", "mean": 400.0, "least": 390.0, "most": 410.0, "samples": 9}},
    "throttled": {"software power cap": 0.5}, "energy_j": 400.0, "energy_from": "counter", "unsupported": ["power"],
}  # fmt: skip


def document(record: Record) -> dict[str, Any]:
    found = json.loads(record.model_dump_json())
    assert isinstance(found, dict)
    return found


EVIDENCE = {
    "outcome": "fail", "rule": "greedy", "reason": "one text differs", "requests_compared": 4, "rounds_with_drafts": 40,
    "differences": [
        {"request": "r", "position": 3, "token": 5, "control_token": None, "gap": 0.5, "tie": False}
    ],
    "noise_floor": 0.25, "samples": [(1, 2, 3)], "control": "0" * 16,
}  # fmt: skip
FULL = make_record(
    estimates=[
        {"metric": "tau", "value": 2.5, "unit": "tokens per round", "n": 40, "n_of": "rounds", "low": 2, "high": 3},
        {"metric": "tau", "value": 2.5, "unit": "tokens per round", "n": 4, "n_of": "rounds", "scope": {"task": "t"}},
    ],
    verdict=EVIDENCE,
    alarms=[{"name": "n", "message": "m"}],
    samples=[{"request": "r", "task": "t", "prompt": "p", "text": "τ"}],
    counts={"ok": 4},
    notes=["a note"],
    telemetry=TELEMETRY,
    draft_vocabulary={"size": 5, "target_size": 8, "committed": 40, "inside": 30},
)
"""Every block that a record can hold."""


def test_every_kind_of_record_fits_it(tmp_path: Path) -> None:
    records = [
        make_record(),
        make_record(drafter=None, method="vanilla", draft_length=0),
        make_record(status="failed", error={"kind": "DrafterError", "message": "no"}),
        FULL,
    ]
    trace = simulate_trace(0.7, gamma=3, rounds=20)
    plain = plain_trace(trace)
    save_run(tmp_path, trace, baseline=(save_run(tmp_path, plain), plain))
    written = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(tmp_path.glob("*.json"))]
    assert len(written) == 2
    for found in [*map(document, records), *written, json.loads(OLD.read_text(encoding="utf-8"))]:
        assert faults(found, SCHEMA) == []


def test_the_document_names_its_dialect_and_version() -> None:
    assert json.loads(to_json()) == SCHEMA
    assert SCHEMA["$schema"] == DIALECT
    assert SCHEMA["$id"] == f"urn:specbench:record:{SCHEMA_VERSION}"
    assert SCHEMA["properties"]["schema_version"]["enum"] == list(range(1, SCHEMA_VERSION + 1))
    assert faults(document(make_record()) | {"schema_version": SCHEMA_VERSION + 1}, SCHEMA)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, part in inner for found in ((*path, key), *_paths(part, (*path, key)))]


_FREE = ("spec", "provenance", "comparability")  # hold what they like


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_what_one_refuses_the_other_refuses(data: st.DataObject) -> None:
    """A value anywhere in a record is dropped or replaced; the hash is renewed, so that only the shape is judged."""
    changed = copy.deepcopy(document(FULL))
    paths = [path for path in _paths(changed) if path[0] not in _FREE and path != ("schema_version",)]
    path = data.draw(st.sampled_from(paths))
    place = changed
    for key in path[:-1]:
        place = place[key]
    new = data.draw(st.sampled_from(["drop", None, True, -1, 0.5, 7, "text", "f" * 64, [], [1], {}, {"a": "b"}]))
    if new == "drop":
        del place[path[-1]]
    else:
        place[path[-1]] = new
    broken = faults(changed, SCHEMA)
    if path != ("run_id",):
        changed["run_id"] = schema.content_id(changed)
    refused = _refusal(changed)
    if refused is not None and "hashes to" not in refused:
        assert broken, f"{path} = {new!r}: the schema allows what reading refuses: {refused}"
    elif broken:  # reading turns a few values into the wanted type where nothing is lost; the schema is exact
        assert new is True or isinstance(new, float | int | str), f"{path} = {new!r}: {broken}"


def _refusal(changed: dict[str, Any]) -> str | None:
    try:
        schema.parse(changed, where="here")
    except RecordError as error:
        return str(error)
    return None


def test_the_checker_knows_its_keywords_and_can_fail() -> None:
    with pytest.raises(NotImplementedError):
        faults(1, {"multipleOf": 2})
    assert faults({"a": 1}, {"additionalProperties": False})
    assert faults([1, "x"], {"items": {"type": "integer"}})
    assert faults(True, {"enum": [1]})
    assert not faults([1, 2], {"prefixItems": [{"type": "integer"}, {"minimum": 2}], "maxItems": 2})
