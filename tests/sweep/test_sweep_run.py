"""What goes wrong inside a sweep costs its own cells only, is written down, and is mended by running again."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from support_models import tiny_llama_dir
from support_runs import write_prompts
from support_sweep import assert_same, cells

from specbench import provenance, registry
from specbench.errors import ConfigError, SpecbenchError
from specbench.records import store
from specbench.records.schema import Record
from specbench.report.recompute import verify_record
from specbench.sweep import SweepSummary, check_sweep, run_sweep
from specbench.sweep_folder import ResultsFolder, held
from specbench.sweep_spec import build_sweep
from specbench.sweep_state import make_plan


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("sweep")
    tasks = [str(write_prompts(folder / "prompts.jsonl", [["abc abc", "and again"]]))]
    target = str(tiny_llama_dir(folder))
    return {
        "target": target, "tasks": tasks, "dtype": "float32", "device": "cpu", "threads": 1, "max_new_tokens": 6,
        "warmup": 0,
    }  # fmt: skip


@pytest.fixture(autouse=True)
def idle_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits to see how busy the machine is."""
    monkeypatch.setattr(provenance, "others_use", lambda **interval: 0.0)


class Watcher:
    """Follows a sweep; ``on_progress`` may interfere."""

    def __init__(self, on_progress: Callable[[Any, Any], None] = lambda cell, drive: None) -> None:
        self.said: list[str] = []
        self.started_cells: list[str] = []
        self.progress = on_progress

    def step(self, text: str) -> AbstractContextManager[object]:
        return nullcontext()

    def started(self, cell: Any) -> None:
        self.started_cells.append(cell.settings["method"])

    def finished(self, outcome: Any) -> None:
        pass

    def say(self, text: str) -> None:
        self.said.append(text)


def run(base: dict[str, Any], out: Path, *, screen: Watcher | None = None, **given: Any) -> SweepSummary:
    chosen = {name: given.pop(name) for name in ("only", "retry_failed") if name in given}
    limit = given.pop("limit_s", None)
    document = {"base": {k: v for k, v in base.items() if k not in given["axes"]}, **given}
    with held(out):
        plan = make_plan(build_sweep(document, name="test"), ResultsFolder.open(out, mend=True), **chosen)
        check_sweep(plan)
        return run_sweep(plan, screen=screen or Watcher(), limit_s=limit)


def bring(monkeypatch: pytest.MonkeyPatch, **plugins: str) -> None:
    points = {name: EntryPoint(name=name, value=value, group="specbench.drafters") for name, value in plugins.items()}
    foreign = registry._foreign
    monkeypatch.setattr(registry, "_foreign", lambda kind: points if kind == "drafters" else foreign(kind))


def by_method(out: Path) -> dict[str, Record]:
    return {f"{r.method}:{r.draft_length}" if r.draft_length else r.method: r for r in cells(out).values()}


def test_cells_record_their_place_and_the_target_is_loaded_once(base: dict[str, Any], tmp_path: Path) -> None:
    axes = {"method": ["ngram:2", "ngram:3"], "temperature": [0, 0.8]}
    summary = run(base, tmp_path, axes=axes)
    assert (summary.exit_code, summary.measured, summary.loads) == (0, 6, 1)
    assert 0 < summary.measure_s < summary.wall_s
    records = cells(tmp_path)
    for key, record in records.items():
        place = record.provenance["sweep"]
        assert (place["name"], place["cell"], place["repeat"]) == ("test", key, 0)
        assert place["total_s"] >= place["measure_s"] > 0
        assert str(tmp_path) not in record.model_dump_json()
    orders = [sorted(r.provenance["sweep"]["order"] for r in records.values() if r.baseline == c.run_id or r is c)
              for c in records.values() if c.method == "vanilla"]  # fmt: skip
    assert orders == [[0, 1, 2]] * 2
    assert {r.verdict.rule for r in records.values() if r.verdict is not None} == {"greedy", "sampled"}
    arm = next(record for record in records.values() if record.baseline is not None)
    assert verify_record(tmp_path, arm.run_id) == []
    again = run(base, tmp_path, axes=axes)
    assert (again.measured, again.loads, again.exit_code) == (0, 0, 0)
    other = build_sweep({"base": base, "axes": {"method": ["ngram:2"]}}, name="other")
    plan = make_plan(other, ResultsFolder.open(tmp_path, mend=False))
    assert [plan.state(cell) for cell in plan.cells] == ["done", "done"]  # another file, the same cells
    assert plan.estimates.cells == 2
    assert plan.estimates.total(plan.cells) == pytest.approx(sum(
        records[cell.key].provenance["sweep"]["total_s"] for cell in plan.cells
    ))  # fmt: skip


