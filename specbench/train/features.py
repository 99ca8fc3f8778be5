"""Stage 2: what the target computes at every token of the answers, into a feature store.

Whole conversations go through the target once, packed flat, several in one batch; logits are reduced to their
logsumexp on the spot. A shard is a function of its sequences alone and is written whole, so a killed run goes on from
the last whole shard and ends with the store of a run that was not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from specbench.engine.target import Target
from specbench.errors import ConfigError, TrainDataError
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
    write_manifest,
)
from specbench.train.progress import Meter, Screen, Silence
from specbench.train.shards import TokenData
from specbench.train.spec import FeaturesSpec
from specbench.train.store import STORE_VERSION, in_batches, verify_shard
from specbench.train.store_writer import Computed, config_number, default_taps, store_facts, write_feature_shard
from specbench.train.target import find_target
from specbench.types import Taps

_LOGITS_BYTES = 2**28  # of one batch, in the model's dtype
_MOST_TOKENS = 8192


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
        taps = spec.taps or default_taps(config_number(text, "num_hidden_layers", "n_layer"))
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
                shard = _compute_shard(spec.out, f"{number:05d}", data, groups[number], forward, meter)
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
        fresh = {
            **store_facts(data.target, taps=taps, config=config),
            "settings": settings,
            "data_sha256": data.source_hash,
            "target_tokens": int(data.loss_mask.sum()),
            "states": "recomputed",
        }
        write_manifest(spec.out, fresh)
        return fresh
    same_settings(manifest["settings"], settings, folder=spec.out)
    for shard in manifest["shards"]:
        verify_shard(spec.out, shard)
    return manifest


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


def _compute_shard(
    folder: Path, name: str, data: TokenData, sequences: Sequence[int], forward: FeatureForward, meter: Meter
) -> dict[str, Any]:
    """Compute one shard; its manifest entry."""
    first, last = int(data.sequences[sequences[0]]), int(data.sequences[sequences[-1] + 1])

    def parts() -> Iterator[Computed]:
        at = first
        for group in in_batches(data.sequences, sequences, max_tokens=forward.batch_tokens):
            counts = [int(data.sequences[s + 1] - data.sequences[s]) for s in group]
            yield forward.compute(data.token_ids[at : at + sum(counts)], counts)
            at += sum(counts)
            meter.at(meter.done + sum(counts))

    return write_feature_shard(
        folder,
        name,
        token_ids=data.token_ids[first:last],
        loss_mask=data.loss_mask[first:last],
        lengths=np.diff(data.sequences[sequences[0] : sequences[-1] + 2]),
        heldout=data.heldout[sequences[0] : sequences[-1] + 1],
        parts=parts(),
        num_taps=len(forward.taps),
        hidden_size=forward.hidden_size,
    )
