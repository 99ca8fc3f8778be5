"""Features without a store: the target runs beside the drafter, for the sequences that are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from specbench.engine.target import Target
from specbench.errors import TrainDataError
from specbench.train.features import FeatureForward
from specbench.train.shards import TokenData
from specbench.train.store import FeatureBatch, bytes_per_token, flat_rows, split_of


class OnlineFeatures:
    """The `FeatureSource` that computes: what a store of the same answers and taps would hold, without the disk.

    It holds the target while it is open; close it, or use it as a context, before the target serves anything else.
    """

    def __init__(
        self, target: Target, data: TokenData, taps: Sequence[int], *, batch_tokens: int | None = None
    ) -> None:
        self.token_ids, self.loss_mask, self.sequences = data.token_ids, data.loss_mask, data.sequences
        self.taps = tuple(taps)
        self._heldout = data.heldout
        self._device = target.lm.device
        self._forward = FeatureForward(target, taps, batch_tokens=batch_tokens)
        self._forward.__enter__()
        hidden_size = int(target.config.hidden_size)
        self.meta: dict[str, Any] = {
            "kind": "features",
            "online": True,
            "target": data.target,
            "taps": list(self.taps),
            "hidden_size": hidden_size,
            "num_layers": int(target.config.num_hidden_layers),
            "vocab_size": target.vocab_size,
            "bytes_per_token": bytes_per_token(num_taps=len(self.taps), hidden_size=hidden_size),
            "data_sha256": data.source_hash,
            "target_tokens": int(data.loss_mask.sum()),
        }

    @classmethod
    def open(
        cls, folders: Sequence[str | Path], *, target: Target, taps: Sequence[int], unfinished: bool = False
    ) -> Self:
        """Over the answers in ``folders``. Errors: TrainDataError when they are absent, damaged or unfinished."""
        data = TokenData.open([Path(folder) for folder in folders])
        if not data.complete and not unfinished:
            raise TrainDataError(f"{folders[0]} is unfinished; finish it with `specbench train prepare`")
        return cls(target, data, taps)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the target."""
        self._forward.__exit__()

    @property
    def num_tokens(self) -> int:
        """T, prompts included."""
        return int(self.sequences[-1])

    @property
    def num_sequences(self) -> int:
        """N."""
        return len(self.sequences) - 1

    def split(self, name: str) -> NDArray[np.int64]:
        """Sequence numbers of "train" or "heldout", ascending. Errors: UnknownNameError."""
        return split_of(self._heldout, name)

    def gather(self, sequences: Sequence[int], *, device: str = "cpu") -> FeatureBatch:
        """The named sequences, in that order, through the target now."""
        starts, rows = flat_rows(self.sequences, sequences)
        ids = self.token_ids[rows]
        done = self._forward.compute(ids, list(np.diff(starts)))
        return FeatureBatch(
            sequences=tuple(int(s) for s in sequences),
            starts=starts,
            token_ids=torch.from_numpy(ids.astype(np.int64)).to(device),
            loss_mask=torch.from_numpy(self.loss_mask[rows]).to(device),
            hidden=done.hidden.to(device),
            last_hidden=done.last_hidden.to(device),
            log_normaliser=done.log_normaliser.to(device),
        )
