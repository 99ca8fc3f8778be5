"""The feature store: what the target computed at every token, in shards of plain NumPy files that are memory-mapped.

A store is a folder with ``manifest.json`` and one folder a shard. A shard holds whole sequences, and one file for each
of the `ARRAYS`; the manifest has the SHA-256 of every file. bfloat16 lies in the files as its 16-bit pattern.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from specbench.errors import ConfigError, TrainDataError, unknown_name
from specbench.train.manifest import fingerprint, read_manifest, sha256_file, write_manifest

if TYPE_CHECKING:
    from torch import Tensor

STORE_VERSION = 1
SPLITS = ("train", "heldout")
LEFT_OUT = "left_out"
# Of every shard: one entry a token, except for the last two, which have one entry a sequence.
ARRAYS = {
    "token_ids": np.dtype(np.int32),
    "loss_mask": np.dtype(np.bool_),
    "hidden": np.dtype(np.uint16),
    "last_hidden": np.dtype(np.uint16),
    "log_normaliser": np.dtype(np.float32),
    "lengths": np.dtype(np.int64),
    "heldout": np.dtype(np.bool_),
}


@dataclass(frozen=True, slots=True)
class FeatureBatch:
    """Whole sequences, flat one after another, as tensors on one device; T tokens in all.

    ``starts`` are host values [sequences + 1]. ``last_hidden`` is the state after the final norm, rounded as stored,
    and ``log_normaliser`` the logsumexp of the target's logits computed from that rounded state: for any set of
    vocabulary entries, exp(logit - log_normaliser) is the target's probability.
    """

    sequences: tuple[int, ...]
    starts: tuple[int, ...]
    token_ids: Tensor  # [T] int64
    loss_mask: Tensor  # [T] bool, True where the target wrote the token
    hidden: Tensor  # [T, m * d] bfloat16, taps in order
    last_hidden: Tensor  # [T, d] bfloat16
    log_normaliser: Tensor  # [T] float32


class FeatureSource(Protocol):
    """Features by sequence: from a store, or computed when asked for. ``sequences`` are row starts [N + 1]."""

    token_ids: Any  # [T] int32
    loss_mask: Any  # [T] bool
    sequences: NDArray[np.int64]
    taps: tuple[int, ...]
    meta: dict[str, Any]

    @property
    def num_tokens(self) -> int:
        """T."""
        ...

    def split(self, name: str) -> NDArray[np.int64]:
        """Sequence numbers of "train" or "heldout", ascending; a conversation is never in both."""
        ...

    def gather(self, sequences: Sequence[int], *, device: str = "cpu") -> FeatureBatch:
        """The named sequences, in that order."""
        ...


class ShardedArray:
    """Arrays that lie in several files as one, along the first axis. Reads; a slice within one file is a view."""

    def __init__(self, parts: Sequence[NDArray[Any]]) -> None:
        assert parts, "a store has at least one shard"
        self.parts = tuple(parts)
        self.starts = np.concatenate([[0], np.cumsum([len(p) for p in parts])]).astype(np.int64)
        self.shape = (int(self.starts[-1]), *parts[0].shape[1:])
        self.dtype = parts[0].dtype

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, key: slice | int | Sequence[int] | NDArray[Any]) -> NDArray[Any]:
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            assert step == 1, "rows are read in order"
            return self._range(start, max(stop, start))
        index = np.asarray(key)
        flat = index.reshape(-1)
        if flat.dtype == np.bool_:
            flat = index = np.flatnonzero(flat)
        if flat.size and (flat.min() < -len(self) or flat.max() >= len(self)):
            raise IndexError(f"row {int(flat.max())} of {len(self)}")
        flat = np.where(flat < 0, flat + len(self), flat)
        out = np.empty((flat.size, *self.shape[1:]), dtype=self.dtype)
        owner = np.searchsorted(self.starts, flat, side="right") - 1
        for shard in np.unique(owner):
            here = owner == shard
            out[here] = self.parts[shard][flat[here] - self.starts[shard]]
        found: NDArray[Any] = out.reshape(index.shape + self.shape[1:])
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        whole = self._range(0, len(self))
        return whole if dtype is None else whole.astype(dtype)

    def _range(self, start: int, stop: int) -> NDArray[Any]:
        first = int(np.searchsorted(self.starts, start, side="right")) - 1
        pieces = []
        while start < stop:
            base, end = int(self.starts[first]), int(self.starts[first + 1])
            pieces.append(self.parts[first][start - base : min(stop, end) - base])
            start, first = end, first + 1
        if not pieces:
            return np.empty((0, *self.shape[1:]), dtype=self.dtype)
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


class FeatureStore:
    """One or several finished stores on disk as one, memory-mapped.

    ``token_ids`` [T] int32, ``loss_mask`` [T] bool, ``hidden`` [T, m * d] and ``last_hidden`` [T, d] as bfloat16 bit
    patterns in uint16, ``log_normaliser`` [T] float32: index them with slices or index arrays. ``sequences`` [N + 1]
    are the row starts, ``taps`` the tapped boundaries in order (`specbench.types.Taps`), ``meta`` the manifest (the
    first one's, and the others' content under "joined"). What a manifest lists as ``left_out`` is in no split.
    """

    def __init__(self, parts: Sequence[tuple[Path, dict[str, Any]]]) -> None:
        (first, manifest), others = parts[0], parts[1:]
        self.meta = {key: value for key, value in manifest.items() if key not in ("shards", LEFT_OUT)}
        for folder, other in others:
            _check_alike(manifest, other, folders=(first, folder))
        if others:
            self.meta["joined"] = [_content(other) for _, other in others]
            self.meta["target_tokens"] = sum(int(m.get("target_tokens", 0)) for _, m in parts)
        self.shards = tuple(shard for _, m in parts for shard in m["shards"])
        self.taps = tuple(int(k) for k in manifest["taps"])
        places = [(folder, shard) for folder, m in parts for shard in m["shards"]]
        arrays = {name: ShardedArray([_map(*place, name) for place in places]) for name in ARRAYS}
        self.token_ids, self.loss_mask = arrays["token_ids"], arrays["loss_mask"]
        self.hidden, self.last_hidden = arrays["hidden"], arrays["last_hidden"]
        self.log_normaliser = arrays["log_normaliser"]
        self.sequences = np.concatenate([[0], np.cumsum(arrays["lengths"][:])]).astype(np.int64)
        self._heldout: NDArray[Any] = np.asarray(arrays["heldout"][:])
        self._left_out = _left_out([m for _, m in parts])
        if len(self._left_out):
            self.meta[LEFT_OUT] = self._left_out.tolist()
        if self.sequences[-1] != len(self.token_ids):
            raise TrainDataError(f"{first}: its sequences do not add up to its tokens; delete it and make it again")

    @classmethod
    def open(cls, *folders: str | Path, verify: bool = False, unfinished: bool = False) -> Self:
        """Open finished stores, one after the other; ``verify`` compares every file with its checksum: it reads all.

        ``unfinished`` takes what shards there are.

        Errors: TrainDataError when one is absent, unfinished, of another version or damaged, when one is named twice,
        or when they are of different targets or taps.
        """
        parts: list[tuple[Path, dict[str, Any]]] = []
        for folder in folders:
            path = Path(folder)
            manifest = read_manifest(path, kind="features", version=STORE_VERSION)
            if not (manifest["complete"] or unfinished):
                raise TrainDataError(f"{path} is unfinished; run the command that makes it again, it goes on by itself")
            if not manifest["shards"]:
                raise TrainDataError(f"{path} holds no sequences; prepare some data first")
            if verify:
                for shard in manifest["shards"]:
                    verify_shard(path, shard)
            same = [other for other, found in parts if _content(found) == _content(manifest)]
            if same:
                raise TrainDataError(f"{path} holds the same features as {same[0]}; name them once")
            parts.append((path, manifest))
        assert parts, "at least one folder is given"
        return cls(parts)

    @property
    def num_tokens(self) -> int:
        """T, prompts included."""
        return len(self.token_ids)

    @property
    def num_sequences(self) -> int:
        """N."""
        return len(self.sequences) - 1

    def split(self, name: str) -> NDArray[np.int64]:
        """Sequence numbers of "train" or "heldout", ascending. Errors: UnknownNameError."""
        return np.setdiff1d(split_of(self._heldout, name), self._left_out)

    def gather(self, sequences: Sequence[int], *, device: str = "cpu") -> FeatureBatch:
        """The named sequences, in that order, as tensors."""
        import torch

        starts, rows = flat_rows(self.sequences, sequences)

        def tensor(array: ShardedArray) -> Tensor:
            return torch.from_numpy(array[rows])

        return FeatureBatch(
            sequences=tuple(int(s) for s in sequences),
            starts=starts,
            token_ids=tensor(self.token_ids).to(device, torch.int64),
            loss_mask=tensor(self.loss_mask).to(device),
            hidden=tensor(self.hidden).view(torch.bfloat16).to(device),
            last_hidden=tensor(self.last_hidden).view(torch.bfloat16).to(device),
            log_normaliser=tensor(self.log_normaliser).to(device),
        )


def _map(folder: Path, shard: dict[str, Any], name: str) -> NDArray[Any]:
    path = folder / shard["name"] / f"{name}.npy"
    try:
        found: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise TrainDataError(f"{path} cannot be read ({error}); run `specbench train features` again") from error
    rows = shard["sequences"] if name in ("lengths", "heldout") else shard["tokens"]
    if found.dtype != ARRAYS[name] or found.shape[0] != rows:
        raise TrainDataError(
            f"{path} holds {found.dtype} [{found.shape[0]}], expected {ARRAYS[name]} [{rows}]; "
            "delete the shard's folder and run `specbench train features` again"
        )
    return found


def _left_out(manifests: Sequence[dict[str, Any]]) -> NDArray[np.int64]:
    """Numbers, over all stores, of the sequences that their manifests leave out."""
    counts = [sum(int(shard["sequences"]) for shard in manifest["shards"]) for manifest in manifests]
    firsts = np.concatenate([[0], np.cumsum(counts)])
    found = [int(first) + int(k) for first, m in zip(firsts, manifests) for k in m.get(LEFT_OUT, ())]
    return np.array(sorted(found), dtype=np.int64)


def leave_out(folder: Path, numbers: Sequence[int], *, rows: int) -> None:
    """Have sequences of a finished store in no split. ``rows`` is how many the answers have that it was made from.

    Errors: TrainDataError when it is not a finished store of as many sequences.
    """
    manifest = read_manifest(folder, kind="features", version=STORE_VERSION)
    held = sum(int(shard["sequences"]) for shard in manifest["shards"])
    if not manifest["complete"] or held != rows:
        raise TrainDataError(
            f"{folder} holds {held} finished sequences where the answers have {rows}; name the features of these "
            "answers, in the order of --data"
        )
    wanted = sorted(int(k) for k in numbers)
    if manifest.get(LEFT_OUT, []) != wanted:
        write_manifest(folder, {**manifest, LEFT_OUT: wanted})


def _content(manifest: dict[str, Any]) -> str:
    """What a store holds, by the checksums of its shards."""
    return fingerprint([shard["sha256"] for shard in manifest["shards"]])


def _check_alike(ours: dict[str, Any], theirs: dict[str, Any], *, folders: tuple[Path, Path]) -> None:
    """Errors: TrainDataError when two stores do not hold the same states of the same weights."""
    for name, what in (("taps", "taps"), ("hidden_size", "width"), ("target", "target")):
        one, other = ours.get(name), theirs.get(name)
        if name == "target" and isinstance(one, dict) and isinstance(other, dict):
            one, other = one.get("weights_sha256"), other.get("weights_sha256")
        if one != other:
            raise TrainDataError(
                f"{folders[1]} has {what} {other}, {folders[0]} has {one}; features of one target with the same taps "
                "can be trained on together"
            )


def split_of(heldout: NDArray[Any], name: str) -> NDArray[np.int64]:
    """Numbers of the sequences that ``heldout`` [N] bool puts into the split. Errors: UnknownNameError."""
    if name not in SPLITS:
        raise unknown_name("split", name, SPLITS)
    return np.flatnonzero(heldout == (name == "heldout")).astype(np.int64)


def flat_rows(starts: NDArray[np.int64], sequences: Sequence[int]) -> tuple[tuple[int, ...], NDArray[np.int64]]:
    """Where each of the chosen sequences begins when they lie flat, and the rows [T] of the whole they come from."""
    chosen = np.asarray(sequences, dtype=np.int64)
    lengths = starts[chosen + 1] - starts[chosen]
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    rows = np.arange(bounds[-1]) + np.repeat(starts[chosen] - bounds[:-1], lengths)
    return tuple(int(b) for b in bounds), rows


def in_batches(starts: NDArray[np.int64], sequences: Sequence[int], *, max_tokens: int) -> Iterator[tuple[int, ...]]:
    """Consecutive groups of ``sequences`` with at most ``max_tokens`` tokens each; a longer sequence comes alone."""
    group: list[int] = []
    held = 0
    for sequence in sequences:
        length = int(starts[sequence + 1] - starts[sequence])
        if group and held + length > max_tokens:
            yield tuple(group)
            group, held = [], 0
        group.append(int(sequence))
        held += length
    if group:
        yield tuple(group)


def verify_shard(folder: Path, shard: dict[str, Any]) -> None:
    """Errors: TrainDataError naming the first file of the shard that is not what was written."""
    for name, digest in shard["sha256"].items():
        path = folder / shard["name"] / name
        if not path.is_file() or sha256_file(path) != digest:
            raise TrainDataError(
                f"{path} is missing or damaged; delete the folder {shard['name']} and run the same command again"
            )


def bytes_per_token(*, num_taps: int, hidden_size: int) -> int:
    """Bytes that a token takes in a store: 2 d for each tap and the last state, 9 for ids, mask and normaliser."""
    if num_taps < 0 or hidden_size < 1:
        raise ConfigError(f"{num_taps} taps of width {hidden_size} make no features")
    return 2 * hidden_size * (num_taps + 1) + 4 + 1 + 4
