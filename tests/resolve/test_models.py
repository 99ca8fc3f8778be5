from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from specbench.errors import DrafterError, TargetError, UnknownNameError
from specbench.resolve import (
    hash_template,
    hash_tokenizer,
    hash_weights,
    known_targets,
    resolve_drafter,
    resolve_target,
    silent_step,
)
from specbench.resolve.cache import locked, whole_folder
from specbench.resolve.names import find_target


def test_a_folder_resolves_to_its_hashes(llama: Path) -> None:
    found = resolve_target(str(llama))
    assert (found.path, found.source, found.revision) == (llama, "folder", None)
    assert found.weights_sha256 == hash_weights(llama)
    assert found.tokenizer_sha256 == hash_tokenizer(llama)
    assert found.template_sha256 == hash_template(llama)
    assert found.config["model_type"] == "llama"


def test_a_folder_wins_over_the_alias_of_its_name(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(llama, tmp_path / "smollm2-135m")
    monkeypatch.chdir(tmp_path)
    found = resolve_target("smollm2-135m")
    assert (found.source, found.path) == ("folder", tmp_path / "smollm2-135m")


def test_unknown_names_get_the_nearest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownNameError, match=r"unknown target 'smollm-135m'; did you mean smollm2-135m"):
        resolve_target("smollm-135m")
    with pytest.raises(UnknownNameError, match="unknown drafter 'zzz'; known: "):
        resolve_drafter("zzz")
    with pytest.raises(TargetError, match="no folder"):
        resolve_target("./smollm2-135m")
    (tmp_path / "results").mkdir()
    with pytest.raises(TargetError, match=r"results has no config\.json"):
        resolve_target("results")


def test_without_network_a_hub_name_is_refused_in_seconds_with_the_reason() -> None:
    started = time.monotonic()
    with pytest.raises(TargetError, match="the model hub does not answer") as caught:
        resolve_target("Qwen/Qwen3-4B", progress=silent_step)
    assert time.monotonic() - started < 10
    assert "--target PATH" in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(DrafterError, match="--drafter METHOD=PATH"):
        resolve_drafter("someone/drafter", progress=silent_step)


def test_offline_never_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specbench.resolve.hub.why_unreachable", lambda: pytest.fail("asked the hub"))
    with pytest.raises(TargetError, match=r"nothing may be fetched \(offline\)"):
        resolve_target("qwen3-4b", offline=True)
    with pytest.raises(TargetError, match=r"nothing may be fetched \(offline\); three ways on"):
        resolve_target("smollm2-135m", offline=True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(TargetError, match="HF_HUB_OFFLINE is set"):
        resolve_target("qwen3-4b")


def test_every_short_name_finds_itself_by_name_and_by_hub_id() -> None:
    targets = known_targets()
    assert len({t.name for t in targets}) == len(targets)
    for target in targets:
        assert find_target(target.name.upper()) is target
        assert find_target(target.hub) is target
    assert targets[0].name == "smollm2-135m"
    assert targets[0].packaged is not None
    assert find_target("") is None


def test_weights_of_another_config_are_refused(llama: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(llama, other)
    config = json.loads((other / "config.json").read_text())
    config["vocab_size"] += 1
    (other / "config.json").write_text(json.dumps(config))
    with pytest.raises(TargetError, match=r"embed_tokens\.weight has shape .* the weights belong to another config"):
        resolve_target(str(other))


@pytest.mark.parametrize("text", ["{", "[1]", ""])
def test_a_broken_config_is_refused(llama: Path, tmp_path: Path, text: str) -> None:
    other = tmp_path / "other"
    shutil.copytree(llama, other)
    (other / "config.json").write_text(text)
    with pytest.raises(TargetError, match=r"config\.json"):
        resolve_target(str(other))


def test_model_code_needs_trust_unless_the_library_knows_the_model(llama: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(llama, other)
    config = json.loads((other / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}
    (other / "config.json").write_text(json.dumps(config))
    assert resolve_target(str(other)).config["model_type"] == "llama"
    (other / "config.json").write_text(json.dumps(config | {"model_type": "their-own"}))
    with pytest.raises(TargetError, match="pass --trust-remote-code"):
        resolve_target(str(other))
    assert resolve_target(str(other), trust_remote_code=True).config["model_type"] == "their-own"


def test_a_drafters_hash_covers_weights_and_settings(llama: Path, tmp_path: Path) -> None:
    first = resolve_drafter(str(llama))
    assert (first.path, first.source) == (llama, "folder")
    other = tmp_path / "other"
    shutil.copytree(llama, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"transformers_version": "0"}, indent=9))
    assert resolve_drafter(str(other)).sha256 == first.sha256
    (other / "config.json").write_text(json.dumps(config | {"block_size": 9}))
    assert resolve_drafter(str(other)).sha256 != first.sha256
    shutil.copy(llama / "config.json", other)
    tensors = load_file(other / "model.safetensors")
    tensors["model.norm.weight"] += 1
    save_file(tensors, other / "model.safetensors")
    assert resolve_drafter(str(other)).sha256 != first.sha256


def test_a_drafter_saved_as_a_pickle_of_tensors_resolves(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(DrafterError, match="holds no weights"):
        resolve_drafter(str(tmp_path))
    torch.save({"fc.weight": torch.zeros(2, 2)}, tmp_path / "pytorch_model.bin")
    assert len(resolve_drafter(str(tmp_path)).sha256) == 64


def test_resolving_the_package_imports_no_torch() -> None:
    code = "import sys, specbench.resolve, specbench.provenance; print({'torch', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    final = tmp_path / "models" / "x"
    with pytest.raises(IsADirectoryError), whole_folder(final) as partial:
        partial.write_text("a folder cannot be written to")
    assert list(final.parent.iterdir()) == []
    leftover = final.with_name(".x.partial")  # as a killed process leaves it
    leftover.mkdir()
    (leftover / "stale").touch()
    for content in ("first", "second"):
        with whole_folder(final) as partial:
            (partial / "file").write_text(content)
            assert not (final / "file").exists() or (final / "file").read_text() != content
        assert [p.name for p in final.parent.iterdir()] == ["x"]
        assert [p.name for p in final.iterdir()] == ["file"]
        assert (final / "file").read_text() == content


def test_a_second_process_waits_for_the_lock_and_says_so() -> None:
    said: list[str] = []
    order: list[str] = []

    def second() -> None:
        with locked("thing", progress=lambda text: (said.append(text), silent_step(text))[1]):
            order.append("second")

    with locked("thing", progress=silent_step):
        thread = threading.Thread(target=second)
        thread.start()
        deadline = time.monotonic() + 10
        while not said and time.monotonic() < deadline:
            time.sleep(0.01)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]
    assert said == ["Waiting for another process that prepares thing"]
