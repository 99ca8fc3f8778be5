"""Sweeps on workers: the same records as in one process, whatever becomes of the workers."""

from __future__ import annotations

import importlib
import importlib.util
import os
import pickle
import re
import secrets
import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support_models import tiny_llama_dir
from support_runs import write_prompts
from support_sweep import assert_same, cells

from specbench import provenance
from specbench.errors import ConfigError, UnknownNameError
from specbench.executors.jobs import Ended, Job, PoolOptions, measure
from specbench.sweep import SweepSummary, run_sweep
from specbench.sweep_folder import ResultsFolder, held
from specbench.sweep_remote import RemoteOptions, open_pool
from specbench.sweep_spec import build_sweep
from specbench.sweep_state import make_plan

CELLS = 20


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("sweep")
    tasks = [str(write_prompts(folder / "prompts.jsonl", [["abc abc", "and again"]]))]
    return {
        "target": str(tiny_llama_dir(folder)), "tasks": tasks, "dtype": "float32", "device": "cpu", "threads": 1,
        "max_new_tokens": 6, "warmup": 0,
    }  # fmt: skip


@pytest.fixture(autouse=True)
def idle_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits to see how busy the machine is."""
    monkeypatch.setattr(provenance, "others_use", lambda **interval: 0.0)


@dataclass
class Watcher:
    """Follows a sweep; ``on_step`` may interfere."""

    on_step: Callable[[str], None] = lambda text: None
    said: list[str] = field(default_factory=list)
    done: list[Any] = field(default_factory=list)

    def step(self, text: str) -> AbstractContextManager[object]:
        self.on_step(text)
        return nullcontext()

    def started(self, cell: Any) -> None: ...
    def progress(self, cell: Any, drive: Any) -> None: ...
    def finished(self, outcome: Any) -> None:
        self.done.append(outcome)

    def say(self, text: str) -> None:
        self.said.append(text)


class HerePool:
    """Jobs in this process, sent as bytes. ``fates`` says of the first jobs what becomes of them."""

    name = "here"
    slots = 2

    def __init__(self, *fates: str) -> None:
        self.fates = deque(fates)
        self.under: dict[str, tuple[bytes, str]] = {}
        self.signs: dict[str, int] = {}
        self.submitted: list[str] = []
        self.cancelled: list[str] = []
        self.closed = False

    def submit(self, job: Job) -> None:
        self.submitted.append(job.key)
        self.under[job.key] = (pickle.dumps(job), self.fates.popleft() if self.fates else "measured")

    def poll(self, wait_s: float) -> list[Ended]:
        for key, (sent, fate) in list(self.under.items()):
            if fate == "silent":
                continue
            del self.under[key]
            if fate == "lost":
                return [Ended(key, None, "its node is gone")]
            result = measure(pickle.loads(sent), self._sign(key))
            return [Ended(key, pickle.loads(pickle.dumps(result)))]
        time.sleep(0.01)
        return []

    def _sign(self, key: str) -> Callable[[str], None]:
        def sign(text: str) -> None:
            self.signs[key] = self.signs.get(key, 0) + 1

        return sign

    def beats(self) -> dict[str, tuple[int, str]]:
        return dict.fromkeys(self.under, (1, "loading"))

    def cancel(self, key: str) -> None:
        del self.under[key]
        self.cancelled.append(key)

    def close(self) -> None:
        self.closed = True


def sweep(base: dict[str, Any], *, seeds: int = 2) -> Any:
    axes = {"method": ["ngram:2"], "seed": list(range(seeds))}
    return build_sweep({"base": base, "axes": axes}, name="there")


def run(
    spec: Any, folder: Path, pool: HerePool | None = None, *, screen: Watcher | None = None, **more: Any
) -> SweepSummary:
    """Locally without a pool."""
    with held(folder), pytest.MonkeyPatch.context() as patch:
        results = ResultsFolder.open(folder, mend=True)
        patch.setattr("specbench.sweep.open_pool", lambda name, options: pool)
        remote = RemoteOptions(PoolOptions(folder), **more)
        where = {} if pool is None else {"executor": "here", "remote": remote}
        return run_sweep(make_plan(spec, results), screen=screen or Watcher(), command=["specbench"], **where)


@pytest.fixture(scope="module")
def whole(base: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process gives."""
    folder = tmp_path_factory.mktemp("whole")
    assert run(sweep(base), folder).exit_code == 0
    return folder


def test_workers_give_the_same_records_and_lost_ones_are_replaced(
    base: dict[str, Any], whole: Path, tmp_path: Path
) -> None:
    pool, screen = HerePool("lost", "measured", "lost"), Watcher()
    summary = run(sweep(base), tmp_path, pool, screen=screen)
    assert (summary.exit_code, summary.measured, summary.troubles) == (0, 4, [])
    assert_same(tmp_path, whole)
    assert len(pool.submitted) == 4  # two groups, one of them three times
    assert pool.closed
    assert len(screen.done) == 4
    lost = [text for text in screen.said if text.startswith("lost the worker of")]
    assert len(lost) == 2
    assert "its node is gone; they are measured again" in lost[0]
    for record in cells(tmp_path).values():
        assert record.provenance["sweep"]["executor"] == "here"
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.json")}
    again = HerePool()
    assert run(sweep(base), tmp_path, again).measured == 0
    assert again.submitted == []
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.json")} == before


def test_a_group_goes_on_with_the_control_that_it_has(base: dict[str, Any], whole: Path, tmp_path: Path) -> None:
    """The control's rounds travel to the worker, where the arm is judged by them."""
    run(sweep(base), tmp_path)
    arms = [record for record in cells(tmp_path).values() if record.method == "ngram"]
    for record in arms:
        (tmp_path / f"{record.run_id}.json").unlink()
    summary = run(sweep(base), tmp_path, HerePool())
    assert summary.measured == 2
    assert_same(tmp_path, whole)


