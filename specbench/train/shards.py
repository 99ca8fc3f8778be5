"""Token shards: conversations as token ids, with a mask over what the target wrote, as Parquet files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from specbench.errors import TrainDataError
from specbench.train.manifest import fingerprint, read_manifest, sha256_file, sync_folder

ANSWERS_VERSION = 1


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One sequence. A conversation is one row where each turn repeats the text before it token for token.

    ``turns`` are the user's turns up to the last answer here; ``prompt_hash`` is that of the conversation's first.
    """

    conversation: str
    task: str
    domain: str
    system: str | None
    turns: tuple[str, ...]
    prompt_hash: str
    heldout: bool
    temperature: float
    seed: int
    stop_reasons: tuple[str, ...]
    token_ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]

    @property
    def target_tokens(self) -> int:
        """Tokens that the target wrote."""
        return sum(self.loss_mask)


def _schema() -> Any:
    import pyarrow as pa

    texts = pa.list_(pa.string())
    kinds = {
        "turns": texts, "stop_reasons": texts, "token_ids": pa.list_(pa.int32()), "loss_mask": pa.list_(pa.bool_()),
        "heldout": pa.bool_(), "temperature": pa.float64(), "seed": pa.int64(),
    }  # fmt: skip
    return pa.schema([(f.name, kinds.get(f.name, pa.string())) for f in fields(TokenRow)])


def write_token_shard(path: Path, rows: Sequence[TokenRow]) -> dict[str, Any]:
    """Write a shard durably, in one step; its entry for the manifest. The same rows give the same bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({f.name: [getattr(row, f.name) for row in rows] for f in fields(TokenRow)}, schema=_schema())
    partial = path.with_name(f".{path.name}.partial")
    pq.write_table(table, partial, compression="zstd")
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    digest = sha256_file(partial)
    partial.replace(path)
    sync_folder(path.parent)
    return {
        "name": path.name,
        "sha256": digest,
        "rows": len(rows),
        "tokens": sum(len(row.token_ids) for row in rows),
        "target_tokens": sum(row.target_tokens for row in rows),
        "greedy_tokens": sum(row.target_tokens for row in rows if row.temperature == 0),
        "heldout_tokens": sum(row.target_tokens for row in rows if row.heldout),
        "longest": max((len(row.token_ids) for row in rows), default=0),
    }


def read_token_shard(path: Path, *, columns: Iterable[str] | None = None) -> Any:
    """A shard as a pyarrow table. Errors: TrainDataError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # on this thread alone, as rounds files are read: no worker of Arrow's outlives the call
        with pq.ParquetFile(pa.BufferReader(path.read_bytes()), pre_buffer=False) as file:
            wanted = file.schema_arrow.names if columns is None else list(columns)
            return file.read(columns=wanted, use_threads=False).select(wanted)  # an unknown column is an error
    except Exception as error:  # pyarrow raises its own kinds and OSError
        raise TrainDataError(f"{path} cannot be read ({error}); delete it and run `specbench train prepare`") from error


def check_file(folder: Path, entry: dict[str, Any], *, command: str) -> None:
    """Errors: TrainDataError when the file of a manifest's entry is not what was written."""
    path = folder / entry["name"]
    if not path.is_file() or sha256_file(path) != entry["sha256"]:
        raise TrainDataError(
            f"{path} is missing or damaged; take its entry and those after it out of the manifest, or delete {folder}, "
            f"and run `specbench train {command}` again"
        )


@dataclass(frozen=True, slots=True)
class TokenData:
    """The sequences of one or more folders of answers, flat one after another; T tokens, N sequences.

    ``sequences`` [N + 1] are row starts; ``source_hash`` names the content: it changes when a shard does.
    """

    token_ids: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]
    sequences: NDArray[np.int64]
    heldout: NDArray[np.bool_]
    target: dict[str, Any]
    source_hash: str
    complete: bool

    @classmethod
    def open(cls, folders: Sequence[Path], *, verify: bool = True) -> Self:
        """Read finished and unfinished folders alike; ``verify`` compares shards with their checksums.

        Errors: TrainDataError when a folder holds no answers, is damaged, or belongs to another target than the first.
        """
        manifests = [read_manifest(folder, kind="answers", version=ANSWERS_VERSION) for folder in folders]
        ids, masks, lengths, held = [], [], [], []
        hashes = []
        for folder, manifest in zip(folders, manifests, strict=True):
            if manifest["target"] != manifests[0]["target"]:
                raise TrainDataError(f"{folder} and {folders[0]} hold answers of two targets; give those of one")
            for entry in manifest["shards"]:
                if verify:
                    check_file(folder, entry, command="prepare")
                table = read_token_shard(folder / entry["name"], columns=("token_ids", "loss_mask", "heldout"))
                column = table.column("token_ids").combine_chunks()
                lengths.append(np.diff(column.offsets.to_numpy()))
                ids.append(column.flatten().to_numpy())
                masks.append(table.column("loss_mask").combine_chunks().flatten().to_numpy(zero_copy_only=False))
                held.append(table.column("heldout").to_numpy())
                hashes.append(entry["sha256"])
        if not ids:
            raise TrainDataError(f"{folders[0]} holds no answers yet; run `specbench train prepare` first")
        return cls(
            token_ids=np.concatenate(ids).astype(np.int32),
            loss_mask=np.concatenate(masks).astype(np.bool_),
            sequences=np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64),
            heldout=np.concatenate(held).astype(np.bool_),
            target=manifests[0]["target"],
            source_hash=fingerprint(hashes),
            complete=all(m["complete"] for m in manifests),
        )

    @property
    def num_tokens(self) -> int:
        """Tokens of all sequences, prompts included."""
        return int(self.sequences[-1])

    @property
    def num_sequences(self) -> int:
        """Sequences."""
        return len(self.sequences) - 1
