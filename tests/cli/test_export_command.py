"""``specbench export`` from a real run to every format, and what it refuses."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support_json_schema import faults
from support_records import make_record, save_run
from support_runs import tiny_run
from support_traces import simulate_trace

from specbench.records import store
from specbench.records.schema import Record

Call = Callable[..., tuple[int, str, str]]


def test_a_run_is_exported_in_every_format(specbench: Call, tmp_path: Path) -> None:
    tiny, runs = tiny_run(tmp_path), tmp_path / "runs"
    code, _, err = specbench(*tiny.arguments(runs, "-m", "ngram:3", "--num-prompts", "2"))
    assert code == 0, err
    store.write(runs, make_record(status="failed", error={"kind": "E", "message": "no"}))
    records = store.load_all(runs)
    assert len(records) == 3
    assert specbench("export", "-f", "schema", "-o", tmp_path / "schema.json")[0] == 0
    schema = json.loads((tmp_path / "schema.json").read_text(encoding="utf-8"))
    for path in store.record_files(runs):
        assert faults(json.loads(path.read_text(encoding="utf-8")), schema) == []
    for form, name in (("csv", "a.csv"), ("latex", "a.tex"), ("markdown", "a.md"), ("methods", "a.txt")):
        code, out, err = specbench("export", runs, "--format", form, "--out", tmp_path / name)
        assert (code, err) == (0, "")
        assert out == f"{tmp_path / name}: {form} of 3 records\n"
        text = (tmp_path / name).read_text(encoding="utf-8")
        assert all(record.run_id in text for record in records if record.status == "ok" or form in ("csv", "methods"))
        assert specbench("export", "--in", runs, "-f", form) == (0, text, "")
        assert str(tmp_path) not in text
    with (tmp_path / "a.csv").open(newline="", encoding="utf-8") as file:
        taus = {row["run_id"]: float(row["value"]) for row in csv.DictReader(file) if row["metric"] == "tau"}
    measured = {record.run_id: record.find("tau") for record in records if record.estimates}
    assert taus.keys() == measured.keys()
    assert "ngram:3" in (tmp_path / "a.tex").read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> tuple[Path, Record]:
    record = make_record()
    store.write(tmp_path / "runs", record)
    return tmp_path / "runs", record


def test_one_record_by_its_id_and_methods_as_latex(folder: tuple[Path, Record], specbench: Call) -> None:
    runs, record = folder
    store.write(runs, make_record(method="other_method"))
    out = runs.parent / "m.tex"
    code, said, _ = specbench("export", record.run_id[:8], "--in", runs, "-f", "methods", "-o", out)
    assert (code, said) == (0, f"{out}: methods of 1 record\n")
    assert "other" not in out.read_text()
    specbench("export", runs, "-f", "methods", "-o", out)
    assert r"other\_method" in out.read_text()


def test_what_a_folder_holds_besides_is_told_and_the_rest_exported(
    folder: tuple[Path, Record], specbench: Call
) -> None:
    runs, record = folder
    (runs / f"{'0' * 16}.json").write_text("{")
    newer = {**json.loads(record.model_dump_json()), "schema_version": 99}
    (runs / f"{'1' * 16}.json").write_text(json.dumps(newer))
    code, out, err = specbench("export", runs, "-f", "csv")
    assert code == 0
    assert record.run_id in out
    lines = err.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("warning: left out: ") for line in lines)
    assert "half-written" in lines[0]
    assert "schema 99" in lines[1]


def test_a_csv_of_chosen_metrics_has_their_rows_alone(tmp_path: Path, specbench: Call) -> None:
    runs, record = tmp_path, save_run(tmp_path, simulate_trace(0.5, gamma=2, rounds=30))
    code, out, err = specbench("export", runs, "-f", "csv", "--metric", "tau", "--metric", "acceptance_rate")
    assert (code, err) == (0, "")
    rows = list(csv.DictReader(out.splitlines()))
    wanted = [row for row in record.estimates if row.metric in ("tau", "acceptance_rate")]
    assert [(row["metric"], float(row["value"])) for row in rows] == [(row.metric, row.value) for row in wanted]
    assert 0 < len(rows) < len(record.estimates)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-f", "latec"], "did you mean latex"),
        ([], "give --format"),
        (["nowhere", "-f", "csv"], "names 0 records"),
        (["nowhere.json", "-f", "csv"], "cannot read nowhere.json"),
        (["RUNS", "-f", "schema"], "drop '"),
        (["-f", "csv", "--in", "RUNS/absent"], "no such folder"),
        (["RUNS", "-f", "csv", "-o", "RECORD"], "one of the records"),
        (["RUNS", "-f", "csv", "-o", "RECORD/below/a.csv"], "cannot write"),
        (["RUNS", "-f", "csv", "--metric", "taus"], "did you mean tau"),
        (["RUNS", "-f", "latex", "--metric", "tau"], "drop it, or give --format csv"),
        (["RUNS", "-f", "csv", "--target", "x"], "belong to a checkpoint"),
        (["a", "-l", "deepspec"], "seen 1 names"),
        (["a", "b", "-l", "deepspec", "-f", "csv"], "give one of the two"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_nothing_is_lost(
    arguments: list[str], message: str, folder: tuple[Path, Record], specbench: Call
) -> None:
    runs, record = folder
    path = store.record_path(runs, record.run_id)
    before = path.read_bytes()
    given = [text.replace("RUNS", str(runs)).replace("RECORD", str(path)) for text in arguments]
    if "--in" not in given and "RUNS" not in " ".join(arguments):
        given += ["--in", str(runs)]
    code, out, err = specbench("export", *given)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err
    assert path.read_bytes() == before
    assert [p.name for p in runs.iterdir()] == [path.name]


def test_a_checkpoint_is_still_exported_by_layout(specbench: Call, tmp_path: Path) -> None:
    fixture = Path(__file__).parents[1] / "data" / "fixtures" / "dspark_rnn"
    target = fixture.parent / "target"
    code, out, err = specbench("export", fixture, tmp_path / "own", "-l", "specbench", "--target", target)
    assert (code, err) == (0, "")
    assert "in the specbench layout" in out
    assert (tmp_path / "own" / "config.json").is_file()
