from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from specbench import provenance


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A git repository with the package's shape and one commit."""
    (tmp_path / "specbench").mkdir()
    (tmp_path / "results").mkdir()
    (tmp_path / "specbench" / "provenance.py").write_text("x = 1\n")
    _git(tmp_path, "init", "-q")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def _git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_a_clean_checkout_has_its_commit(checkout: Path) -> None:
    assert provenance.git_state(checkout) == {"git_sha": _git(checkout, "rev-parse", "HEAD"), "git_dirty": False}


@pytest.mark.parametrize(
    ("file", "dirty"),
    [
        ("specbench/provenance.py", True),
        ("specbench/new.py", True),
        ("results/run.json", False),
        ("notes.txt", False),
    ],
)
def test_only_what_runs_makes_it_dirty(checkout: Path, file: str, dirty: bool) -> None:
    (checkout / file).write_text("x = 2\n")
    assert provenance.git_state(checkout)["git_dirty"] is dirty


def test_outside_a_repository_it_is_unknown_with_the_reason(tmp_path: Path) -> None:
    state = provenance.git_state(tmp_path)
    assert (state["git_sha"], state["git_dirty"]) == ("unknown", "unknown")
    assert "not a git repository" in state["git_unknown_because"]
    assert str(tmp_path) not in state["git_unknown_because"]


def test_a_copy_that_lies_in_another_repository_is_not_part_of_it(checkout: Path) -> None:
    installed = checkout / "venv" / "site-packages"
    (installed / "specbench").mkdir(parents=True)
    (installed / "specbench" / "provenance.py").write_text("x = 1\n")
    assert provenance.git_state(installed)["git_unknown_because"] == "not a checkout of the repository"


def test_without_git_the_row_cannot_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    found = provenance.collect(device="cpu")
    assert found["git_sha"] == "unknown"
    assert found["rankable"] is False
    assert found["not_rankable_because"] == ["the code's commit is unknown: git is not installed"]


def test_uncommitted_code_cannot_rank(monkeypatch: pytest.MonkeyPatch, checkout: Path) -> None:
    state = provenance.git_state
    monkeypatch.setattr(provenance, "git_state", lambda: state(checkout))
    assert provenance.collect()["rankable"] is True
    (checkout / "specbench" / "provenance.py").write_text("x = 2\n")
    found = provenance.collect()
    assert found["rankable"] is False
    assert found["not_rankable_because"] == ["the code has uncommitted changes"]


def test_a_git_hook_does_not_point_it_elsewhere(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path_factory.mktemp("elsewhere")))
    assert provenance.git_state(checkout)["git_dirty"] is False


def test_a_record_can_hold_it_and_it_names_no_machine() -> None:
    found = provenance.collect(device="cpu", threads=3)
    text = json.dumps(found, allow_nan=False)
    assert json.loads(text) == found
    node = platform.node()
    assert len(node) < 4 or node not in text
    assert str(Path.home()) not in text or str(Path.home()) == "/"
    assert found["threads"]["torch"] == 3
    assert found["python"] == platform.python_version()
    assert {"torch", "transformers", "numpy"} <= found["packages"].keys()
    assert found["cpu"]["memory_bytes"] == psutil.virtual_memory().total
    assert 1 <= found["cpu"]["usable_cores"] <= found["cpu"]["logical_cores"]
    assert "gpu" not in found  # absent where there is none, not zero
    assert found["device_name"] == found["cpu"]["model"]


def test_torch_tells_its_threads_once_it_is_loaded() -> None:
    import torch

    assert provenance.thread_facts()["torch"] == torch.get_num_threads()


def test_the_work_of_others_is_seen_and_our_own_is_not() -> None:
    quiet = min(provenance.others_use(interval_s=0.3) for _ in range(3))
    burner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        # a child's time is counted as ours only when it has ended, so a running one stands for any other process
        loud = max(provenance.others_use(interval_s=0.5) for _ in range(3))
    finally:
        burner.kill()
        burner.wait()
    assert loud > min(quiet + 0.2, 0.6 * (os.cpu_count() or 1))
    before = time.process_time()
    while time.process_time() - before < 0.3:
        pass
    assert provenance.others_use(interval_s=0.05) >= 0.0


def test_the_warning_names_what_was_seen_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = psutil.cpu_count(logical=True) or 1
    monkeypatch.setattr(provenance, "others_use", lambda **_: 0.5 * cores)
    text = provenance.machine_busy()
    assert text is not None
    assert f"{0.5 * cores:.1f} of {cores} processors" in text
    assert "--threads" in text
    assert provenance.load_facts()["busy"] == text
    monkeypatch.setattr(provenance, "others_use", lambda **_: 0.1 * cores)
    assert provenance.machine_busy() is None
    assert "busy" not in provenance.load_facts()


def test_the_thread_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert provenance.default_threads(busy=True) == 5
    for text in ("", "0", "many"):
        monkeypatch.setenv("OMP_NUM_THREADS", text)
        assert provenance.default_threads(busy=True) == 1
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 128 if logical else 64)
    monkeypatch.setattr(provenance, "usable_cores", lambda: 128)
    assert provenance.default_threads(busy=False) == provenance.MAX_DEFAULT_THREADS
    monkeypatch.setattr(provenance, "usable_cores", lambda: 3)
    assert provenance.default_threads(busy=False) == 2
    assert provenance.default_threads(busy=True) == 1


@pytest.mark.parametrize(("text", "cores"), [("150000 100000", 1.5), ("max 100000", None), ("", None), ("x y", None)])
def test_a_containers_quota_limits_the_cores(monkeypatch: pytest.MonkeyPatch, text: str, cores: float | None) -> None:
    monkeypatch.setattr(provenance, "_read", lambda _: text)
    assert provenance._cgroup_cores() == cores
    assert provenance.usable_cores() >= 1
    if cores is not None:
        assert provenance.usable_cores() == 1


@pytest.mark.gpu
def test_a_gpu_is_described() -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    found = provenance.collect(device="cuda:0")
    gpu = found["gpu"]
    assert gpu["name"] == torch.cuda.get_device_name(0) == found["device_name"]
    assert gpu["memory_bytes"] > 0
    assert gpu["driver"]
    assert 0 < gpu["sm_clock_mhz"] <= gpu["sm_clock_max_mhz"]
    assert "uuid" not in json.dumps(found).lower()
