"""The tidy CSV: a row per estimate, every digit kept."""

from __future__ import annotations

import csv
from pathlib import Path

from support_records import make_record, save_run
from support_traces import simulate_trace

from specbench.records.tidy import COLUMNS, rows, write_csv


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
