"""The paper's numbers agree with each other; a difference to them is given only where nothing keeps the two apart."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from support_figures import changed, row, table_cell, with_rows
from support_site import cell

from specbench.records.schema import Record
from specbench.report import beside, figure_folder, paper_values
from specbench.report.entries import gather


def test_the_papers_numbers_agree_with_each_other() -> None:
    """Figure 4's gains at seven drafts are those of the table's means of the smallest target."""
    values = paper_values.paper_values()
    table = [value for value in values if value.place == "Table 1"]
    assert len(table) == 4 * 3 * 9
    for gain in (value for value in values if value.quantity == "gain_over_dflash" and value.draft_length == 7):
        fit = [value for value in table if (value.target, value.domain) == ("Qwen3-4B", gain.domain)]
        taus = {
            method: np.mean([value.value for value in fit if value.method == method]) for method in ("dspark", "dflash")
        }
        assert 100 * (taus["dspark"] / taus["dflash"] - 1) == pytest.approx(gain.value, abs=0.6)
    assert {value.place for value in values} == {"Table 1", *(f"Figure {n}" for n in (2, 4, 5, 6, 7, 8))}


NAMES = {"target": "Qwen/Qwen3-4B", "drafter": "deepseek-ai/dspark_qwen3_4b_block7"}


def line_of(records: list[Record]) -> beside.Line:
    lines = beside.beside(gather(records)[0])
    (found,) = [line for line in lines
                if line.paper.place == "Table 1" and line.paper.task == "gsm8k"
                and (line.paper.target, line.paper.method) == ("Qwen3-4B", "dspark")]  # fmt: skip
    return found


def test_a_difference_is_given_where_nothing_differs() -> None:
    record = table_cell("dspark", 6.0, **NAMES)
    line = line_of([table_cell("dspark", 5.0, target="tiny", drafter="own"), record])
    assert line.measured is not None
    assert (line.measured.apart, line.measured.run_ids) == ((), (record.run_id,))
    assert line.difference == pytest.approx(6.0 - 6.11)
    assert line.others == 1


def test_only_the_table_states_all_that_a_difference_needs() -> None:
    """Of the other numbers the target, the temperature or the length is not carried over, and then no run agrees."""
    task = {"spec": {"tasks": ["gsm8k", "math500", "aime25"]}}
    record = table_cell("dspark", 6.0, **NAMES)
    rows = [row("conditional", 0.93, k="1", domain="math"), row("ece", 0.05, k="1"), row("auroc", 0.9, k="1")]
    lines = beside.beside(gather([with_rows(record, *rows, **task)])[0])
    measured = [line for line in lines if line.measured is not None]
    assert {line.paper.place for line in measured} >= {"Table 1", "Figure 2", "Figure 6", "Figure 8"}
    assert {line.paper.place for line in measured if line.difference is not None} <= {"Table 1"}
    (first,) = [line for line in measured if line.paper.place == "Figure 2" and line.paper.domain == "math"]
    assert first.measured is not None
    assert first.measured.apart == ("not carried over from the paper: temperature",)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (lambda: table_cell("dspark", 6.0, **{**NAMES, "target": "Qwen/Qwen3-8B"}), "target: Qwen/Qwen3-8B"),
        (lambda: table_cell("dspark", 6.0, **{**NAMES, "drafter": "my own"}), "drafter: my own"),
        (lambda: table_cell("dspark", 6.0, **NAMES, k=5), "drafts a round: 5"),
        (lambda: table_cell("dspark", 6.0, **NAMES, task="starter-math"), "task: starter-math"),
        (lambda: changed(table_cell("dspark", 6.0, **NAMES), spec={"temperature": 0.0}), "temperature: 0.0"),
    ],
)
def test_what_is_not_as_in_the_paper_is_said_and_gives_no_difference(record: Callable[[], Record], words: str) -> None:
    line = line_of([record()])
    assert line.measured is not None
    assert line.difference is None
    assert any(part.startswith(words) for part in line.measured.apart)
    shown = figure_folder.shown(line)
    assert shown["difference"] == ""
    assert words in shown["apart"]


def test_gains_under_load_are_read_off_the_curves_and_never_called_the_papers() -> None:
    records = [cell(method, k=k, users=users, detail=False)
               for method, k in (("dspark", 7), ("mtp", 1)) for users in (4, 8, 16, 32)]  # fmt: skip
    busy = [with_rows(record, row("mean_batch_rows", record.spec["concurrency"], "rows")) for record in records]
    found = [line for line in beside.beside(gather(busy)[0]) if line.paper.place in ("Figure 7", "Figure 8")]
    assert any(line.measured is not None for line in found if line.paper.quantity == "speed_gain")
    budgets = [line.measured for line in found if line.paper.quantity == "budget"]
    assert all(one is not None for one in budgets)
    assert budgets[1].value == 2.0  # type: ignore[union-attr]
    assert all(line.difference is None for line in found)
    assert all(any("serving traffic" in part for part in line.measured.apart) for line in found if line.measured)
