"""Verdicts of a sweep: Holm over its sampled cells, power at the family's level, alarms in words."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from support_records import make_record
from support_traces import Round, make_request, make_trace

from specbench.cli import main
from specbench.metrics._family import Member, judge_family
from specbench.metrics.losslessness import Losslessness, Outcome, sampled_verdict
from specbench.records import schema, store
from specbench.records.schema import AlarmRow, Record, VerdictRow
from specbench.report.recompute import verdict_row
from specbench.report.verdicts import sweep_verdicts, verdicts_table


def member(p_value: float, *, n: float = 10**6, tests: int = 1, rounds: int = 100) -> Member:
    return Member(p_value, ((1, n),) * tests, requests_compared=100, rounds_with_drafts=rounds)


def outcomes(*members: Member) -> list[Outcome]:
    return [found.outcome for found in judge_family(members)]


def test_holm_over_the_cells_decides_what_fails() -> None:
    assert outcomes(member(0.0009)) == [Outcome.FAIL]  # alone
    assert outcomes(member(0.0009), member(0.5)) == [Outcome.PASS, Outcome.PASS]  # .001 / 2
    assert outcomes(member(0.0004), member(0.0009)) == [Outcome.FAIL, Outcome.FAIL]  # the second at .001 / 1
    assert outcomes(member(0.0004), member(0.9), member(0.9)) == [Outcome.PASS] * 3
    assert judge_family([]) == []


def test_equal_cells_rarely_fail_together_and_a_broken_one_is_found() -> None:
    generator = np.random.default_rng(0)
    families = [[member(p) for p in generator.random(60)] for _ in range(300)]
    wrong = sum(Outcome.FAIL in outcomes(*family) for family in families)
    assert wrong <= 3  # one family in a thousand; without the correction it is one in seventeen
    broken = [*families[0], member(1e-9)]
    assert outcomes(*broken)[-1] is Outcome.FAIL


def test_a_pass_needs_power_at_the_level_of_the_family() -> None:
    enough = next(n for n in range(10_000, 40_000, 100) if outcomes(member(0.5, n=n)) == [Outcome.PASS])
    alone, together = outcomes(member(0.5, n=enough)), outcomes(*[member(0.5, n=enough)] * 50)
    assert alone == [Outcome.PASS]
    assert together == [Outcome.INCONCLUSIVE] * 50
    assert outcomes(*[member(0.5, n=2 * enough)] * 50) == [Outcome.PASS] * 50
    assert outcomes(member(0.5, rounds=3)) == [Outcome.INCONCLUSIVE]
    assert outcomes(member(0.5, tests=0)) == [Outcome.INCONCLUSIVE]


def sampled(p_value: float, **fields: Any) -> Record:
    row = VerdictRow(
        outcome="fail" if p_value < 0.001 else "pass", rule="sampled", reason="alone", requests_compared=10**6,
        rounds_with_drafts=999, p_value=p_value, power=1.0, samples=[(2, 2 * 10**6, 2 * 10**6)], degrees=[1],
    )  # fmt: skip
    return make_record(verdict=row, spec={"temperature": 1.0}, **fields)


def test_records_of_a_sweep_are_judged_together() -> None:
    greedy = VerdictRow(outcome="fail", rule="greedy", reason="text differs", requests_compared=9, rounds_with_drafts=9)
    records = [
        make_record(method="vanilla", draft_length=0, drafter=None), sampled(0.0008), sampled(0.3),
        make_record(verdict=greedy, alarms=[AlarmRow(name="looping-output", message="3 of 4 texts")]),
        make_record(status="failed"), make_record(),
    ]  # fmt: skip
    found = sweep_verdicts(records)
    assert [(cell.outcome, cell.alone) for cell in found] == [
        (None, None), ("pass", "fail"), ("pass", "pass"), ("fail", "fail"), (None, None), (None, None),
    ]  # fmt: skip
    assert [found[i].reason for i in (0, 4, 5)] == ["the control", "the run is failed", "there was no control"]
    assert "among 2 cells" in found[1].reason
    console = Console(width=140)
    with console.capture() as text:
        console.print(verdicts_table(found))
    shown = text.get()
    assert "looping-output: 3 of 4 texts" in shown
    assert "toy:3: fail: text differs" in shown
    (alone,) = sweep_verdicts([records[1]])
    assert alone.outcome == "fail"


def test_a_computed_verdict_carries_what_the_family_needs() -> None:
    generator = np.random.default_rng(1)

    def run(drafts: int) -> Any:
        made = [
            make_request(
                [Round(1, verified=1, committed=1, stop="length") if drafts else Round(0, verified=0)],
                id=f"r{i}", tokens=[10, 10 + int(generator.integers(2))], first_step=1 + i,
            )
            for i in range(200)
        ]  # fmt: skip
        return make_trace(made, draft_length=drafts, temperature=1.0)

    row = verdict_row(sampled_verdict(run(1), run(0)), control=None)
    assert (row.samples, row.degrees) == ([(2, 200, 200)], [1])
    (cell,) = sweep_verdicts([make_record(verdict=row)])
    assert cell.outcome == "inconclusive"
    assert "power" in cell.reason


def test_a_synthetic_verdict_stays_one() -> None:
    found = Losslessness(Outcome.INCONCLUSIVE, "synthetic", "acceptance was forced", 0, 0)
    assert verdict_row(found, control=None).rule == "synthetic"


def test_records_without_degrees_are_read_and_written_as_they_were(tmp_path: Path) -> None:
    old = sampled(0.5).model_dump(mode="json")
    del old["verdict"]["degrees"]
    old["run_id"] = schema.content_id(old)
    record = schema.parse(old, where="old")
    assert record.model_dump(mode="json") == old
    assert store.read(store.write(tmp_path, record)) == record
    assert sweep_verdicts([record])[0].outcome == "inconclusive"


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def call(folder: Path) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["specbench", "verdicts", str(folder)])
        with pytest.raises(SystemExit) as ended:
            main.run()
        return ended.value.code, *capsys.readouterr()

    store.write(tmp_path, sampled(0.0002))
    (tmp_path / ("0" * 16 + ".json")).write_text("{")
    code, out, err = call(tmp_path)
    assert not code
    assert "fail" in out
    assert "warning: left out" in err
    empty = tmp_path / "empty"
    empty.mkdir()
    code, _, err = call(empty)
    assert code == 2
    assert "holds no readable record" in err
