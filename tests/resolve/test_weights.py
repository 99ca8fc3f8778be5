from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file
from safetensors.torch import load_file
from support_folders import write_llama

from specbench.errors import TargetError
from specbench.resolve import hash_weights, weight_files
from specbench.resolve.weights import read_header, tensor_shapes

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=12)
ARRAYS = st.builds(
    lambda shape, kind, seed: np.random.default_rng(seed).integers(0, 100, shape).astype(kind),
    st.lists(st.integers(0, 4), max_size=3).map(tuple),
    st.sampled_from(["float32", "float16", "int64", "uint8"]),
    st.integers(0, 9),
)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(NAMES.filter(lambda n: n != "__metadata__"), ARRAYS, min_size=1, max_size=6), st.data())
def test_any_split_into_files_hashes_alike(
    tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, np.ndarray], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("split")
    whole, parts = folder / "whole", folder / "parts"
    whole.mkdir()
    parts.mkdir()
    save_file(tensors, whole / "model.safetensors", metadata={"format": "pt"})
    shard_of = {name: data.draw(st.integers(0, 2), label=name) for name in tensors}
    for shard in set(shard_of.values()):
        names = [name for name in tensors if shard_of[name] == shard]
        save_file({name: tensors[name] for name in reversed(names)}, parts / f"part-{shard}.safetensors")
    assert hash_weights(whole) == hash_weights(parts)
    assert tensor_shapes(whole) == {name: value.shape for name, value in tensors.items()}


def test_shards_pickles_and_one_file_of_a_real_model_hash_alike(llama: Path, tmp_path: Path) -> None:
    sharded = write_llama(tmp_path / "sharded", shard_size="10KB")
    assert len(weight_files(sharded)) > 2
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    torch.save(load_file(llama / "model.safetensors"), pickled / "pytorch_model.bin")
    assert hash_weights(llama) == hash_weights(sharded) == hash_weights(pickled)
    assert hash_weights(llama) == hash_weights(llama / "model.safetensors")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float64, torch.bool])
def test_a_pickle_and_its_safetensors_twin_agree_on_dtype_names(tmp_path: Path, dtype: torch.dtype) -> None:
    from safetensors.torch import save_file as save_torch

    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    tensors = {"x": torch.tensor([[0.0, 1.0], [1.0, 0.5]]).to(dtype), "empty": torch.zeros(0, 3).to(dtype)}
    save_torch(tensors, tmp_path / "a" / "model.safetensors")
    torch.save(tensors, tmp_path / "b" / "pytorch_model.bin")
    assert hash_weights(tmp_path / "a") == hash_weights(tmp_path / "b")


def test_every_kind_of_change_changes_the_hash(tmp_path: Path) -> None:
    base = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(2, dtype=np.float32)}
    one_bit = base["a"].copy()
    one_bit.view(np.uint32)[1, 2] ^= 1
    variants = {
        "base": base,
        "bit": {**base, "a": one_bit},
        "name": {"a": base["a"], "c": base["b"]},
        "shape": {**base, "a": base["a"].reshape(3, 2)},
        "dtype": {**base, "a": base["a"].view(np.int32)},
        "swapped": {"a": base["b"], "b": base["a"]},
        "fewer": {"a": base["a"]},
    }
    hashes = {}
    for name, tensors in variants.items():
        (tmp_path / name).mkdir()
        save_file(tensors, tmp_path / name / "model.safetensors")
        hashes[name] = hash_weights(tmp_path / name)
    assert len(set(hashes.values())) == len(variants), hashes


def test_the_hash_is_remembered_until_the_file_changes(home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    file = folder / "model.safetensors"
    save_file({"a": np.zeros(4, dtype=np.float32)}, file)
    first = hash_weights(folder)
    (note,) = (home / "hashes").iterdir()
    note.write_text("f" * 64)
    assert hash_weights(folder) == "f" * 64  # read back, not computed
    note.write_text("cut sho")
    assert hash_weights(folder) == first  # an unreadable note is no answer
    changed = bytearray(file.read_bytes())
    changed[-1] ^= 1
    file.write_bytes(changed)
    os.utime(file, ns=(1, 1))
    assert hash_weights(folder) not in (first, "f" * 64)


def test_a_cache_that_cannot_be_written_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file({"a": np.zeros(4, dtype=np.float32)}, tmp_path / "model.safetensors")
    first = hash_weights(tmp_path)
    blocked = tmp_path / "a-file"
    blocked.touch()
    monkeypatch.setenv("SPECBENCH_HOME", str(blocked))
    assert hash_weights(tmp_path) == first


def _break(folder: Path, how: str) -> None:
    file = folder / "model.safetensors"
    data = file.read_bytes()
    if how == "cut":
        file.write_bytes(data[:-3])
    elif how == "longer":
        file.write_bytes(data + b"xyz")
    elif how == "empty":
        file.write_bytes(b"")
    elif how == "header":
        file.write_bytes(data[:8] + b"\xff" * (len(data) - 8))
    elif how == "length":
        file.write_bytes((1 << 62).to_bytes(8, "little") + data[8:])
    elif how == "absent":
        file.unlink()
    elif how == "list":
        file.write_bytes((2).to_bytes(8, "little") + b"[]")
    else:
        index = {"weight_map": {"x": "model-00001-of-00002.safetensors"}} if how == "shard" else ["not", "an", "index"]
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("how", ["cut", "longer", "empty", "header", "length", "list", "absent", "shard", "index"])
def test_damaged_weights_are_refused_in_one_line(tmp_path: Path, how: str, llama: Path) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(llama, folder)
    _break(folder, how)
    with pytest.raises(TargetError) as caught:
        hash_weights(folder)
    assert "fetch" in str(caught.value)
    assert "\n" not in str(caught.value)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_crash_the_header_reader(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    file = tmp_path_factory.mktemp("noise") / "x.safetensors"
    file.write_bytes(len(data).to_bytes(8, "little") + data)
    with contextlib.suppress(TargetError):
        assert all(tensor.end == len(data) + 8 for tensor in read_header(file).values())


def test_the_same_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_file({"x": np.zeros(2, dtype=np.float32)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(TargetError, match=r"tensor x is in both a\.safetensors and b\.safetensors"):
        hash_weights(tmp_path)


class _Bomb:
    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return os.mkdir, (os.environ["SPECBENCH_HOME"] + "-bomb",)


def test_a_pickle_with_code_in_it_is_refused_and_not_run(home: Path, tmp_path: Path) -> None:
    torch.save({"x": torch.zeros(1), "y": _Bomb()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(TargetError, match="damaged or holds code"):
        hash_weights(tmp_path)
    assert not Path(f"{home}-bomb").exists()


def test_a_long_hash_is_announced(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def step(text: str) -> contextlib.AbstractContextManager[None]:
        said.append(text)
        return contextlib.nullcontext()

    small = hash_weights(llama, progress=step)
    assert said == []
    monkeypatch.setattr("specbench.resolve.weights.LARGE_BYTES", 10)
    monkeypatch.setattr("specbench.resolve.weights._recall", lambda _: None)
    assert hash_weights(llama, progress=step) == small
    assert said == ["Hashing 0.0 GB of weights (once)"]
