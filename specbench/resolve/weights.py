"""The identity of a model's weights: one hash of their content, whatever files they lie in.

The hash runs over the tensors in order of their names: name, dtype, shape and bytes. One file or many shards, the order
inside a file, metadata and padding make no difference; one changed bit does.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.errors import TargetError
from specbench.resolve import cache
from specbench.resolve.progress import Step, silent_step

HASH_VERSION = 1
CHUNK_BYTES = 1 << 22
MAX_HEADER_BYTES = 100_000_000
LARGE_BYTES = 1_000_000_000
# what torch calls them -> what safetensors calls them, so that a .bin file and its twin agree
TORCH_DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor's bytes are: ``[start, end)`` of ``file``."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The files that hold the weights of a model folder, safetensors before ``.bin``.

    An index decides where there is one; else ``model.safetensors``; else every file of the kind. Errors: TargetError
    when there are none, or when the index names a shard that is not there.
    """
    for suffix, single in ((".safetensors", "model.safetensors"), (".bin", "pytorch_model.bin")):
        index = folder / f"{single}.index.json"
        if index.is_file():
            return _indexed(index)
        if (folder / single).is_file():
            return (folder / single,)
        found = sorted(p for p in folder.glob(f"*{suffix}") if p.is_file() and p.name != "training_args.bin")
        if found:
            return tuple(found)
    raise TargetError(f"{folder} holds no weights (*.safetensors or pytorch_model*.bin); fetch or copy them there")


def _indexed(index: Path) -> tuple[Path, ...]:
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TargetError(f"{index} is damaged ({type(error).__name__}: {error}); fetch the model again") from error
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise TargetError(f"{index.parent} lacks the weight file {missing[0]}{more}; fetch the model again")
    return tuple(index.parent / name for name in names)


def read_header(file: Path) -> dict[str, StoredTensor]:
    """The tensors of a safetensors file by name, without reading their bytes.

    Layout (safetensors format): eight bytes of little-endian header length, the JSON header, the data. Errors:
    TargetError when the file is cut short or its header does not describe it.
    """
    size = file.stat().st_size
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
                raise ValueError("the header is longer than the file")
            header = json.loads(stream.read(length))
        found = {name: _stored(file, 8 + length, entry) for name, entry in header.items() if name != "__metadata__"}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TargetError(f"{file} is not a whole safetensors file ({error}); fetch the model again") from error
    expected = max((tensor.end for tensor in found.values()), default=8 + length)
    if expected != size:
        raise TargetError(f"{file} has {size} bytes and its header describes {expected}; fetch the model again")
    return found


def _stored(file: Path, data_start: int, entry: Mapping[str, Any]) -> StoredTensor:
    start, end = entry["data_offsets"]
    shape = tuple(int(n) for n in entry["shape"])
    if not 0 <= start <= end:
        raise ValueError(f"offsets {start}..{end}")
    return StoredTensor(file, str(entry["dtype"]), shape, data_start + start, data_start + end)


def tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Shapes by tensor name of a safetensors folder; empty for ``.bin`` weights, which are not cheap to look into."""
    files = weight_files(folder)
    if files[0].suffix != ".safetensors":
        return {}
    return {name: tensor.shape for file in files for name, tensor in read_header(file).items()}


def hash_weights(path: Path, *, progress: Step = silent_step) -> str:
    """sha256 of the weights in a model folder (or one weight file), as 64 hex digits.

    The result is remembered in the cache folder under the files' size, time of change and inode; ``progress`` is
    entered where it has to be computed for more than a gigabyte. Errors: TargetError for absent or damaged weights;
    ``.bin`` files are read with ``weights_only`` and refused if that fails.
    """
    path = Path(path)
    files = (path,) if path.is_file() else weight_files(path)
    key = _stat_key(files)
    known = _recall(key)
    if known is not None:
        return known
    size = sum(file.stat().st_size for file in files)
    step = progress if size > LARGE_BYTES else silent_step
    with step(f"Hashing {size / 1e9:.1f} GB of weights (once)"):
        digest = _hasher(files[0])(files)
    _remember(key, digest)
    return digest


def _hasher(path: Path) -> Callable[[tuple[Path, ...]], str]:
    """By tensors where they can be read; a GGUF by its bytes."""
    if path.suffix == ".gguf":
        return _hash_bytes
    return _hash_safetensors if path.suffix == ".safetensors" else _hash_bin


def _hash_bytes(files: tuple[Path, ...]) -> str:
    (file,) = files
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _absorb(digest: Any, name: str, dtype: str, shape: tuple[int, ...]) -> None:
    label = json.dumps([name, dtype, list(shape)], ensure_ascii=True, separators=(",", ":")).encode()
    digest.update(len(label).to_bytes(8, "little") + label)


def _hash_safetensors(files: tuple[Path, ...]) -> str:
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        for name, tensor in read_header(file).items():
            if name in tensors:
                raise TargetError(
                    f"tensor {name} is in both {tensors[name].file.name} and {file.name}; keep one of them"
                )
            tensors[name] = tensor
    digest = hashlib.sha256(f"specbench weights {HASH_VERSION}\n".encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        _absorb(digest, name, tensor.dtype, tensor.shape)
        for chunk in _chunks(tensor):
            digest.update(chunk)
    return digest.hexdigest()


def _chunks(tensor: StoredTensor) -> Iterator[bytes]:
    with tensor.file.open("rb") as stream:
        stream.seek(tensor.start)
        left = tensor.end - tensor.start
        while left:
            chunk = stream.read(min(left, CHUNK_BYTES))
            if not chunk:
                raise TargetError(f"{tensor.file} ended early; fetch the model again")
            left -= len(chunk)
            yield chunk


def _hash_bin(files: tuple[Path, ...]) -> str:
    import torch

    tensors: dict[str, torch.Tensor] = {}
    for file in files:
        try:
            loaded = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:
            first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise TargetError(
                f"{file} cannot be read as plain tensors ({first[:160]}); it is damaged or holds code: use safetensors"
            ) from error
        tensors.update({name: value for name, value in loaded.items() if isinstance(value, torch.Tensor)})
    digest = hashlib.sha256(f"specbench weights {HASH_VERSION}\n".encode())
    for name in sorted(tensors):
        value = tensors[name].detach().contiguous()
        dtype = str(value.dtype).removeprefix("torch.")
        _absorb(digest, name, TORCH_DTYPES.get(dtype, dtype), tuple(value.shape))
        if math.prod(value.shape):
            digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _stat_key(files: tuple[Path, ...]) -> str:
    stats = [(f.name, s.st_dev, s.st_size, s.st_mtime_ns, s.st_ino) for f in files for s in (f.stat(),)]
    return hashlib.sha256(json.dumps([HASH_VERSION, stats]).encode()).hexdigest()


def _recall(key: str) -> str | None:
    try:
        known = (cache.home() / "hashes" / key).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return known if len(known) == 64 and set(known) <= set("0123456789abcdef") else None


def _remember(key: str, digest: str) -> None:
    folder = cache.home() / "hashes"
    temporary = folder / f".{key}.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary.write_text(digest + "\n", encoding="ascii")
        temporary.replace(folder / key)
    except OSError:
        return  # a cache that cannot be written costs time at the next run, and changes no result