def test_arms_that_come_later_are_judged_by_the_control_on_disk(base: dict[str, Any], tmp_path: Path) -> None:
    axes = {"method": ["ngram:2"], "concurrency": [1, 2]}
    whole = run(base, tmp_path / "whole", axes=axes)
    first = run(base, tmp_path / "parts", axes=axes, only=["method=vanilla"])
    assert (whole.measured, first.measured) == (4, 2)
    assert run(base, tmp_path / "parts", axes=axes, only=["method=ngram", "concurrency=2"]).measured == 1
    assert run(base, tmp_path / "parts", axes=axes).measured == 1
    assert_same(tmp_path / "parts", tmp_path / "whole")


def test_a_control_whose_rounds_are_gone_is_named_and_nothing_is_measured_without_it(
    base: dict[str, Any], tmp_path: Path
) -> None:
    axes = {"method": ["ngram:2"]}
    run(base, tmp_path, axes=axes, only=["method=vanilla"])
    (control,) = cells(tmp_path).values()
    store.rounds_path(tmp_path, control.run_id).unlink()
    screen = Watcher()
    summary = run(base, tmp_path, axes=axes, screen=screen)
    assert (summary.measured, summary.exit_code, screen.started_cells) == (0, 2, [])
    assert control.run_id in summary.troubles[0]


