"""Features kept while the answers are written: the states that the engine computes anyway, instead of a second pass.

The last token of a sequence is never run, so its states are zero in the store; nothing follows it, and no method reads
them. The log-normalisers are one product with the head over the kept states.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from specbench.api import Random
from specbench.engine.target import Target
from specbench.errors import ConfigError, TrainDataError
from specbench.train.features import FeatureForward
from specbench.train.manifest import MANIFEST, read_manifest, same_settings, write_manifest
from specbench.train.shards import TokenData, TokenRow
from specbench.train.store import STORE_VERSION, verify_shard
from specbench.train.store_writer import Computed, store_facts, write_feature_shard
from specbench.types import Features, Proposal, Rows, Taps, TargetView, Verdict

_PART_TOKENS = 4096  # of a shard, turned into bits at a time
_HEAD_TOKENS = 256  # of a part, through the head at a time: logits of a whole one are gigabytes, each of another size


class StateKeeper:
    """A drafter that proposes nothing and keeps the tapped states of every request, by its number, in bfloat16."""

    trained_length = 0
    max_context: int | None = None
    options: ClassVar[Mapping[str, str]] = {}

    def __init__(self, taps: Sequence[int], *, view: TargetView) -> None:
        self.taps = Taps(boundaries=tuple(taps), final_norm=True)
        shape = (view.max_rows, view.max_context, self.taps.count * view.hidden_size)
        self._held = torch.zeros(shape, dtype=torch.bfloat16, device=view.device)
        self._owner: dict[int, int] = {}
        self._known: dict[int, int] = {}
        self.finished: dict[int, Tensor] = {}  # number -> [tokens run, (m + 1) d] on the host

    @classmethod
    def load(cls, checkpoint: Path | None, *, target: TargetView, options: Mapping[str, Any]) -> Self:
        """Not loaded by name: it is made for a run with its taps."""
        raise ConfigError("states are kept by `specbench train prepare --features`, not by a method of that name")

    def begin(self, rows: Rows) -> None:
        """Forget what the slots held."""
        for slot, number in zip(rows.slots_host, rows.number.tolist(), strict=True):
            self._owner[slot], self._known[slot] = number, 0

    def prefill(self, rows: Rows, features: Features) -> None:
        """Keep a chunk of each prompt."""
        self._keep(rows, features)

    def propose(self, rows: Rows, *, limits: Tensor, rng: Random) -> Proposal:
        """No drafts."""
        return Proposal(limits.new_zeros(len(rows), 0), limits.new_zeros(len(rows)))

    def commit(self, rows: Rows, *, verdict: Verdict, features: Features) -> None:
        """Keep the anchors."""
        self._keep(rows, features)

    def release(self, slots: Sequence[int]) -> None:
        """The slots' requests ended, or are recomputed from their start: then what comes later replaces this."""
        for slot in slots:
            self.finished[self._owner.pop(slot)] = self._held[slot, : self._known.pop(slot)].clone().cpu()

    def state_bytes(self) -> int:
        """Bytes of the states of all slots."""
        return self._held.numel() * self._held.element_size()

    def _keep(self, rows: Rows, features: Features) -> None:
        self._held[rows.slots[features.row_index], features.positions] = features.hidden.to(torch.bfloat16)
        bounds = features.row_starts_host
        for row, (slot, before) in enumerate(zip(rows.slots_host, rows.lengths_host, strict=True)):
            self._known[slot] = before + bounds[row + 1] - bounds[row]


class HeadNormaliser:
    """logsumexp of the target's logits from its last states alone.

    Errors at birth: ConfigError for a target that changes its logits after the head (scaled or capped ones).
    """

    def __init__(self, target: Target) -> None:
        self._head: Any = target.model.get_output_embeddings()
        self._dtype, self._device = target.lm.dtype, target.lm.device
        with FeatureForward(target, ()) as forward:
            self._rows = min(_HEAD_TOKENS, forward.batch_tokens)
            probe = forward.compute(np.arange(min(8, target.vocab_size), dtype=np.int32), [min(8, target.vocab_size)])
        wide = 1e-3 if self._dtype == torch.float32 else 0.05
        if not torch.allclose(self(probe.last_hidden), probe.log_normaliser, atol=wide, rtol=wide):
            raise ConfigError(
                "this target scales or caps its logits after the head, so states kept while writing do not tell their "
                "normaliser; leave --features out and run `specbench train features`"
            )

    @torch.inference_mode()
    def __call__(self, last_hidden: Tensor) -> Tensor:
        """[T] float32 of states [T, d] bfloat16, on the device of the states."""
        parts = [
            torch.logsumexp(self._head(part.to(self._device, self._dtype)).float(), dim=-1)
            for part in torch.split(last_hidden, self._rows)
        ]
        return torch.cat(parts).to(last_hidden.device)


