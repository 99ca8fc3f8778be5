"""From MTP layers (the target's own, or a head's folder) to a drafter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

from specbench.drafting.chain import ChainDrafter
from specbench.drafting.inference import for_inference, head_rows, prepared
from specbench.drafting.vocab import checked_map
from specbench.errors import CheckpointError, ConfigError, DrafterError
from specbench.types import TargetView
from specbench_drafters._checks import check_kind, draft_height, fill
from specbench_drafters._sequential import (
    OPTIONS,
    as_target,
    chain_drafter,
    split_options,
)
from specbench_drafters.formats.hf_layers import known
from specbench_drafters.formats.load import load_checkpoint
from specbench_drafters.formats.record import DrafterSpec, DraftKind, LoadedCheckpoint
from specbench_drafters.mtp.layers import DenseLayers, FamilyLayers, LayerStack, refuse_recurrent
from specbench_drafters.mtp.model import MtpModel

_FED = ("post_norm", "pre_norm")


class Mtp(ChainDrafter):
    """Multi-token prediction: the layer that the target was trained with, used once or again on its own output."""

    options: ClassVar[Mapping[str, str]] = {
        **OPTIONS,
        "fed": "post_norm or pre_norm: which last state of the target the layer reads; default: the family's",
        "recycle": "post_norm or pre_norm: which own state is fed to the next step; default: the family's",
        "concat_order": "'embedding,hidden' or 'hidden,embedding'; default: the family's",
        "zero_embedding_at_position_0": "true or false; default: the family's",
    }

    @classmethod
    def load(cls, checkpoint: Path | None, *, target: TargetView, options: Mapping[str, Any]) -> Self:
        """Read the target's own MTP layers (``checkpoint`` None) or a head's folder, and build.

        Errors: DrafterError, CheckpointError, ConfigError (see `build`).
        """
        own, readings = split_options(options, known=cls.options)
        if "fed" in readings:
            own["fed"] = readings.pop("fed")
        refuse_recurrent(target)
        if checkpoint is None:
            return cls.build(_of_target(target, readings), target=target, options=own)
        loaded = load_checkpoint(checkpoint, target_config=target.config, overrides=readings)
        return cls.build(loaded, target=target, options=own)

    @classmethod
    def build(cls, loaded: LoadedCheckpoint, *, target: TargetView, options: Mapping[str, Any]) -> Self:
        """Build from a record and its tensors.

        ``loaded`` was read for this target's configuration, so sizes are checked. Errors: DrafterError for another kind
        of drafter, or a target that cannot be rolled back or has another width; CheckpointError for missing,
        misshapen or non-finite tensors or an invalid reduced vocabulary; ConfigError for a bad option.
        """
        check_kind(loaded, DraftKind.MTP)
        spec = _fed(loaded.spec, options.get("fed"), target=target)
        _check_width(spec, target=target)
        draft_vocab = draft_height(loaded)
        id_map = checked_map(spec.d2t, draft_size=draft_vocab, vocab_size=spec.vocab_size)
        with torch.device("meta"):
            stack = _stack(loaded, target=target)
            model = MtpModel(
                spec,
                stack=stack,
                draft_vocab=draft_vocab,
                embed=target.embed,
                head=prepared(head_rows(target.head, id_map=id_map), device=target.device),
            )
        fill(model, as_target(loaded.tensors, target=target, keep_float32=_kept_float32(target)), path=loaded.path)
        model.measure(device=target.device, dtype=target.dtype)
        for_inference(model, device=target.device)
        return chain_drafter(
            cls,
            model,
            spec=spec,
            target=target,
            options=options,
            id_map=id_map,
            default_context=None if _is_native(spec) else spec.backbone.max_position,
        )


def _is_native(spec: DrafterSpec) -> bool:
    return spec.layout.startswith("native-mtp")


def _of_target(target: TargetView, readings: Mapping[str, Any]) -> LoadedCheckpoint:
    """The MTP layers in the target's own folder. Errors: DrafterError where there are none that can be used."""
    hint = "name the folder of an MTP head with --drafter mtp=PATH, or use another method"
    if not target.model_dir:
        raise DrafterError(f"mtp needs weights and the folder of target '{target.name}' is not known; {hint}")
    try:
        return load_checkpoint(target.model_dir, target_config=target.config, overrides=readings)
    except CheckpointError as error:
        raise DrafterError(f"target '{target.name}' ships no MTP layers that can be used ({error}); {hint}") from error


def _stack(loaded: LoadedCheckpoint, *, target: TargetView) -> LayerStack:
    if known(loaded.spec.backbone.family):
        sparse = any(name.startswith("layers.0.mlp.experts.") for name in loaded.tensors)
        return FamilyLayers(loaded.spec, sparse=sparse, target=target)
    output_bias = "layers.0.self_attn.o_proj.bias" in loaded.tensors
    return DenseLayers(loaded.spec, output_bias=output_bias, target=target)


def _kept_float32(target: TargetView) -> tuple[str, ...]:
    """Parts of tensor names that the target's family keeps in float32 at any dtype (router weights)."""
    return tuple(getattr(target.model, "_keep_in_fp32_modules_strict", None) or ())


def _fed(spec: DrafterSpec, option: object, *, target: TargetView) -> DrafterSpec:
    """The spec with the user's choice of the target's state. Errors: ConfigError for another word."""
    if option is None:
        return spec
    if option not in _FED:
        raise ConfigError(f"fed is {option!r}; use {' or '.join(_FED)}")
    if option == "post_norm":
        return replace(spec, taps=(), tap_final_norm=True)
    return replace(spec, taps=(target.num_layers,), tap_final_norm=False)


def _check_width(spec: DrafterSpec, *, target: TargetView) -> None:
    """Errors: DrafterError where the layer does not fit the target's states, embedding or head."""
    width = spec.backbone.hidden_size
    if len(spec.taps) + int(spec.tap_final_norm) != 1:
        raise CheckpointError("an MTP layer reads exactly one state of the target; correct taps or tap_final_norm")
    if width != target.hidden_size or spec.target_hidden_size != target.hidden_size:
        raise DrafterError(
            f"the MTP layer is {width} wide, target '{target.name}' is {target.hidden_size} wide; use the head that "
            "belongs to this target"
        )
