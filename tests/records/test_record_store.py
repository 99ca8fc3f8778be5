"""The results folder: whole files or none, clear refusals, nothing dropped in silence."""

from __future__ import annotations

import json
import os
import resource
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from support_records import make_record, save_run
from support_traces import example_trace, simulate_trace

from specbench.errors import RecordError
from specbench.metrics._identities import check_identities
from specbench.records import store


def test_a_run_is_written_and_read_back(tmp_path: Path) -> None:
    trace = example_trace()
    record = save_run(tmp_path / "new" / "folder", trace)
    folder = tmp_path / "new" / "folder"
    assert sorted(path.name for path in folder.iterdir()) == [
        f"{record.run_id}.json",
        f"{record.run_id}.rounds.parquet",
    ]
    assert store.read(store.record_path(folder, record.run_id)) == record
    assert store.read_trace(folder, record) == trace


def test_files_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        store.write_atomic(tmp_path / "a.txt", b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == 0o644


def test_a_folder_that_cannot_be_written_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("I am no folder")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(RecordError, match="cannot write") as caught:
            store.check_writable(folder)
        assert "\n" not in str(caught.value)
    store.check_writable(tmp_path / "fine")
    assert list((tmp_path / "fine").iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(RecordError, match="Permission denied"):
        store.check_writable(tmp_path)
    tmp_path.chmod(0o700)


@pytest.fixture
def tiny_disk() -> Iterator[None]:
    """No file of this process may grow beyond 4 KiB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("tiny_disk")
def test_without_space_the_old_file_stays_and_nothing_is_left(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    store.write_atomic(path, b"old")
    with pytest.raises(RecordError, match="free some space") as caught:
        store.write_atomic(path, b"x" * 10_000)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_half_written_record_is_named(tmp_path: Path) -> None:
    record = save_run(tmp_path, example_trace())
    path = store.record_path(tmp_path, record.run_id)
    whole = path.read_text()
    for length in (0, 10, len(whole) // 2, len(whole) - 3):
        path.write_text(whole[:length])
        with pytest.raises(RecordError, match="half-written") as caught:
            store.read(path)
        assert str(path) in str(caught.value)


def test_damaged_missing_and_foreign_rounds_are_refused(tmp_path: Path) -> None:
    record = save_run(tmp_path, simulate_trace(0.5, gamma=2, rounds=30))
    path = store.rounds_path(tmp_path, record.run_id)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(RecordError, match="cut or changed"):
        store.read_trace(tmp_path, record)
    path.unlink()
    with pytest.raises(RecordError, match=r"left out or moved .*put .*rounds\.parquet there"):
        store.read_trace(tmp_path, record)
    with pytest.raises(RecordError, match="has no rounds"):
        store.read_trace(tmp_path, make_record(status="failed"))


def test_a_record_is_not_written_with_other_rounds(tmp_path: Path) -> None:
    data, described = store.encode_rounds(example_trace(), check=check_identities)
    with pytest.raises(RecordError, match="describes rounds"):
        store.write(tmp_path, make_record(rounds=described), rounds_data=data + b" ")
    with pytest.raises(RecordError, match="describes rounds"):
        store.write(tmp_path, make_record(rounds=described))
    assert list(tmp_path.iterdir()) == []


def test_scan_finds_every_record_and_names_every_broken_one(tmp_path: Path) -> None:
    late = make_record(created="2027-01-01T00:00:00Z")
    early = make_record(created="2025-01-01T00:00:00Z")
    for folder, record in ((tmp_path / "cpu" / "tiny", late), (tmp_path, early)):
        store.write(folder, record)
    (tmp_path / f"{'0' * 16}.json").write_text("{")
    newer = {**json.loads(early.model_dump_json()), "schema_version": 7}
    (tmp_path / f"{'1' * 16}.json").write_text(json.dumps(newer))
    (tmp_path / "notes.json").write_text("not a record, and not named like one")
    (tmp_path / f".{'2' * 16}.json.1.abc.tmp").write_text("left by a killed process")
    records, broken = store.scan(tmp_path)
    assert [record.run_id for record in records] == [early.run_id, late.run_id]
    assert [("half-written" in str(e), "schema 7" in str(e)) for e in broken] == [(True, False), (False, True)]
    with pytest.raises(RecordError):
        store.load_all(tmp_path)
    with pytest.raises(RecordError, match="no such folder"):
        store.scan(tmp_path / "nowhere")


def test_runs_are_found_by_an_unambiguous_beginning(tmp_path: Path) -> None:
    record = make_record()
    path = store.write(tmp_path, record)
    assert store.find(tmp_path, record.run_id[:5]) == path
    with pytest.raises(RecordError, match="names 0 records"):
        store.find(tmp_path, "zzzz")
    store.write(tmp_path, make_record(method="other"))
    with pytest.raises(RecordError, match="names 2 records"):
        store.find(tmp_path, "")
