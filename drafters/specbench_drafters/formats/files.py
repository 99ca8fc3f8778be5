"""The files of a checkpoint folder: configuration, and tensors of any published container.

Shapes are known without reading weights, so a drafter can be picked out of a full target checkpoint. Containers are
safetensors and PyTorch's ``.bin``/``.pt``, single or sharded; PyTorch files are only read with ``weights_only``, so
no code of theirs ever runs.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from specbench.errors import CheckpointError

CONFIG_NAME = "config.json"
_INDEX_NAMES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_SHARD = re.compile(r"-\d+-of-(\d+)\.(safetensors|bin)$")
_NOT_WEIGHTS = ("training_state", "training_args", "optimizer", "scheduler", "rng_state", "mask_embedding")
_TORCH_ERRORS = (RuntimeError, pickle.UnpicklingError, EOFError, OSError, ValueError, KeyError, TypeError)
_CHUNK = 1 << 22


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies and what it looks like. ``dtype`` is torch's name without the prefix ("float32")."""

    file: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Folder:
    """A checkpoint folder whose headers were read. ``others`` are further file names that detection looks at."""

    path: Path
    config: dict[str, Any]
    infos: Mapping[str, TensorInfo]
    others: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def names(self) -> frozenset[str]:
        """Names of all stored tensors."""
        return frozenset(self.infos)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Shape of a tensor, or None where the folder has no such tensor."""
        info = self.infos.get(name)
        return info.shape if info is not None else None

    def read(self, names: Iterable[str]) -> dict[str, Tensor]:
        """The named tensors on the CPU in their stored dtype. Errors: CheckpointError for a damaged file."""
        by_file: dict[str, list[str]] = {}
        for name in names:
            by_file.setdefault(self.infos[name].file, []).append(name)
        found: dict[str, Tensor] = {}
        for file, wanted in by_file.items():
            found.update(_read_tensors(self.path / file, wanted))
        return found

    def sha256(self, names: Iterable[str]) -> str:
        """Hash over config.json, side files and the files that hold the named tensors, as `sha256sum` lines."""
        files = sorted({self.infos[name].file for name in names} | ({CONFIG_NAME} if self.config else set()))
        files += [name for name in self.others if name in ("mask_embedding.pt", "sts.json")]
        whole = hashlib.sha256()
        for file in files:
            whole.update(f"{file_sha256(self.path / file)}  {file}\n".encode())
        return whole.hexdigest()


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_CHUNK):
            digest.update(block)
    return digest.hexdigest()


def open_folder(path: Path) -> Folder:
    """Read the configuration and the headers of all weight files.

    Errors: CheckpointError when the folder, its weights or its configuration are missing, empty or damaged.
    """
    if not path.is_dir():
        seen = "a file" if path.exists() else "nothing"
        raise CheckpointError(f"checkpoint '{path}' must be a folder with config.json and weights; found {seen}")
    config = read_config(path)
    infos, notes = _read_headers(path)
    others = tuple(sorted(entry.name for entry in path.iterdir() if entry.is_file()))
    if not infos and "medusa_lm_head.pt" not in others:
        raise CheckpointError(f"checkpoint '{path}' holds no weights; expected model.safetensors or pytorch_model.bin")
    for name, info in infos.items():
        if 0 in info.shape:
            raise CheckpointError(f"{path / info.file}: tensor '{name}' is empty (shape {list(info.shape)})")
    return Folder(path=path, config=config, infos=infos, others=others, notes=tuple(notes))


def read_config(path: Path) -> dict[str, Any]:
    """config.json as a dictionary; empty where a Medusa folder has none. Errors: CheckpointError."""
    file = path / CONFIG_NAME
    if not file.is_file():
        if (path / "medusa_lm_head.pt").is_file():
            return {}
        raise CheckpointError(f"checkpoint '{path}' has no {CONFIG_NAME}; copy it beside the weights")
    return read_json(file)


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object from a file. Errors: CheckpointError."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: not readable as JSON ({_short(error)})") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{file}: expected a JSON object, found {type(found).__name__}")
    return found


def _read_headers(path: Path) -> tuple[dict[str, TensorInfo], list[str]]:
    for index_name in _INDEX_NAMES:
        if (path / index_name).is_file():
            return _read_sharded(path, index_name), []
    files, notes = _weight_files(path)
    infos: dict[str, TensorInfo] = {}
    for file in files:
        for name, info in _headers_of(path / file):
            if name in infos:
                raise CheckpointError(f"{path}: tensor '{name}' is in both {infos[name].file} and {file}; keep one")
            infos[name] = info
    return infos, notes


def _read_sharded(path: Path, index_name: str) -> dict[str, TensorInfo]:
    index = read_json(path / index_name)
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path / index_name}: no 'weight_map'; the index is damaged")
    infos: dict[str, TensorInfo] = {}
    for file in sorted({str(name) for name in weight_map.values()}):
        if Path(file).name != file:
            raise CheckpointError(f"{path / index_name}: '{file}' must be a plain file name of this folder")
        if not (path / file).is_file():
            raise CheckpointError(f"{path / index_name}: shard {file} is missing; fetch it again")
        infos.update(_headers_of(path / file))
    absent = sorted(name for name in weight_map if name not in infos)
    if absent:
        raise CheckpointError(f"{path / index_name}: no shard holds '{absent[0]}' (and {len(absent) - 1} more)")
    return infos


def _weight_files(path: Path) -> tuple[list[str], list[str]]:
    """Weight files of a folder without an index, safetensors before PyTorch files, and what was passed over."""
    names = sorted(entry.name for entry in path.iterdir() if entry.is_file())
    tensors = [name for name in names if name.endswith(".safetensors")]
    pickles = [name for name in names if name.endswith((".bin", ".pt", ".pth")) and not name.startswith(_NOT_WEIGHTS)]
    pickles = [name for name in pickles if name != "medusa_lm_head.pt"]
    notes = []
    if "model.safetensors" in tensors:
        passed = [name for name in tensors if name != "model.safetensors"]
        tensors = ["model.safetensors"]
    else:
        passed = []
    if tensors:
        passed += pickles
    chosen = tensors or (["pytorch_model.bin"] if "pytorch_model.bin" in pickles else pickles)
    if passed:
        notes.append(f"weights are read from {', '.join(chosen)}; not read: {', '.join(passed)}")
    for name in chosen:
        shard = _SHARD.search(name)
        if shard and sum(bool(_SHARD.search(other)) for other in chosen) != int(shard.group(1)):
            raise CheckpointError(f"{path}: {name} is one of {int(shard.group(1))} shards and others are missing")
    return chosen, notes


def _headers_of(file: Path) -> Iterator[tuple[str, TensorInfo]]:
    if file.suffix == ".safetensors":
        try:
            with safe_open(str(file), framework="pt") as handle:
                for name in handle.keys():  # noqa: SIM118 (the handle is not iterable)
                    part = handle.get_slice(name)
                    dtype = _SAFETENSORS_DTYPES.get(part.get_dtype(), part.get_dtype())
                    yield name, TensorInfo(file.name, tuple(part.get_shape()), dtype)
        except (SafetensorError, OSError, ValueError) as error:
            raise _damaged(file, error) from error
        return
    for name, tensor in _torch_tensors(file).items():
        yield name, TensorInfo(file.name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


def _read_tensors(file: Path, names: list[str]) -> dict[str, Tensor]:
    if file.suffix == ".safetensors":
        try:
            with safe_open(str(file), framework="pt", device="cpu") as handle:
                return {name: handle.get_tensor(name) for name in names}
        except (SafetensorError, OSError, ValueError) as error:
            raise _damaged(file, error) from error
    tensors = _torch_tensors(file)
    return {name: tensors[name].clone() for name in names}


def _torch_tensors(file: Path) -> dict[str, Tensor]:
    """Tensors of a PyTorch file; ``weights_only`` refuses pickled code."""
    try:
        found = _torch_load(file)
    except _TORCH_ERRORS as error:
        if "Unsupported global" in str(error) or "Unsupported class" in str(error):
            raise CheckpointError(f"{file}: holds pickled code, which is never run; save it as safetensors") from error
        raise _damaged(file, error) from error
    for key in ("state_dict", "model"):
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
        raise CheckpointError(f"{file}: expected named tensors, found {type(found).__name__}")
    return {name: value.detach() for name, value in found.items() if isinstance(value, Tensor)}


def _torch_load(file: Path) -> Any:
    with file.open("rb") as stream:
        zipped = stream.read(2) == b"PK"  # only torch's zip container can be mapped instead of read
    return torch.load(file, map_location="cpu", weights_only=True, mmap=zipped)


def read_mask_embedding(folder: Folder) -> tuple[Tensor, int | None] | None:
    """The separate ``mask_embedding.pt`` of some DFlash repositories: the vector [d] and its mask token id."""
    file = folder.path / "mask_embedding.pt"
    if "mask_embedding.pt" not in folder.others:
        return None
    try:
        found = _torch_load(file)
    except _TORCH_ERRORS as error:
        raise _damaged(file, error) from error
    vector = found.get("embedding") if isinstance(found, Mapping) else None
    if not isinstance(vector, Tensor) or vector.numel() == 0:
        raise CheckpointError(f"{file}: expected a tensor named 'embedding'")
    token = found.get("mask_token_id")
    return vector.reshape(-1).clone(), int(token) if isinstance(token, int | Tensor) else None


def check_finite(tensors: Mapping[str, Tensor], *, folder: Folder, origin: Mapping[str, str]) -> None:
    """Refuse NaN and infinite weights. ``origin`` maps a canonical name to its name in the files."""
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            continue
        value = tensor.float() if tensor.element_size() == 1 else tensor
        if not bool(torch.isfinite(value).all()):
            bad = int((~torch.isfinite(value)).sum())
            stored = origin.get(name, name)
            raise CheckpointError(
                f"{folder.path}: tensor '{stored}' has {bad} NaN or infinite values of {tensor.numel()}; "
                "the checkpoint is damaged"
            )


def _damaged(file: Path, error: BaseException) -> CheckpointError:
    return CheckpointError(f"{file}: damaged or truncated ({_short(error)}); fetch it again")


def _short(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 120 else text[:117] + "..."


_SAFETENSORS_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}
