"""Stage 2: what the target computes at every token of the answers, into a feature store.

Whole conversations go through the target once, packed flat, several in one batch; logits are reduced to their
logsumexp on the spot. A shard is a function of its sequences alone and is written whole, so a killed run goes on from
the last whole shard and ends with the store of a run that was not.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from specbench.engine.target import Target
from specbench.errors import ConfigError, TargetError, TrainDataError
from specbench.modeling.layout import BatchLayout, RowSpan
from specbench.modeling.pool import KVPool, pages_for
from specbench.resolve import silent_step
from specbench.session import Step, choose_device, choose_dtype
from specbench.train.manifest import (
    check_disk,
    owned,
    read_manifest,
    readable_bytes,
    same_settings,
    sha256_file,
    sync_folder,
    write_manifest,
)
from specbench.train.progress import Meter, Screen, Silence
from specbench.train.shards import TokenData
from specbench.train.spec import FeaturesSpec
from specbench.train.store import ARRAYS, STORE_VERSION, bytes_per_token, in_batches, verify_shard
from specbench.train.target import find_target
from specbench.types import Taps

_LOGITS_BYTES = 2**28  # of one batch, in the model's dtype
_MOST_TOKENS = 8192
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


class FeatureForward:
    """The target's forward over whole sequences, with taps. Use as a context: it hooks the model while it is open.

    The last state is rounded to bfloat16 before the head, so that the normaliser is that of the state as stored.
    """

    def __init__(self, target: Target, taps: Sequence[int], *, batch_tokens: int | None = None) -> None:
        self.lm = target.lm
        self.taps = tuple(taps)
        self.hidden_size = int(target.config.hidden_size)
        bad = [k for k in self.taps if k > len(self.lm.layers)]
        if bad:
            raise ConfigError(f"tap {bad[0]} asked for, but the target has {len(self.lm.layers)} layers (taps 0..n)")
        fitting = _LOGITS_BYTES // (target.vocab_size * self.lm.dtype.itemsize)
        self.batch_tokens = batch_tokens or max(min(fitting, _MOST_TOKENS), 64)
        self._hook: Any = None

    def __enter__(self) -> FeatureForward:
        self._hook = self.lm.model.base_model.register_forward_hook(_round_last)
        self.lm.set_taps(Taps(boundaries=self.taps, final_norm=True))
        return self

    def __exit__(self, *_: object) -> None:
        self._hook.remove()
        self.lm.set_taps(Taps())

    @torch.inference_mode()
    def compute(self, token_ids: NDArray[Any], lengths: Sequence[int]) -> Computed:
        """Features of sequences of ``lengths`` that lie flat in ``token_ids`` [T]. The longest may exceed the batch."""
        assert self._hook is not None, "enter the context first"
        pages = [pages_for(length) for length in lengths]
        pool = KVPool(self.lm.layer_shapes, num_pages=sum(pages), dtype=self.lm.dtype, device=self.lm.device)
        held = [pool.take(count) or [] for count in pages]
        starts = np.concatenate([[0], np.cumsum(lengths)])
        parts = []
        for chunk in _chunks(lengths, self.batch_tokens):
            spans, flat, at = [], [], 0
            for sequence, first, count in chunk:
                spans.append(RowSpan(at, count, first + count, held[sequence]))
                flat.append(token_ids[starts[sequence] + first : starts[sequence] + first + count])
                at += count
            ids = torch.from_numpy(np.concatenate(flat).astype(np.int64)).to(self.lm.device)
            layout = BatchLayout.build(spans, self.lm.device)
            parts.append(self._forward(ids, layout, pool))
        return Computed(*(torch.cat(column) for column in zip(*parts, strict=True)))

    def _forward(self, ids: Tensor, layout: BatchLayout, pool: KVPool) -> tuple[Tensor, Tensor, Tensor]:
        out = self.lm.forward(ids, layout=layout, pool=pool, logits_at=None)
        states = out.hidden.to(torch.bfloat16)
        split = len(self.taps) * self.hidden_size
        return states[:, :split], states[:, split:], torch.logsumexp(out.logits.float(), dim=-1)


def _round_last(_module: nn.Module, _args: Any, output: Any) -> Any:
    """Replace the base model's last state by its bfloat16 rounding."""
    if isinstance(output, tuple):
        return (output[0].to(torch.bfloat16).to(output[0].dtype), *output[1:])
    state = output.last_hidden_state
    output.last_hidden_state = state.to(torch.bfloat16).to(state.dtype)
    return output


