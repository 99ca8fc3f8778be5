"""The tidy CSV: a row per estimate, every digit kept."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from urllib.parse import unquote

from support_records import make_record, save_run
from support_traces import plain_trace, simulate_trace

from specbench.records.schema import EstimateRow
from specbench.records.tidy import COLUMNS, rows, scope_text, to_csv, write_csv


def test_one_row_per_estimate_with_exact_values(tmp_path: Path) -> None:
    record = save_run(tmp_path, simulate_trace(0.7, gamma=3, rounds=60))
    write_csv([record], tmp_path / "all.csv")
    with (tmp_path / "all.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert list(table[0]) == list(COLUMNS)
    assert len(table) == len(record.estimates)
    for read, row in zip(table, record.estimates):
        assert read["run_id"] == record.run_id
        assert float(read["value"]) == row.value
        assert read["low"] == ("" if row.low is None else repr(row.low))
        assert read["domain"] == row.scope.get("domain", "")
    tau = [r for r in table if r["metric"] == "tau" and r["scope"] == "domain=code"]
    assert len(tau) == 1


def test_a_failed_cell_keeps_its_row() -> None:
    record = make_record(status="failed", error={"kind": "DrafterError", "message": "no, really"})
    (row,) = rows([record])
    assert set(row) == set(COLUMNS)
    assert (row["status"], row["metric"], row["value"]) == ("failed", None, None)


def test_every_row_has_its_own_key_and_nothing_of_an_estimate_is_lost(tmp_path: Path) -> None:
    trace = simulate_trace(0.7, gamma=3, rounds=40)
    plain = plain_trace(trace)
    control = save_run(tmp_path, plain)
    records = [control, save_run(tmp_path, trace, baseline=(control, plain))]
    table = list(csv.DictReader(to_csv(records).splitlines()))
    keys = [(row["run_id"], row["metric"], row["scope"]) for row in table]
    assert len(set(keys)) == len(keys) == sum(len(record.estimates) for record in records)
    back = [
        EstimateRow(
            metric=row["metric"],
            value=float(row["value"]),
            unit=row["unit"],
            n=int(row["n"]),
            n_of=row["n_of"],
            scope=dict(part.split("=") for part in row["scope"].split(";") if part),
            low=float(row["low"]) if row["low"] else None,
            high=float(row["high"]) if row["high"] else None,
            interval=row["interval"] or None,
        )
        for row in table
    ]
    assert back == [row for record in records for row in record.estimates]


def test_others_ways_of_counting_carry_their_name(tmp_path: Path) -> None:
    record = save_run(tmp_path, simulate_trace(0.7, gamma=3, rounds=40))
    named = {row["counted_as"]: row["metric"] for row in rows([record]) if row["counted_as"] is not None}
    assert named == {
        "DeepSpec": "tau_deepspec",
        "vLLM": "tau_counters",
        "SGLang": "tau_tokens",
        "SPEED-Bench": "tau_chunks",
        "DFlash": "tau_request_mean",
    }


NASTY = 'a,"b";c=d%\n\x00=1+1 \udcff τ'


def test_hostile_names_survive(tmp_path: Path) -> None:
    scope = {"domain": NASTY.replace("\x00", ""), "k=1;stat": "x%3B"}
    row = EstimateRow(metric="tau", value=2, unit="u", n=1, n_of="r", scope=scope)
    target = {"name": NASTY.replace("\x00", ""), "sha256": "a" * 64, "source": "folder"}
    record = make_record(estimates=[row], target=target)
    assert scope_text(scope).count(";") == 1
    decoded = dict(part.split("=") for part in scope_text(scope).split(";"))
    assert {unquote(name): unquote(value, errors="surrogateescape") for name, value in decoded.items()} == scope
    write_csv([record], tmp_path / "all.csv")
    with (tmp_path / "all.csv").open(newline="", encoding="utf-8") as file:
        (read,) = csv.DictReader(file)
    assert read["target"] == target["name"].replace("\udcff", "\\udcff")


def test_the_facts_of_a_run_are_in_every_row() -> None:
    spec = {"temperature": 0.0, "policy": "fixed:3", "seed": 7, "tasks": ["a", "b;c"], "concurrency": 2}
    error = {"kind": "DrafterError", "message": "two\nlines"}
    (row,) = rows([make_record(spec=spec, status="failed", error=error)])
    assert (row["policy"], row["seed"], row["tasks"], row["load"], row["prompts"]) == (
        "fixed:3", 7, "a;b%3Bc", "closed:1", 10,
    )  # fmt: skip
    assert (row["git_sha"], row["error"]) == ("f" * 40, "two lines")


def test_lines_are_those_of_a_plain_csv_writer(tmp_path: Path) -> None:
    hostile = 'a "name", with\nlines\r and ; = %'
    records = [
        save_run(tmp_path, simulate_trace(0.7, gamma=3, rounds=60)),
        save_run(tmp_path, simulate_trace(0.7, gamma=3, rounds=60)).model_copy(update={"method": hostile}),
        make_record(status="failed", error={"kind": "DrafterError", "message": hostile}),
    ]
    assert [bool(record.estimates) for record in records] == [True, True, False]
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows(records))
    assert to_csv(records) == text.getvalue()