@dataclass(frozen=True, slots=True)
class KeptFeatures:
    """A feature store that grows with the answers: shard i of the one belongs to shard i of the other."""

    folder: Path
    manifest: dict[str, Any]

    @classmethod
    def begin(
        cls,
        folder: Path,
        *,
        taps: Sequence[int],
        target: dict[str, Any],
        config: dict[str, Any],
        answers: dict[str, Any],
    ) -> Self:
        """Begin the store, or go on with it. ``answers`` is the manifest of the answers.

        Errors: TrainDataError when the folder holds another store, is damaged, or lacks shards already answered.
        """
        settings = {"kept_with": "answers", "answers": answers["settings"], "taps": list(taps)}
        if (folder / MANIFEST).exists():
            manifest = read_manifest(folder, kind="features", version=STORE_VERSION)
            same_settings(manifest["settings"], settings, folder=folder)
        else:
            manifest = {**store_facts(target, taps=taps, config=config), "settings": settings, "states": "kept"}
        wanted = [entry for entry in answers["shards"] if entry["rows"]]
        # a shard that was finished just before a kill is written again, from the same answers
        manifest["shards"] = manifest["shards"][: len(wanted)]
        if len(manifest["shards"]) < len(wanted):
            raise TrainDataError(
                f"{folder} lacks {len(wanted) - len(manifest['shards'])} shards that are answered already; leave "
                "--features out, and run `specbench train features` when the answers are finished"
            )
        for shard in manifest["shards"]:
            verify_shard(folder, shard)
        return cls(folder, manifest)

    @property
    def taps(self) -> tuple[int, ...]:
        """Tapped boundaries."""
        return tuple(self.manifest["taps"])

    def add(self, rows: Sequence[TokenRow], states: Sequence[Tensor], normaliser: HeadNormaliser) -> None:
        """Write the shard of a block: ``states[i]`` [tokens run, (m + 1) d] belong to ``rows[i]``."""
        if not rows:
            return
        width = int(self.manifest["hidden_size"])
        shard = write_feature_shard(
            self.folder,
            f"{len(self.manifest['shards']):05d}",
            token_ids=np.concatenate([row.token_ids for row in rows]),
            loss_mask=np.concatenate([row.loss_mask for row in rows]),
            lengths=np.array([len(row.token_ids) for row in rows]),
            heldout=np.array([row.heldout for row in rows]),
            parts=_parts(rows, states, width * len(self.taps), normaliser),
            num_taps=len(self.taps),
            hidden_size=width,
        )
        self.manifest["shards"].append(shard)
        self.manifest["complete"] = False
        write_manifest(self.folder, self.manifest)

    def finish(self, answers: Path) -> None:
        """Mark the store as whole, with the hash of the answers it belongs to."""
        data = TokenData.open([answers], verify=False)
        self.manifest.update(complete=True, data_sha256=data.source_hash, target_tokens=int(data.loss_mask.sum()))
        write_manifest(self.folder, self.manifest)


def _parts(
    rows: Sequence[TokenRow], states: Sequence[Tensor], split: int, normaliser: HeadNormaliser
) -> Iterator[Computed]:
    held: list[Tensor] = []
    count = 0
    for index, (row, state) in enumerate(zip(rows, states, strict=True)):
        assert state.shape[0] == len(row.token_ids) - 1, "every token but the last was run"
        held += [state, state.new_zeros(1, state.shape[1])]
        count += len(row.token_ids)
        if count >= _PART_TOKENS or index == len(rows) - 1:
            whole = torch.cat(held)
            yield Computed(whole[:, :split], whole[:, split:], normaliser(whole[:, split:]))
            held, count = [], 0
