"""Every committed sweep is valid and can be listed without weights and without a network."""

from __future__ import annotations

import socket
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from specbench import registry
from specbench.cli import main
from specbench.resolve import find_target
from specbench.sweep_folder import ResultsFolder
from specbench.sweep_spec import read_sweep
from specbench.sweep_state import make_plan

SWEEPS = sorted((Path(__file__).parent.parent.parent / "sweeps").glob("*.toml"))


@pytest.fixture(autouse=True)
def nothing_to_be_had(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*arguments: Any) -> None:
        raise AssertionError("a dry run went to the network")

    monkeypatch.setenv("SPECBENCH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.delenv("SPECBENCH_DATASETS", raising=False)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.chdir(tmp_path)


def dry_run(path: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> None:
    monkeypatch.setattr(sys, "argv", ["specbench", "sweep", str(path), "--dry-run", *more])
    with pytest.raises(SystemExit) as ended:
        main.run()
    assert not ended.value.code


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_a_dry_run_lists_every_cell(
    path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    dry_run(path, monkeypatch)
    *lines, last = capfd.readouterr().out.splitlines()
    keys = [line.split()[0] for line in lines]
    assert len(set(keys)) == len(keys) > 0
    assert last.startswith(f"{path.stem}: {len(keys)} cells in ")
    assert "assuming 20 tokens a second and user, as nothing is finished yet" in last
    written = [found for found in tmp_path.rglob("*") if found.is_file()]
    assert {found.parent for found in written} <= {tmp_path / "home" / "hashes"}  # of packaged drafters, read once
    dry_run(path, monkeypatch, "--only", "method=vanilla")
    assert len(capfd.readouterr().out.splitlines()) < len(lines)


def plan_of(name: str) -> Any:
    path = next(path for path in SWEEPS if path.stem == name)
    return make_plan(read_sweep(path), ResultsFolder(Path("nowhere")))


def test_the_sweeps_of_the_paper_use_its_settings_and_the_published_drafters() -> None:
    published = registry.load("formats", "published")
    for name in ("paper-table1", "paper-load"):
        cells = plan_of(name).cells
        assert {cell.run.temperature for cell in cells} == {1.0}
        assert {cell.run.thinking for cell in cells} == {"off"}
        per_target = Counter(cell.run.target for cell in cells)
        assert {"qwen3-4b", "qwen3-8b", "qwen3-14b", "google/gemma-4-12B-it"} < set(per_target)
        for cell in cells:
            known = find_target(cell.run.target)
            target = known.hub if known is not None else cell.run.target
            if cell.method.name in ("eagle3", "dflash", "dspark"):
                assert cell.method.draft_length == 7
                repository = cell.run.drafters[cell.method.name]
                assert repository == published.pick(target, cell.method.name).repository
            elif cell.method.name == "mtp":
                assert cell.method.draft_length == 1
                assert published.pick(target, "mtp").repository == target  # in the target's own weights
    table = plan_of("paper-table1").cells
    rows = Counter((cell.run.target, cell.method.name) for cell in table)
    assert set(rows.values()) == {9}
    assert rows.keys() >= {("qwen3-14b", "dspark"), ("google/gemma-4-12B-it", "eagle3"), ("Qwen/Qwen3.5-9B", "mtp")}


def test_the_sweep_of_the_demo_model_is_large_enough_to_be_interrupted() -> None:
    plan = plan_of("demo")
    assert len(plan.cells) >= 60
    assert {cell.run.target for cell in plan.cells} == {"smollm2-135m"}
    assert {(cell.run.max_new_tokens, cell.run.num_prompts) for cell in plan.cells} == {(32, 2)}
    assert all(group.control is not None for group in plan.groups)
