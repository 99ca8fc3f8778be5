"""T21: killed three times at random moments, two processes at once, a half-written file: nothing is different."""

from __future__ import annotations

import csv
import random
import time
from pathlib import Path

import pytest
from support_kill import run_here
from support_models import tiny_llama_dir
from support_runs import write_prompts
from support_sweep import Started, assert_same, await_that, cells, count_records, first_refused, start

from specbench import provenance

SWEEP = """
repeats = 2
[base]
target = "{target}"
tasks = ["{task}"]
dtype = "float32"
device = "cpu"
threads = 1
max_new_tokens = 8
warmup = 0
[axes]
method = ["ngram:2", "ngram:3"]
concurrency = [1, 2]
"""
CELLS = 12


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    target = tiny_llama_dir(folder)
    task = write_prompts(folder / "prompts.jsonl", [["abc abc abc abc"], ["hello", "and again"]])
    path = folder / "killed.toml"
    path.write_text(SWEEP.format(target=target, task=task))
    return path


@pytest.fixture(autouse=True)
def idle_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits to see how busy the machine is."""
    monkeypatch.setattr(provenance, "others_use", lambda **interval: 0.0)


def kill_at_random(running: Started, folder: Path, *, more: int, chance: random.Random) -> None:
    """Let it write a few records, then some time that falls anywhere inside a cell, then signal 9."""
    wanted = count_records(folder) + chance.randint(1, more)
    await_that(lambda: count_records(folder) >= wanted)
    time.sleep(chance.random() * 0.1)
    running.kill()


def halve_the_newest(folder: Path) -> Path:
    newest = max(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
    newest.write_bytes(newest.read_bytes()[: newest.stat().st_size // 2])
    return newest


def test_killed_three_times_with_two_at_once_it_ends_like_one_run(sweep: Path, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run_here(["sweep", str(sweep), "--out", str(whole)])
    assert len(cells(whole)) == CELLS
    chance = random.Random(20260607)
    arguments = ["sweep", str(sweep), "--out", str(broken)]

    pair = [start(arguments, tmp_path / f"{name}.log") for name in ("one", "two")]
    refused, working = first_refused(pair)
    (said,) = refused.log.read_text().strip().splitlines()
    assert said.startswith(f"error: {broken} is in use by process {working.pid} (specbench sweep ")
    kill_at_random(working, broken, more=3, chance=chance)
    for _ in range(2):
        kill_at_random(start(arguments, tmp_path / "again.log"), broken, more=2, chance=chance)

    damaged = halve_the_newest(broken)
    (broken / f".{'0' * 16}.json.999999999.0123abcd.tmp").write_text("{")
    last = start(arguments, tmp_path / "last.log")
    assert last.wait() == 0, last.log.read_text()
    assert f"{damaged} is half-written" in last.log.read_text()
    assert damaged.with_name(f"{damaged.name}.damaged").exists()
    assert list(broken.glob(".*.tmp")) == []
    assert_same(broken, whole)
    rows = [list(csv.DictReader((folder / "estimates.csv").open())) for folder in (broken, whole)]
    assert [len({row["run_id"] for row in table}) for table in rows] == [CELLS, CELLS]
    names = ("method", "draft_length", "concurrency", "metric", "scope")
    assert sorted(tuple(r[n] for n in names) for r in rows[0]) == sorted(tuple(r[n] for n in names) for r in rows[1])

    before = {path.name: path.stat().st_mtime_ns for path in broken.glob("*.json")}
    run_here(arguments)
    assert {path.name: path.stat().st_mtime_ns for path in broken.glob("*.json")} == before
