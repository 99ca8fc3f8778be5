"""From an EAGLE-3 checkpoint and a target to a drafter."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

from specbench.drafting.chain import ChainDrafter
from specbench.drafting.inference import for_inference, head_rows, prepared
from specbench.drafting.vocab import checked_map
from specbench.errors import CheckpointError, DrafterError
from specbench.types import TargetView
from specbench_drafters._checks import check_kind, draft_height, fill
from specbench_drafters._sequential import (
    OPTIONS,
    as_target,
    chain_drafter,
    split_options,
)
from specbench_drafters.eagle3.model import Eagle3Model
from specbench_drafters.formats.load import load_checkpoint
from specbench_drafters.formats.record import DraftKind, LoadedCheckpoint


class Eagle3(ChainDrafter):
    """EAGLE-3: one layer over three or five tapped states, drafting a chain of tokens."""

    options: ClassVar[Mapping[str, str]] = {
        **OPTIONS,
        "recycle": "pre_norm or post_norm: the state fed to the next step (3.1 checkpoints: post_norm)",
        "residual_normed": "true or false: whether the first residual is the normed state",
        "taps": "states of the target to read, as Hugging Face indices, such as 2,18,33",
        "tap_final_norm": "true or false: also read the target's state after its final norm",
        "embed_from": "checkpoint or target: whose embedding",
        "head_from": "checkpoint or target: whose output head",
        "rope_theta": "base of the rotary embedding",
    }

    @classmethod
    def load(cls, checkpoint: Path | None, *, target: TargetView, options: Mapping[str, Any]) -> Self:
        """Read a checkpoint folder and build. Errors: DrafterError, CheckpointError, ConfigError (see `build`)."""
        own, readings = split_options(options, known=cls.options)
        if checkpoint is None:
            raise DrafterError("eagle3 needs a checkpoint; name a folder or repository with --drafter eagle3=PATH")
        loaded = load_checkpoint(checkpoint, target_config=target.config, overrides=readings)
        return cls.build(loaded, target=target, options=own)

    @classmethod
    def build(cls, loaded: LoadedCheckpoint, *, target: TargetView, options: Mapping[str, Any]) -> Self:
        """Build from a record and its tensors.

        ``loaded`` was read for this target's configuration, so sizes are checked. Errors: DrafterError for another kind
        of drafter or another width; CheckpointError for missing, misshapen or non-finite tensors or an invalid reduced
        vocabulary; ConfigError for a bad option.
        """
        spec = loaded.spec
        check_kind(loaded, DraftKind.EAGLE3)
        _check_widths(loaded, target=target)
        draft_vocab = draft_height(loaded)
        id_map = checked_map(spec.d2t, draft_size=draft_vocab, vocab_size=spec.vocab_size)
        with torch.device("meta"):
            model = Eagle3Model(
                spec,
                draft_vocab=draft_vocab,
                has_fc="fc.weight" in loaded.tensors,
                output_bias="layers.0.self_attn.o_proj.bias" in loaded.tensors,
                max_context=target.max_context,
                embed=target.embed,
                head=prepared(head_rows(target.head, id_map=id_map), device=target.device),
                device=target.device,
            )
        fill(model, as_target(loaded.tensors, target=target), path=loaded.path)
        for_inference(model, device=target.device)
        return chain_drafter(
            cls,
            model,
            spec=spec,
            target=target,
            options=options,
            id_map=id_map,
            default_context=spec.backbone.max_position,
        )


def _check_widths(loaded: LoadedCheckpoint, *, target: TargetView) -> None:
    """Errors: DrafterError where something borrowed from the target, or fed unprojected, has another width."""
    spec = loaded.spec
    width = spec.backbone.hidden_size
    taps = (len(spec.taps) + int(spec.tap_final_norm)) * spec.target_hidden_size
    if "fc.weight" not in loaded.tensors and taps != width:
        raise CheckpointError(f"{loaded.path} has no fc.weight to bring {taps} tapped features to its width of {width}")
    for what, source in (("embedding", spec.embed_from), ("head", spec.head_from)):
        if source == "target" and width != target.hidden_size:
            raise DrafterError(
                f"the drafter is {width} wide and stores no {what} of its own, the target's is {target.hidden_size} "
                "wide; use the drafter that belongs to this target"
            )
