from __future__ import annotations

import json
import shutil
import socket
import time
from pathlib import Path

import pytest
from support_folders import COMMIT, serve_hub

from specbench.errors import CapacityError, TargetError
from specbench.resolve import hash_weights, hub, resolve_drafter, resolve_target, silent_step


@pytest.fixture
def repository(llama: Path, tmp_path: Path) -> Path:
    """A hub repository with more in it than a model needs."""
    folder = tmp_path / "repository"
    shutil.copytree(llama, folder)
    (folder / "onnx").mkdir()
    for extra in ("onnx/model.onnx", "consolidated.safetensors", "pytorch_model.bin", "modeling_own.py", "README.md"):
        (folder / extra).write_bytes(b"never fetch this")
    return folder


def test_a_reachable_repository_is_fetched_once(repository: Path, llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_hub({"org/model": repository}) as (address, asked):
        monkeypatch.setenv("HF_ENDPOINT", address)
        found = resolve_target("org/model", progress=silent_step)
        assert (found.source, found.revision) == ("hub", COMMIT)
        assert found.weights_sha256 == hash_weights(llama)
        names = {p.name for p in found.path.iterdir()}
        assert "model.safetensors" in names
        assert not names & {"onnx", "consolidated.safetensors", "pytorch_model.bin", "modeling_own.py", "README.md"}
        asked.clear()
        again = resolve_target("org/model", progress=silent_step)
        assert again == found
        assert asked == []
    assert resolve_target("org/model", offline=True) == found
    assert resolve_drafter("org/model", offline=True).path == found.path


def test_the_hub_comes_before_the_wheel_for_the_demo_model(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_hub({"HuggingFaceTB/SmolLM2-135M-Instruct": repository}) as (address, _):
        monkeypatch.setenv("HF_ENDPOINT", address)
        assert resolve_target("smollm2-135m", progress=silent_step).source == "hub"


def test_a_named_revision_is_asked_for(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_hub({"org/model": repository}) as (address, _):
        monkeypatch.setenv("HF_ENDPOINT", address)
        assert resolve_target(f"org/model@{COMMIT}", progress=silent_step).revision == COMMIT
        with pytest.raises(TargetError, match="org/model has no revision nope"):
            resolve_target("org/model@nope", progress=silent_step)


def test_what_the_hub_refuses_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset" / "README.md").touch()
    with serve_hub({"org/not-a-model": tmp_path / "dataset"}) as (address, _):
        monkeypatch.setenv("HF_ENDPOINT", address)
        for name, reason in (("org/absent", "has no model org/absent"), ("org/not-a-model", "has no config.json")):
            with pytest.raises(TargetError, match=reason) as caught:
                resolve_target(name, progress=silent_step)
            assert "\n" not in str(caught.value)


def test_a_cache_without_all_its_weights_is_not_used(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_hub({"org/model": repository}) as (address, _):
        monkeypatch.setenv("HF_ENDPOINT", address)
        found = resolve_target("org/model", progress=silent_step)
        (found.path / "model.safetensors").unlink()
        assert hub.find_cached("org/model") is None
        assert resolve_target("org/model", progress=silent_step).weights_sha256 == found.weights_sha256


def test_code_is_fetched_once_it_is_trusted(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = json.loads((repository / "config.json").read_text())
    config |= {"model_type": "their-own", "auto_map": {"AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}}
    (repository / "config.json").write_text(json.dumps(config))
    with serve_hub({"org/model": repository}) as (address, _):
        monkeypatch.setenv("HF_ENDPOINT", address)
        with pytest.raises(TargetError, match="brings its own model code"):
            resolve_target("org/model", progress=silent_step)
        assert hub.find_cached("org/model") is not None
        found = resolve_target("org/model", progress=silent_step, trust_remote_code=True)
        assert (found.path / "modeling_own.py").read_bytes() == b"never fetch this"
    assert resolve_target("org/model", offline=True, trust_remote_code=True) == found


def test_a_model_that_does_not_fit_the_disk_is_refused_before_the_download(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**6, 10**6 - 10, 10))
    with serve_hub({"org/model": repository}) as (address, asked):
        monkeypatch.setenv("HF_ENDPOINT", address)
        with pytest.raises(CapacityError, match="no disk space for org/model"):
            resolve_target("org/model", progress=silent_step)
        assert not [line for line in asked if "resolve" in line]


def test_a_hub_that_accepts_and_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        started = time.monotonic()
        reason = hub.why_unreachable(timeout_s=0.3)
        assert time.monotonic() - started < 3
        assert reason is not None


def test_any_answer_of_the_hub_counts_as_reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_hub({}) as (address, _):
        monkeypatch.setenv("HF_ENDPOINT", address)
        assert hub.why_unreachable() is None
        monkeypatch.setenv("HF_ENDPOINT", f"{address}/not-there")
        assert hub.why_unreachable() is None
    assert hub.why_unreachable() is not None
    monkeypatch.setenv("HF_ENDPOINT", "no address at all")
    assert hub.why_unreachable() is not None


def test_which_files_are_wanted() -> None:
    names = ["config.json", "a.safetensors", "b.bin", "x.py", "sub/c.safetensors", "tokenizer.model", "run.sh"]
    assert hub.wanted_files(names, code=False) == ["a.safetensors", "config.json", "tokenizer.model"]
    assert hub.wanted_files([n for n in names if n != "a.safetensors"], code=True) == [
        "b.bin",
        "config.json",
        "tokenizer.model",
        "x.py",
    ]


@pytest.mark.parametrize(
    ("name", "is_id"),
    [("a/b", True), ("a/b@main", True), ("a", False), ("a/b/c", False), ("./b", False), ("/a", False), ("a/b@", False)],
)
def test_what_reads_as_a_hub_id(name: str, is_id: bool) -> None:
    assert hub.is_hub_id(name) is is_id
