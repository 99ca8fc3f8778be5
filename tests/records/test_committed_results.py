"""Results that come with the repository: whole, made by committed code, and what the README quotes is among them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from specbench.records import store
from specbench.records.schema import Record

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"


@pytest.fixture(scope="module")
def records() -> dict[str, Record]:
    found, broken = store.scan(RESULTS)
    assert not broken, broken[0]
    assert found
    return {record.run_id: record for record in found}


def test_each_was_made_by_code_that_a_commit_names(records: dict[str, Record]) -> None:
    for record in records.values():
        why = record.provenance.get("not_rankable_because", [])
        assert not [text for text in why if "uncommitted" in text or "commit is unknown" in text], (record.run_id, why)


def test_rounds_are_named_by_hash_and_left_out(records: dict[str, Record]) -> None:
    assert not list(RESULTS.rglob("*.parquet"))
    assert all(record.rounds is not None for record in records.values() if record.status == "ok")


def test_no_record_names_a_folder_of_the_machine_that_made_it(records: dict[str, Record]) -> None:
    for path in store.record_files(RESULTS):
        assert not re.search(r'"(/home|/root|/work|/tmp|/mnt|/Users)/', path.read_text(encoding="utf-8")), path


def test_runs_that_the_readme_names_are_here(records: dict[str, Record]) -> None:
    named = set(re.findall(r"\b[0-9a-f]{16}\b", (ROOT / "README.md").read_text(encoding="utf-8")))
    assert named
    assert named <= set(records)


def test_a_baseline_that_is_named_is_here(records: dict[str, Record]) -> None:
    assert {r.baseline for r in records.values() if r.baseline is not None} <= set(records)
