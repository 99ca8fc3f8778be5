"""Predictions beside measurements of the same setting."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support_confidence import confident_trace
from support_records import make_record
from test_simulate_command import FLAT, saved

from specbench.engine.cost_table import to_document
from specbench.records import store
from specbench.records.schema import Record
from specbench.report.against import compare, worst


@pytest.fixture
def predicted(specbench: Any, tmp_path: Any) -> list[Record]:
    saved(tmp_path / "runs", confident_trace((1.0, 1.0, 1.0), prompts=6, rounds=10))
    (tmp_path / "table.json").write_text(json.dumps(to_document(FLAT)))
    code, _, err = specbench(
        "simulate", tmp_path / "runs", "--cost-table", tmp_path / "table.json", "-c", "2,3", "--requests", 12,
        "--overhead", 0.001, "--out", tmp_path / "out",
    )  # fmt: skip
    assert code == 0, err
    return store.load_all(tmp_path / "out")


def measured(record: Record, *, slower: float, key: dict[str, Any] | None = None, **changes: Any) -> Record:
    """What a run of the prediction's setting would have left, ``slower`` times as slow."""
    rows = [row.model_copy(update={"value": row.value / slower}) for row in record.estimates]
    spec = {**record.spec, "backend": "engine", **changes}
    comparability = {**record.comparability, "engine": "specbench", **(key or {})}
    return record.model_copy(update={"spec": spec, "estimates": rows, "comparability": comparability})


def test_each_is_held_against_the_mean_of_its_settings_repeats(predicted: list[Record]) -> None:
    first = predicted[0]
    pairs = compare(predicted, [measured(first, slower=1.25), measured(first, slower=1.0)])
    (pair,) = [pair for pair in pairs if pair.figures]
    assert pair.record.run_id == first.run_id
    assert [figure.name for figure in pair.figures] == ["tok/s", "tok/s/user"]
    for figure in pair.figures:
        assert len(figure.measured) == 2
        assert figure.error == pytest.approx(1 / 0.9 - 1)
    assert worst(pairs) == pytest.approx(1 / 0.9 - 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"policy": "threshold:0.5"},
        {"tasks": ["another"]},
        {"key": {"max_new_tokens": 999}},
        {"key": {"dtype": "another"}},
        {"key": {"load": "closed:64"}},
        {"key": {"timing": {"hardware": "another"}}},
    ],
)
def test_another_setting_is_no_counterpart(predicted: list[Record], changes: dict[str, Any]) -> None:
    drafted = [one for one in predicted if one.draft_length]  # plain decoding has no policy
    assert worst(compare(drafted, [measured(one, slower=1.0) for one in drafted])) == pytest.approx(0)
    assert worst(compare(drafted, [measured(one, slower=1.0, **changes) for one in drafted])) is None


def test_predictions_and_failures_are_no_measurements(predicted: list[Record]) -> None:
    failed = [measured(one, slower=1.0).model_copy(update={"status": "error"}) for one in predicted]
    assert worst(compare(predicted, [*predicted, *failed])) is None


def test_the_command_prints_both(specbench: Any, tmp_path: Any, predicted: list[Record]) -> None:
    flags = ["--cost-table", tmp_path / "table.json", "-c", 2, "--requests", 12, "--overhead", 0.001]
    store.write(tmp_path / "elsewhere", make_record(method="toy"))
    code, said, err = specbench("simulate", tmp_path / "runs", *flags, "--against", tmp_path / "elsewhere")
    assert code == 0, err
    assert "nothing was measured at these settings" in said
    code, _, err = specbench("simulate", tmp_path / "runs", *flags, "--against", tmp_path / "nowhere")
    assert code == 2
    assert "nowhere" in err
