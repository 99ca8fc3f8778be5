"""The document: complete, addressed by its content, strict at the edge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support_records import make_record

from specbench.errors import RecordError
from specbench.records import schema, store
from specbench.records.schema import HISTORY, SCHEMA_VERSION, EstimateRow
from specbench.types import Estimate


def document(**fields: Any) -> dict[str, Any]:
    loaded = json.loads(json.dumps(make_record(**fields).model_dump(mode="json")))
    assert isinstance(loaded, dict)
    return loaded


def test_the_history_covers_every_version() -> None:
    assert sorted(HISTORY) == list(range(1, SCHEMA_VERSION + 1))


def test_the_address_depends_on_content_alone() -> None:
    assert make_record().run_id == make_record().run_id
    assert make_record(created="2027-01-01T00:00:00Z").run_id != make_record().run_id
    spec = {"b": (1, 2), "a": {2: "x", 10: "y"}, "path": Path("some/where")}
    record = make_record(spec=spec)
    assert schema.parse(json.loads(json.dumps(record.model_dump(mode="json"))), where="here") == record


def test_an_edited_record_no_longer_answers_to_its_name() -> None:
    edited = document()
    edited["method"] = "better"
    with pytest.raises(RecordError, match="changed after it was written"):
        schema.parse(edited, where="x.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": SCHEMA_VERSION + 1}, "upgrade specbench-llm"),
        ({"schema_version": 0}, "no schema version"),
        ({"schema_version": None}, "no schema version"),
        ({"surprise": 1}, "surprise"),
        ({"status": "fine"}, "status"),
        ({"run_id": "short"}, "run_id"),
    ],
)
def test_wrong_documents_are_refused_in_one_line(change: dict[str, Any], message: str) -> None:
    with pytest.raises(RecordError, match=message) as caught:
        schema.parse({**document(), **change}, where="x.json")
    assert str(caught.value).startswith("x.json")
    assert "\n" not in str(caught.value)


def test_missing_fields_and_other_types_are_refused() -> None:
    broken = document()
    del broken["target"]
    with pytest.raises(RecordError, match="target"):
        schema.parse(broken, where="x.json")
    with pytest.raises(RecordError, match="seen list"):
        schema.parse([], where="x.json")


@pytest.mark.parametrize("value", [float("nan"), object()])
def test_values_that_json_cannot_hold_are_refused(value: object) -> None:
    with pytest.raises(RecordError, match="JSON values"):
        make_record(spec={"value": value})


numbers = st.floats(allow_nan=False, allow_infinity=False)


@settings(max_examples=80, deadline=None)
@given(
    st.builds(
        Estimate,
        metric=st.text(min_size=1, max_size=8),
        value=numbers,
        unit=st.text(max_size=4),
        n=st.integers(0, 10**9),
        n_of=st.text(max_size=4),
        scope=st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=3).map(lambda d: tuple(d.items())),
        low=st.none() | numbers,
        high=st.none() | numbers,
        interval=st.none() | st.text(max_size=5),
    )
)
def test_estimates_survive_json_exactly(estimate: Estimate) -> None:
    text = make_record(estimates=[EstimateRow.of(estimate)]).model_dump_json()
    back = schema.parse(json.loads(text), where="here").estimates[0].estimate()
    assert back == estimate


def test_find_wants_the_exact_scope() -> None:
    rows = [EstimateRow(metric="tau", value=v, unit="u", n=1, n_of="r", scope=s) for v, s in ((1, {}), (2, {"k": "1"}))]
    record = make_record(estimates=rows)
    first, second = record.find("tau"), record.find("tau", k="1")
    assert first is not None
    assert second is not None
    assert (first.value, second.value) == (1, 2)
    assert record.find("tau", k="2") is None


OLD = Path(__file__).parent.parent / "data" / "record-schema-1.json"


def test_a_record_of_the_first_version_still_loads_and_is_written_as_it_was(tmp_path: Path) -> None:
    """The file was written by the version that knew schema 1 alone."""
    text = OLD.read_text(encoding="utf-8")
    old = store.read(OLD)
    assert old.schema_version == 1
    assert (old.telemetry, old.draft_vocabulary) == (None, None)
    again = store.write(tmp_path, old)
    assert again.read_text(encoding="utf-8") == text
    assert store.read(again) == old


def test_what_a_later_version_added_is_absent_where_there_is_none() -> None:
    plain = document()
    assert not set(schema.ADDED) & set(plain)
    assert "drafter" in plain  # None or not, the first version's fields are always there
    vocabulary = {"size": 5, "target_size": 8, "committed": 40, "inside": 30}
    record = make_record(draft_vocabulary=vocabulary)
    assert record.draft_vocabulary is not None
    assert record.draft_vocabulary.share == 0.75
    assert schema.parse(document(draft_vocabulary=vocabulary), where="here") == record
    assert record.run_id != make_record().run_id
