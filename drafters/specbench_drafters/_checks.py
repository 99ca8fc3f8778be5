"""What every drafter with a checkpoint checks while it is built: its kind, its weights, its reach."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from specbench.errors import CheckpointError, DrafterError
from specbench.types import TargetView
from specbench_drafters.formats.record import DraftKind, LoadedCheckpoint


def check_kind(loaded: LoadedCheckpoint, kind: DraftKind) -> None:
    """Errors: DrafterError when the checkpoint is for another method."""
    if loaded.spec.kind is not kind:
        raise DrafterError(
            f"{loaded.path} is a {loaded.spec.kind.value} checkpoint ({loaded.spec.layout} layout), not {kind.value}; "
            f"use --method {loaded.spec.kind.value.replace('_', '-')}"
        )


def warn_if_shorter(limit: int | None, *, target: TargetView, remedy: str = "") -> None:
    """A UserWarning where the run may outgrow the ``limit`` tokens that the drafter can draft for (None: unlimited).

    ``remedy`` names an option that lifts the limit, as a clause of its own.
    """
    if limit is not None and limit < target.max_context:
        warnings.warn(
            f"the drafter was made for {limit} positions and the run allows {target.max_context}; longer rows are "
            f"decoded without drafts{remedy}",
            stacklevel=4,
        )


def draft_height(loaded: LoadedCheckpoint) -> int:
    """How many tokens the draft head names. Errors: CheckpointError when it is not stored though it should be."""
    spec = loaded.spec
    if spec.head_from == "target":
        return spec.vocab_size if spec.d2t is None else int(spec.d2t.numel())
    if "lm_head.weight" not in loaded.tensors:
        raise CheckpointError(f"{loaded.path} lacks lm_head.weight; it is incomplete or its config.json is for another")
    return int(loaded.tensors["lm_head.weight"].shape[0])


def fill(model: nn.Module, tensors: Mapping[str, Tensor], *, path: Path) -> None:
    """Give a model built on the meta device its weights.

    Errors: CheckpointError naming the first tensor that is missing, unexpected, misshapen or not finite.
    """
    expected = {name: tuple(t.shape) for name, t in model.state_dict().items()}
    missing = sorted(set(expected) - set(tensors))
    if missing:
        raise CheckpointError(f"{path} lacks {len(missing)} tensors, first {missing[0]}; download it again")
    for name in sorted(tensors):
        if name not in expected:
            raise CheckpointError(
                f"{path} holds tensor {name}, for which its config.json names no module; running without it would "
                "draft wrongly"
            )
        seen = tuple(tensors[name].shape)
        if seen != expected[name]:
            raise CheckpointError(
                f"{path}: {name} has shape {seen}, its config.json asks for {expected[name]}; the two do not belong "
                "together"
            )
        if not bool(torch.isfinite(tensors[name]).all()):
            raise CheckpointError(
                f"{path}: {name} holds NaN or infinite values; the file is damaged or training diverged"
            )
    model.load_state_dict(dict(tensors), strict=True, assign=True)
