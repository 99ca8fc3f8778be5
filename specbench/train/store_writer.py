"""Writing a feature store: one shard at a time, each whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specbench.errors import TargetError
from specbench.train.manifest import sha256_file, sync_folder
from specbench.train.store import ARRAYS, STORE_VERSION, bytes_per_token

if TYPE_CHECKING:
    from torch import Tensor

_NUM_TAPS = 5


def default_taps(num_layers: int) -> tuple[int, ...]:
    """Five boundaries, evenly from the second layer's output to the last but two's, as DeepSpec taps its targets.

    Layer ids 1 + i (n - 4) / 4 counted from 0, so boundaries one higher; fewer in shallow models, never the last.
    """
    if num_layers < 2:
        return (0,)
    last = max(num_layers - 3, 0)
    ids = {min(round(1 + i * (num_layers - 4) / (_NUM_TAPS - 1)), last) for i in range(_NUM_TAPS)}
    return tuple(sorted({max(i, 0) + 1 for i in ids}))


@dataclass(frozen=True, slots=True)
class Computed:
    """Features of whole sequences, flat; bfloat16 states on the target's device."""

    hidden: Tensor  # [T, m * d] bfloat16
    last_hidden: Tensor  # [T, d] bfloat16
    log_normaliser: Tensor  # [T] float32


def config_number(config: dict[str, Any], *names: str) -> int:
    """The first of these keys that a model's config has. Errors: TargetError."""
    for name in names:
        if config.get(name) is not None:
            return int(config[name])
    raise TargetError(f"the target's config.json has no '{names[0]}', so features cannot be sized; give another target")


def store_facts(target: dict[str, Any], *, taps: Sequence[int], config: dict[str, Any]) -> dict[str, Any]:
    """The beginning of a store's manifest. ``target``: its identity, ``config``: its text config as JSON."""
    hidden_size = config_number(config, "hidden_size", "n_embd")
    return {
        "kind": "features",
        "version": STORE_VERSION,
        "target": target,
        "taps": list(taps),
        "hidden_size": hidden_size,
        "num_layers": config_number(config, "num_hidden_layers", "n_layer"),
        "vocab_size": config_number(config, "vocab_size"),
        "bytes_per_token": bytes_per_token(num_taps=len(taps), hidden_size=hidden_size),
        "shards": [],
        "complete": False,
    }


def write_feature_shard(
    folder: Path,
    name: str,
    *,
    token_ids: NDArray[Any],
    loss_mask: NDArray[Any],
    lengths: NDArray[Any],
    heldout: NDArray[Any],
    parts: Iterable[Computed],
    num_taps: int,
    hidden_size: int,
) -> dict[str, Any]:
    """Write a shard of whole sequences into a folder of another name, make it durable and rename it.

    Args:
        token_ids, loss_mask: [T], flat over the sequences.
        lengths, heldout: [N].
        parts: features of consecutive tokens, T in all; asked for one after another, so that they need not all fit.

    Returns:
        The shard's entry for the manifest.
    """
    partial, final = folder / f".{name}.partial", folder / name
    for old in (partial, final):
        shutil.rmtree(old, ignore_errors=True)
    partial.mkdir()
    count = len(token_ids)
    shapes = {
        "hidden": (count, num_taps * hidden_size),
        "last_hidden": (count, hidden_size),
        "log_normaliser": (count,),
    }
    maps = {
        key: np.lib.format.open_memmap(partial / f"{key}.npy", mode="w+", dtype=ARRAYS[key], shape=shape)
        for key, shape in shapes.items()
    }
    at = 0
    for part in parts:
        rows = slice(at, at + part.log_normaliser.shape[0])
        maps["hidden"][rows] = as_bits(part.hidden)
        maps["last_hidden"][rows] = as_bits(part.last_hidden)
        maps["log_normaliser"][rows] = part.log_normaliser.cpu().numpy()
        at = rows.stop
    assert at == count, "features of every token and no more"
    for array in maps.values():
        array.flush()
    small = {"token_ids": token_ids, "loss_mask": loss_mask, "lengths": lengths, "heldout": heldout}
    for key, values in small.items():
        np.save(partial / f"{key}.npy", np.asarray(values).astype(ARRAYS[key]))
    digests = {f"{key}.npy": _seal(partial / f"{key}.npy") for key in ARRAYS}
    partial.rename(final)
    sync_folder(folder)
    return {"name": name, "sequences": len(lengths), "tokens": count, "sha256": digests}


def as_bits(states: Tensor) -> NDArray[np.uint16]:
    """bfloat16 [...] as its bit pattern."""
    import torch

    found: NDArray[np.uint16] = states.contiguous().view(torch.uint16).cpu().numpy()
    return found


def _seal(path: Path) -> str:
    """Make a file durable; its checksum."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return sha256_file(path)