def test_a_worker_that_is_lost_too_often_fails_its_cells(base: dict[str, Any], tmp_path: Path) -> None:
    pool = HerePool("lost", "lost", "lost")
    pool.slots = 1
    spec = sweep(base)
    summary = run(spec, tmp_path, pool, retries=1)
    failed = [record for _, record in summary.failed]
    assert len(failed) == 2
    assert {record.error.kind for record in failed if record.error} == {"WorkerLostError"}
    assert all("lost 2 times, at last: its node is gone" in str(record.error) for record in failed)
    assert summary.exit_code == 1
    assert len(cells(tmp_path)) == 4


def test_a_worker_that_falls_silent_is_let_go(
    base: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 100_000, 15))
    monkeypatch.setattr("specbench.sweep_remote.time.monotonic", lambda: float(next(clock)))
    pool, screen = HerePool("silent"), Watcher()
    summary = run(sweep(base, seeds=1), tmp_path, pool, screen=screen, beat_limit_s=40.0)
    assert summary.measured == 2
    assert len(pool.cancelled) == 1
    assert any("no sign of life for 40 s" in text for text in screen.said)


def test_bad_input(tmp_path: Path, specbench: Any) -> None:
    options = PoolOptions(tmp_path)
    with pytest.raises(UnknownNameError, match="unknown executor 'rya'; did you mean ray"):
        open_pool("rya", options)
    for changes, said in (
        ({"retries": -1}, "retries are counted from 0"),
        ({"beat_limit_s": 3.0}, "would lose living ones"),
        ({"pool": PoolOptions(tmp_path, workers=0)}, "--workers is a whole number from 1 on, not 0"),
        ({"pool": PoolOptions(tmp_path, gpus=-1)}, "--gpus is a whole number from 0 on, not -1"),
    ):
        with pytest.raises(ConfigError, match=said):
            RemoteOptions(**{"pool": options, **changes})  # type: ignore[arg-type]
    file = tmp_path / "s.toml"
    file.write_text('[axes]\nmethod = ["ngram"]\n')
    code, _, err = specbench("sweep", file, "--executor", "slrum")
    assert (code, err.strip()) == (2, "error: unknown executor 'slrum'; did you mean slurm?")
    code, _, err = specbench("sweep", file, "--executor", "ray", "--executor-option", "address", "--out", tmp_path)
    assert code == 2
    assert "--executor-option 'address' is not NAME=VALUE" in err


@pytest.mark.parametrize("name", ["ray", "slurm"])
def test_the_extra_is_named_where_a_package_is_missing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.delitem(sys.modules, f"specbench.executors.{name}", raising=False)
    monkeypatch.setitem(sys.modules, {"ray": "ray", "slurm": "submitit"}[name], None)
    with pytest.raises(ConfigError, match=re.escape(f"pip install 'specbench-llm[{name}]'")):
        open_pool(name, PoolOptions(tmp_path))


@pytest.mark.cluster
def test_submitit_runs_groups_as_processes_of_their_own(
    base: dict[str, Any], whole: Path, tmp_path: Path, specbench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("submitit", reason="the extra 'slurm' is not installed")
    with pytest.raises(ConfigError, match=r"submitit refuses .* check the --executor-option"):
        open_pool("slurm", PoolOptions(tmp_path, more={"cluster": "nowhere"}))
    lines = [f'{name} = "{value}"' if isinstance(value, str) else f"{name} = {value}" for name, value in base.items()]
    file = tmp_path / "there.toml"
    file.write_text("\n".join(["[base]", *lines, "[axes]", 'method = ["ngram:2"]', "seed = [0, 1]"]).replace("'", '"'))
    options = ["--executor", "slurm", "--executor-option", "cluster=local", "--workers", 2]
    code, _, err = specbench("sweep", file, "--out", tmp_path / "out", *options)
    assert code == 0, err
    assert_same(tmp_path / "out", whole)


@pytest.mark.cluster
def test_ray_with_a_worker_killed_in_the_middle_ends_like_one_process(
    base: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers, twenty cells; half of them done, the next to begin a group is killed by signal 9.

    So late the other worker can end the sweep before a new one is up: nobody waits for its imports.
    """
    if importlib.util.find_spec("ray") is None:
        pytest.skip("the extra 'ray' is not installed")
    token = tmp_path / "token"
    os.close(os.open(token, os.O_CREAT | os.O_WRONLY, 0o600))
    token.write_text(secrets.token_hex(32))
    for name, value in {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
    }.items():
        monkeypatch.setenv(name, value)
    killed: list[int] = []

    def kill_once(text: str) -> None:
        found = re.search(r"\(process (\d+)\)$", text)
        if found and not killed and len(screen.done) >= CELLS // 2:
            killed.append(int(found[1]))
            os.kill(killed[0], signal.SIGKILL)

    spec, screen = sweep(base, seeds=CELLS // 2), Watcher(on_step=kill_once)
    folder = tmp_path / "there"
    with held(folder):
        plan = make_plan(spec, ResultsFolder.open(folder, mend=True))
        remote = RemoteOptions(PoolOptions(folder, workers=2))
        summary = run_sweep(plan, screen=screen, executor="ray", remote=remote)
    assert not importlib.import_module("ray").is_initialized()
    assert killed
    assert any(text.startswith("lost the worker of") for text in screen.said)
    assert (summary.exit_code, summary.measured) == (0, CELLS)
    here = tmp_path / "here"
    run(spec, here)
    assert_same(folder, here)