def _chunks(lengths: Sequence[int], limit: int) -> Iterator[list[tuple[int, int, int]]]:
    """Flat order cut into batches of at most ``limit`` tokens: (sequence, first token, count) of each piece."""
    batch: list[tuple[int, int, int]] = []
    room = limit
    for sequence, length in enumerate(lengths):
        first = 0
        while first < length:
            count = min(room, length - first)
            batch.append((sequence, first, count))
            first, room = first + count, room - count
            if room == 0:
                yield batch
                batch, room = [], limit
    if batch:
        yield batch


# ------------------------------------------------------------------------------------------------------ the stage


def make_features(spec: FeaturesSpec, *, screen: Screen | None = None, step: Step = silent_step) -> dict[str, Any]:
    """Run the stage to its end, or go on with it; the finished manifest.

    Errors: TrainDataError when the answers are unfinished, damaged or another target's, or the folder holds another
    store; CapacityError when the disk cannot hold it; ConfigError for bad taps; TargetError.
    """
    screen = screen or Silence()
    with owned(spec.out):
        data = open_data(spec)
        found = find_target(spec.target, trust_remote_code=spec.trust_remote_code, step=step)
        same_settings(data.target, found.identity(), folder=spec.data[0])
        text = found.resolved.config.get("text_config") or found.resolved.config
        taps = spec.taps or default_taps(_number(text, "num_hidden_layers", "n_layer"))
        manifest = _begin(spec, data, taps=taps, config=text)
        groups = list(in_batches(data.sequences, range(data.num_sequences), max_tokens=spec.shard_tokens))
        _announce(spec, data, manifest, screen)
        if manifest["complete"]:
            screen.say(f"{spec.out} is complete")
            return manifest
        target = found.load(dtype=spec.dtype, device=spec.device, threads=spec.threads, step=step)
        done = sum(shard["tokens"] for shard in manifest["shards"])
        meter = Meter("features", "tokens", data.num_tokens, screen, before=done)
        with FeatureForward(target, taps, batch_tokens=spec.batch_tokens) as forward:
            for number in range(len(manifest["shards"]), len(groups)):
                shard = _write_shard(spec.out, f"{number:05d}", data, groups[number], forward, meter)
                manifest["shards"].append(shard)
                manifest["complete"] = number == len(groups) - 1
                write_manifest(spec.out, manifest)
        screen.say(f"features: {data.num_sequences:,} sequences, {data.num_tokens:,} tokens in {spec.out}")
        return manifest


def open_data(spec: FeaturesSpec) -> TokenData:
    """The answers. Errors: TrainDataError when they are unfinished and ``spec.unfinished`` does not allow that."""
    data = TokenData.open(spec.data)
    if not data.complete and not spec.unfinished:
        raise TrainDataError(
            f"{spec.data[0]} is unfinished; finish it with `specbench train prepare`, or pass --unfinished"
        )
    return data


def _begin(spec: FeaturesSpec, data: TokenData, *, taps: Sequence[int], config: dict[str, Any]) -> dict[str, Any]:
    device = choose_device(spec.device)
    settings = {
        "data": data.source_hash,
        "taps": list(taps),
        "shard_tokens": spec.shard_tokens,
        "batch_tokens": spec.batch_tokens,
        "dtype": choose_dtype(spec.dtype, device=device),
        "device": device,
    }
    try:
        manifest = read_manifest(spec.out, kind="features", version=STORE_VERSION)
    except TrainDataError:
        if (spec.out / "manifest.json").exists():
            raise
        hidden_size = _number(config, "hidden_size", "n_embd")
        fresh = {
            "kind": "features",
            "version": STORE_VERSION,
            "settings": settings,
            "target": data.target,
            "taps": list(taps),
            "hidden_size": hidden_size,
            "num_layers": _number(config, "num_hidden_layers", "n_layer"),
            "vocab_size": _number(config, "vocab_size"),
            "bytes_per_token": bytes_per_token(num_taps=len(taps), hidden_size=hidden_size),
            "data_sha256": data.source_hash,
            "target_tokens": int(data.loss_mask.sum()),
            "shards": [],
            "complete": False,
        }
        write_manifest(spec.out, fresh)
        return fresh
    same_settings(manifest["settings"], settings, folder=spec.out)
    for shard in manifest["shards"]:
        verify_shard(spec.out, shard)
    return manifest


