"""Drafters of the demo model's shape with random weights: what they cost, whatever they would accept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from specbench_drafters.dflash import PLUGIN as DFLASH
from specbench_drafters.dspark import PLUGIN as DSPARK
from specbench_drafters.eagle3 import PLUGIN as EAGLE3
from specbench_drafters.formats.record import Backbone, DrafterSpec, DraftKind, LoadedCheckpoint, Rope
from specbench_drafters.formats.shapes import required
from specbench_drafters.mtp import PLUGIN as MTP
from torch import Tensor

from specbench.api import Drafter
from specbench.types import TargetView

METHODS = ("mtp", "eagle3", "dflash", "dspark", "dspark-full")
SMALL_VOCABULARY, SMALL_RANK, FULL_RANK = 8192, 64, 256


def _spec(method: str, *, k: int, target: TargetView) -> DrafterSpec:
    config = target.config
    layers = 1 if method in ("mtp", "eagle3") else 2
    kind = DraftKind.DSPARK if method.startswith("dspark") else DraftKind(method)
    full = method == "dspark-full"
    block = kind in (DraftKind.DFLASH, DraftKind.DSPARK)
    backbone = Backbone(
        family="qwen3",
        num_layers=layers,
        hidden_size=config.hidden_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.hidden_size // config.num_attention_heads,
        intermediate_size=config.intermediate_size,
        norm_eps=1e-5,
        activation="silu",
        attention_bias=False,
        qk_norm=True,
        rope=Rope(theta=100_000.0),
        causal=(False,) * layers if block else (True,) * layers,
        window=(None,) * layers,
        max_position=None,
    )
    return DrafterSpec(
        kind=kind,
        layout="specbench",
        backbone=backbone,
        vocab_size=target.vocab_size,
        taps=() if method == "mtp" else (2, 15, 27),
        tap_final_norm=method == "mtp",
        target_hidden_size=config.hidden_size,
        num_target_layers=config.num_hidden_layers,
        gamma=k,
        block_inputs=k if block else 0,
        slot_shift=1,
        mask_token_id=0 if block else None,
        embed_from="target",
        embed_scale=None,
        head_from="target" if full else "checkpoint",
        logit_scale=None,
        softcap=None,
        d2t=None if full else torch.arange(SMALL_VOCABULARY) * 5,
        one_plus_norm=False,
        residual_normed=False,
        pre_fc_norm="none",
        recycle="post_norm" if method == "mtp" else "pre_norm",
        concat_order="embedding,hidden",
        zero_embedding_at_position_0=False,
        markov="vanilla" if method.startswith("dspark") else "none",
        markov_rank=(FULL_RANK if full else SMALL_RANK) if method.startswith("dspark") else 0,
        confidence="hidden+markov" if method.startswith("dspark") else "none",
        confidence_bias=method.startswith("dspark"),
    )


def random_drafter(method: str, *, k: int, target: TargetView) -> Drafter:
    """A drafter of ``k`` drafts a round for the demo model."""
    return from_spec(_spec(method, k=k, target=target), target=target)


def from_spec(spec: DrafterSpec, *, target: TargetView, given: Mapping[str, Tensor] | None = None) -> Drafter:
    """The drafter of a spec with random weights, made on the target's device; ``given`` replaces tensors by name.

    It knows no stop token: what it drafts is noise, and a stop in it would shorten a round by chance.
    """
    noise = torch.Generator(target.device).manual_seed(0)
    tensors = {name: _published(shape, noise) for name, shape in required(spec).items()} | dict(given or {})
    loaded = LoadedCheckpoint(spec, tensors, (), (), Path("random"), "random")
    plugins: dict[DraftKind, Any] = {
        DraftKind.MTP: MTP, DraftKind.EAGLE3: EAGLE3, DraftKind.DFLASH: DFLASH, DraftKind.DSPARK: DSPARK
    }  # fmt: skip
    drafter: Drafter = plugins[spec.kind].build(loaded, target=replace(target, stop_ids=frozenset()), options={})
    return drafter


def _published(shape: tuple[int, ...], noise: torch.Generator) -> Tensor:
    """Random weights of unit gain, rounded to bfloat16 as published ones are; vectors are ones."""
    if len(shape) == 1:
        return torch.ones(shape, device=noise.device)
    return (torch.randn(shape, generator=noise, device=noise.device) * shape[-1] ** -0.5).bfloat16().float()