def test_failures_are_rows_that_wait_for_retry_failed(
    base: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring(monkeypatch, breaking="support_bad_drafter")
    axes = {"method": ["breaking:2", "draft-model:2", "ngram:2"]}
    summary = run(base, tmp_path, axes=axes)
    assert (summary.measured, summary.exit_code) == (4, 2)
    found = by_method(tmp_path)
    assert {name: record.status for name, record in found.items()} == {
        "vanilla": "ok", "ngram:2": "ok", "breaking:2": "failed", "draft-model:2": "failed",
    }  # fmt: skip
    assert found["breaking:2"].error.message == "the drafter broke"
    assert found["breaking:2"].comparability["target_weights"] == found["vanilla"].target.sha256
    assert "--drafter draft-model=PATH" in found["draft-model:2"].error.message
    assert found["draft-model:2"].target == found["vanilla"].target
    assert run(base, tmp_path, axes=axes).measured == 0

    twin = {"drafters": {"draft-model": base["target"]}}
    monkeypatch.undo()
    bring(monkeypatch, breaking="specbench_drafters.ngram")
    mended = run(base, tmp_path, axes=axes, retry_failed=True)
    assert (mended.measured, mended.exit_code) == (2, 2)  # the draft model still has no weights
    assert by_method(tmp_path)["breaking:2"].status == "ok"
    assert run({**base, **twin}, tmp_path, axes=axes).exit_code == 0
    assert len(cells(tmp_path)) == 5  # with weights it is another cell; the failed row of the one without stays


def test_a_target_that_cannot_be_had_fails_its_own_cells_only(
    base: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    axes = {"method": ["ngram:2"], "target": ["nobody/nothing", base["target"]]}
    summary = run(base, tmp_path, axes=axes)
    assert (summary.measured, summary.exit_code) == (4, 2)
    lost = [record for record in cells(tmp_path).values() if record.status == "failed"]
    assert [record.target.source for record in lost] == ["unresolved"] * 2
    assert all("nobody/nothing" in record.error.message for record in lost)


def test_a_failed_control_leaves_its_arms_unjudged_until_it_is_retried(
    base: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring(monkeypatch, vanilla="support_bad_drafter:BreakingBaseline")
    summary = run(base, tmp_path, axes={"method": ["ngram:2"]})
    assert (summary.measured, summary.exit_code) == (2, 1)
    arm = by_method(tmp_path)["ngram:2"]
    assert (arm.status, arm.verdict, arm.baseline) == ("ok", None, None)
    assert any("neither a speed-up nor a verdict" in note for note in arm.notes)
    monkeypatch.undo()
    assert run(base, tmp_path, axes={"method": ["ngram:2"]}).measured == 0
    mended = run(base, tmp_path, axes={"method": ["ngram:2"]}, retry_failed=True)
    assert (mended.measured, mended.exit_code) == (2, 0)
    found = by_method(tmp_path)
    assert found["ngram:2"].baseline == found["vanilla"].run_id
    assert found["ngram:2"].verdict is not None


def test_the_same_cell_by_two_names_is_a_failed_row(base: dict[str, Any], tmp_path: Path) -> None:
    trained = registry.load("drafters", "ngram").trained_length
    summary = run(base, tmp_path, axes={"method": ["ngram", f"ngram:{trained}"]})
    ((_, record),) = summary.failed
    assert "are the same cell" in record.error.message


def test_a_policy_without_its_cost_table_is_refused_before_anything_is_measured(
    base: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECBENCH_HOME", str(tmp_path / "home"))
    axes = {"method": ["ngram:2"], "policy": ["fixed", "load-aware"]}
    with pytest.raises(ConfigError, match="no cost table is given; measure one with 'specbench profile'"):
        run(base, tmp_path / "out", axes=axes)
    with pytest.raises(SpecbenchError, match="lag"):
        run(base, tmp_path / "out", axes={"method": ["ngram:2"], "policy": ["load-aware:lag=soon"]})
    assert cells(tmp_path / "out") == {}


def test_a_time_limit_begins_no_further_cell(base: dict[str, Any], tmp_path: Path) -> None:
    axes = {"method": ["ngram:2"], "seed": [0, 1]}
    run(base, tmp_path, axes=axes, only=["seed=0"])
    summary = run(base, tmp_path, axes=axes, limit_s=1e-6)
    assert (summary.measured, summary.out_of_time, summary.exit_code, len(summary.plan.left)) == (0, True, 0, 2)
    assert run(base, tmp_path, axes=axes, limit_s=3600).plan.left == []


def test_ctrl_c_leaves_whole_cells_only(base: dict[str, Any], tmp_path: Path) -> None:
    def ctrl_c(cell: Any, drive: Any) -> None:
        if cell.settings["method"] == "ngram:3" and drive.tokens:
            os.kill(os.getpid(), signal.SIGINT)

    axes = {"method": ["ngram:2", "ngram:3"], "seed": [0, 1]}
    screen = Watcher(ctrl_c)
    summary = run(base, tmp_path, axes=axes, screen=screen)
    assert (summary.interrupted, summary.exit_code) == (True, 130)
    assert {record.status for record in cells(tmp_path).values()} <= {"ok"}
    assert "stopped inside ngram:3; the cell is measured again" in screen.said
    assert run(base, tmp_path, axes=axes).exit_code == 0
    assert len(cells(tmp_path)) == 6
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_full_disk_ends_the_sweep_and_keeps_what_is_finished(base: dict[str, Any], tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(cell: Any, drive: Any) -> None:
        if cell.settings["seed"] == second and drive.tokens:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # from here on every larger file is refused

    axes = {"method": ["ngram:2"], "seed": [0, 1]}
    plan = make_plan(build_sweep({"base": base, "axes": axes}, name="test"), ResultsFolder(tmp_path))
    second = plan.groups[1].cells[0].settings["seed"]
    try:
        summary = run(base, tmp_path, axes=axes, screen=Watcher(fill))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert summary.exit_code == 2
    assert "free some space" in summary.troubles[0]
    assert {record.spec["seed"] for record in cells(tmp_path).values()} == {1 - int(second)}
    assert len(cells(tmp_path)) == 2
    assert list(tmp_path.glob(".*.tmp")) == []
    assert run(base, tmp_path, axes=axes).exit_code == 0
    assert len(cells(tmp_path)) == 4


def test_interleaved_cells_step_in_turn_and_give_what_they_give_alone(base: dict[str, Any], tmp_path: Path) -> None:
    tokens: dict[str, int] = {}
    ahead: list[int] = []

    def follow(cell: Any, drive: Any) -> None:
        tokens[cell.settings["method"]] = drive.tokens
        if len(tokens) == 3 and min(tokens.values()) < drive.total:
            ahead.append(max(tokens.values()) - min(tokens.values()))

    axes = {"method": ["ngram:2", "ngram:3"]}
    run(base, tmp_path / "alone", axes=axes)
    summary = run(base, tmp_path / "turns", axes=axes, interleave=True, screen=Watcher(follow))
    assert (summary.exit_code, summary.measured) == (0, 3)
    assert_same(tmp_path / "turns", tmp_path / "alone")
    assert max(ahead) <= 4 + 1  # a step gives at most four tokens, and the one with the fewest goes on
    records = cells(tmp_path / "turns").values()
    assert all(any("in turn with 2 other cells" in note for note in record.notes) for record in records)
    assert all(record.provenance["sweep"]["interleaved"] is True for record in records)
    peaks = [[name for name in record.provenance["memory"] if name.startswith("peak")] for record in records]
    assert not any(peaks)  # they would be those of all engines together
    assert all("peak_rss_bytes" in record.provenance["memory"] for record in cells(tmp_path / "alone").values())
    walls = [store.read_trace(tmp_path / "turns", record).wall_s for record in records]
    assert min(walls) > 0
    assert sum(walls) <= summary.measure_s  # each clock ran only in its own steps


def test_an_interleaved_cell_that_fails_ends_alone(
    base: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring(monkeypatch, breaking="support_bad_drafter")
    summary = run(base, tmp_path, axes={"method": ["ngram:2", "breaking:2"]}, interleave=True)
    assert (summary.measured, len(summary.failed_now)) == (3, 1)
    found = by_method(tmp_path)
    assert found["ngram:2"].verdict is not None
    assert found["breaking:2"].status == "failed"