def _number(config: dict[str, Any], *names: str) -> int:
    """The first of these keys that a model's config has. Errors: TargetError."""
    for name in names:
        if config.get(name) is not None:
            return int(config[name])
    raise TargetError(f"the target's config.json has no '{names[0]}'; features cannot be sized")


def _announce(spec: FeaturesSpec, data: TokenData, manifest: dict[str, Any], screen: Screen) -> None:
    """Say what the store will take before anything is computed. Errors: CapacityError."""
    each = manifest["bytes_per_token"]
    left = data.num_tokens - sum(shard["tokens"] for shard in manifest["shards"])
    screen.say(
        f"{each:,} bytes a token ({len(manifest['taps'])} taps and the last state of width {manifest['hidden_size']}, "
        f"bfloat16), {data.num_tokens:,} tokens: {readable_bytes(each * data.num_tokens)} in all, "
        f"{readable_bytes(each * left)} to write"
    )
    check_disk(spec.out, each * left, what=f"the features of {left:,} tokens")


def _write_shard(
    folder: Path, name: str, data: TokenData, sequences: Sequence[int], forward: FeatureForward, meter: Meter
) -> dict[str, Any]:
    """Compute one shard into a folder under another name, make it durable and rename it; its manifest entry."""
    partial, final = folder / f".{name}.partial", folder / name
    for old in (partial, final):
        shutil.rmtree(old, ignore_errors=True)
    partial.mkdir()
    first, last = int(data.sequences[sequences[0]]), int(data.sequences[sequences[-1] + 1])
    rows = slice(sequences[0], sequences[-1] + 1)
    lengths = np.diff(data.sequences[sequences[0] : sequences[-1] + 2])
    width = forward.hidden_size
    maps = {
        "hidden": _create(partial, "hidden", (last - first, len(forward.taps) * width)),
        "last_hidden": _create(partial, "last_hidden", (last - first, width)),
        "log_normaliser": _create(partial, "log_normaliser", (last - first,)),
    }
    at = 0
    for group in in_batches(data.sequences, sequences, max_tokens=forward.batch_tokens):
        counts = [int(data.sequences[s + 1] - data.sequences[s]) for s in group]
        size = sum(counts)
        done = forward.compute(data.token_ids[first + at : first + at + size], counts)
        maps["hidden"][at : at + size] = as_bits(done.hidden)
        maps["last_hidden"][at : at + size] = as_bits(done.last_hidden)
        maps["log_normaliser"][at : at + size] = done.log_normaliser.cpu().numpy()
        at += size
        meter.at(meter.done + size)
    for array in maps.values():
        array.flush()
    small = {
        "token_ids": data.token_ids[first:last],
        "loss_mask": data.loss_mask[first:last],
        "lengths": lengths,
        "heldout": data.heldout[rows],
    }
    for key, values in small.items():
        np.save(partial / f"{key}.npy", np.asarray(values).astype(ARRAYS[key]))
    digests = {f"{key}.npy": _seal(partial / f"{key}.npy") for key in ARRAYS}
    partial.rename(final)
    sync_folder(folder)
    return {"name": name, "sequences": len(lengths), "tokens": last - first, "sha256": digests}


def _create(folder: Path, name: str, shape: tuple[int, ...]) -> Any:
    return np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=ARRAYS[name], shape=shape)


def as_bits(states: Tensor) -> NDArray[np.uint16]:
    """bfloat16 [...] as its bit pattern."""
    found: NDArray[np.uint16] = states.contiguous().view(torch.uint16).cpu().numpy()
    return found


def _seal(path: Path) -> str:
    """Make a file durable; its checksum."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return sha256_file(path)
