"""From what a user names to records: each run once, nothing dropped in silence."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support_records import make_record

from specbench.errors import RecordError
from specbench.records import store
from specbench.records.sources import collect


def test_files_folders_and_run_ids_lead_to_the_same_records(tmp_path: Path) -> None:
    early = make_record(created="2026-01-01T00:00:00Z")
    late = make_record(created="2026-01-03T00:00:00Z")
    store.write(tmp_path / "deep", late)
    path = store.write(tmp_path, early)
    by_folder = collect([], folder=tmp_path)
    assert by_folder.records == (early, late)
    assert collect([str(tmp_path)], folder=Path("nowhere")).records == (early, late)
    assert collect([late.run_id[:9], str(path)], folder=tmp_path).records == (early, late)
    assert set(by_folder.files) == set(store.record_files(tmp_path))


def test_a_run_that_is_named_twice_counts_once(tmp_path: Path) -> None:
    record = make_record()
    path = store.write(tmp_path / "a", record)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert collect([str(tmp_path), str(path)], folder=tmp_path).records == (record,)


def test_what_cannot_be_read_is_told_in_a_folder_and_refused_by_name(tmp_path: Path) -> None:
    record = make_record()
    store.write(tmp_path, record)
    half = tmp_path / f"{'0' * 16}.json"
    half.write_text('{"schema_version": 1, "run')
    found = collect([], folder=tmp_path)
    assert found.records == (record,)
    assert [str(half) in str(error) for error in found.broken] == [True]
    with pytest.raises(RecordError, match="half-written"):
        collect([str(half)], folder=tmp_path)


@pytest.mark.parametrize(
    ("names", "message"),
    [(["none.json"], "cannot read"), (["abc"], "names 0 records"), ([], "no records in")],
)
def test_names_that_lead_nowhere_are_one_line(names: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=message) as caught:
        collect(names, folder=tmp_path)
    assert "\n" not in str(caught.value)
    with pytest.raises(RecordError, match="no such folder"):
        collect([], folder=tmp_path / "absent")


def test_a_folder_of_nothing_but_ruins_says_so(tmp_path: Path) -> None:
    (tmp_path / f"{'0' * 16}.json").write_text("{")
    with pytest.raises(RecordError, match="1 that cannot be read"):
        collect([str(tmp_path)], folder=tmp_path)


def test_a_path_that_leads_nowhere_is_named_itself(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    for folder in (tmp_path / "runs", tmp_path / "none"):
        with pytest.raises(RecordError, match="cannot read /nowhere/else: no such folder or file"):
            collect(["/nowhere/else"], folder=folder)
