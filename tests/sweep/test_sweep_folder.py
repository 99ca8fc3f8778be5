"""The results folder of a sweep: one owner, whole records only, refusals in one line."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from support_records import make_record, save_run
from support_traces import example_trace

from specbench import sweep_folder
from specbench.cli import main
from specbench.errors import NewerSchemaError, RecordError
from specbench.records import store
from specbench.records.schema import Record
from specbench.sweep_folder import HOLDER, LOCK, ResultsFolder, held


def swept(folder: Path, cell: str, **fields: Any) -> Record:
    record = make_record(provenance={"sweep": {"cell": cell, "group": cell}}, **fields)
    store.write(folder, record)
    return record


FAILURE = {"status": "failed", "error": {"kind": "DrafterError", "message": "no"}}


def refusal(folder: Path) -> str:
    with pytest.raises(RecordError) as refused, held(folder):
        pass
    return str(refused.value)


def test_the_second_process_says_who_holds_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_folder, "_HOLDER_WAIT_S", 0.1)
    with held(tmp_path):
        assert (tmp_path / LOCK).exists()
        assert re.search(rf"in use by process {os.getpid()} \(specbench.* since 20", refusal(tmp_path))
        assert "\n" not in refusal(tmp_path)
        (tmp_path / HOLDER).write_text("{")  # not yet written, or by a version that says other things
        assert "in use by another process" in refusal(tmp_path)
    with held(tmp_path):
        pass
    assert not (tmp_path / HOLDER).exists()


def test_what_a_killed_holder_left_is_no_obstacle(tmp_path: Path) -> None:
    who = {"pid": 999_999_999, "host": "elsewhere", "since": 0, "command": "specbench sweep old.toml"}
    (tmp_path / HOLDER).write_text(json.dumps(who))
    (tmp_path / LOCK).write_text("")
    with held(tmp_path):
        assert json.loads((tmp_path / HOLDER).read_text())["pid"] == os.getpid()


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RecordError, match="cannot write"), held(tmp_path / "file" / "out"):
        pass


def test_a_folder_of_a_newer_schema_is_refused_by_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    record = swept(tmp_path / "out", "a" * 16)
    path = store.record_path(tmp_path / "out", record.run_id)
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": 99}))
    with pytest.raises(NewerSchemaError, match="schema 99"):
        ResultsFolder.open(tmp_path / "out", mend=True)
    sweep = tmp_path / "s.toml"
    sweep.write_text('[axes]\nmethod = ["ngram"]\n')
    for more in ([], ["--dry-run"]):
        monkeypatch.setattr(sys, "argv", ["specbench", "sweep", str(sweep), "--out", str(tmp_path / "out"), *more])
        with pytest.raises(SystemExit) as ended:
            main.run()
        assert ended.value.code == 2
        (said,) = capfd.readouterr().err.splitlines()
        assert said.startswith("error: ")
        assert "record schema 99, this version reads up to" in said
    assert path.exists()


@pytest.mark.parametrize("share", [0.0, 0.4, 0.99])
def test_a_half_written_record_is_set_aside_and_its_cell_open_again(tmp_path: Path, share: float) -> None:
    kept, cut = swept(tmp_path, "a" * 16), swept(tmp_path, "b" * 16)
    path = store.record_path(tmp_path, cut.run_id)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    looked = ResultsFolder.open(tmp_path, mend=False)
    assert path.exists()
    found = ResultsFolder.open(tmp_path, mend=True)
    for folder in (looked, found):
        assert set(folder.finished) == {"a" * 16}
        assert len(folder.remarks) == 1
        assert f"{path} is half-written: its cell is measured again" in folder.remarks[0]
    assert not path.exists()
    assert store.load_all(tmp_path) == [kept]
    assert ResultsFolder.open(tmp_path, mend=True).remarks == []


def test_rounds_that_are_cut_count_as_half_written_and_absent_ones_do_not(tmp_path: Path) -> None:
    sweep = {"provenance": {"sweep": {"cell": "a" * 16}}}
    record = save_run(tmp_path, example_trace(), **sweep)
    rounds = store.rounds_path(tmp_path, record.run_id)
    data = rounds.read_bytes()
    rounds.unlink()
    assert set(ResultsFolder.open(tmp_path, mend=True).finished) == {"a" * 16}
    rounds.write_bytes(data[:-1])
    found = ResultsFolder.open(tmp_path, mend=True)
    assert found.finished == {}
    assert "rounds that are cut short" in found.remarks[0]


def test_an_edited_record_is_left_alone_and_said(tmp_path: Path) -> None:
    record = swept(tmp_path, "a" * 16)
    path = store.record_path(tmp_path, record.run_id)
    path.write_text(path.read_text().replace('"toy"', '"other"'))
    found = ResultsFolder.open(tmp_path, mend=True)
    assert found.finished == {}
    assert "it was changed after it was written" in found.remarks[0]
    assert path.exists()


def test_temporary_files_of_the_dead_go_and_those_of_the_living_stay(tmp_path: Path) -> None:
    for pid in (999_999_999, os.getpid()):
        (tmp_path / f".{'0' * 16}.json.{pid}.0123abcd.tmp").write_text("{")
    (tmp_path / ".mine.tmp").write_text("not of this program")
    ResultsFolder.open(tmp_path, mend=False)
    assert len(list(tmp_path.glob(".*.tmp"))) == 3
    ResultsFolder.open(tmp_path, mend=True)
    assert sorted(path.name for path in tmp_path.glob(".*")) == [
        f".{'0' * 16}.json.{os.getpid()}.0123abcd.tmp",
        ".mine.tmp",
    ]


def test_a_retry_takes_the_place_of_the_failure(tmp_path: Path) -> None:
    failed = swept(tmp_path, "a" * 16, **FAILURE)
    found = ResultsFolder.open(tmp_path, mend=True)
    assert (set(found.failed), found.finished) == ({"a" * 16}, {})
    done = swept(tmp_path, "a" * 16, created="2026-02-02T00:00:00Z")
    again = ResultsFolder.open(tmp_path, mend=False)  # killed between writing the one and removing the other
    assert (again.finished["a" * 16], again.failed) == (done, {})
    assert store.record_path(tmp_path, failed.run_id).exists()
    found.add(done)
    assert (found.finished["a" * 16], found.failed) == (done, {})
    assert store.load_all(tmp_path) == [done]


def test_of_two_records_of_a_cell_the_judged_and_newer_one_stays(tmp_path: Path) -> None:
    control = make_record().run_id
    judged = swept(tmp_path, "a" * 16, baseline=control)
    swept(tmp_path, "a" * 16, created="2027-01-01T00:00:00Z")
    other = make_record(command=["specbench", "run"])
    store.write(tmp_path, other)
    found = ResultsFolder.open(tmp_path, mend=True)
    assert found.finished == {"a" * 16: judged}
    assert {record.run_id for record in found.records()} == {judged.run_id, other.run_id}
    assert {record.run_id for record in store.load_all(tmp_path)} == {judged.run_id, other.run_id}
