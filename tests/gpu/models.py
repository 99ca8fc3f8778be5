"""Targets and drafters of real shapes with random weights: what they cost, whatever they would say."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import torch
import transformers as tf
from specbench_drafters.formats.record import Backbone, DrafterSpec, DraftKind, Rope
from specbench_drafters.formats.source import make_spec
from specbench_drafters.vanilla import VanillaDrafter
from torch import Tensor

from specbench.api import Drafter
from specbench.engine.target import Target
from specbench.types import TargetView
from tests.bench.support_random_drafters import from_spec
from tests.gpu.scales import Scale, TargetShape

METHODS = ("mtp", "eagle3", "dflash", "dspark")
_POSITIONS = 40_960
_NORM_EPS, _ROPE_BASE = 1e-6, 1e6


def random_target(shape: TargetShape, *, device: torch.device, dtype: torch.dtype) -> Target:
    """A Qwen3 of this shape; its weights are drawn on the device."""
    config = tf.Qwen3Config(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=_POSITIONS,
        rms_norm_eps=_NORM_EPS,
        rope_parameters={"rope_type": "default", "rope_theta": _ROPE_BASE},
        tie_word_embeddings=shape.tied,
    )
    torch.manual_seed(0)
    with torch.device(device):
        model = tf.AutoModelForCausalLM.from_config(config, dtype=dtype)
    return Target(model.eval(), name=shape.name)


def drafter_spec(method: str, *, k: int, shape: TargetShape, scale: Scale) -> DrafterSpec:
    """The record of a published drafter's shape: one layer for the chains, ``scale.draft_layers`` for the blocks.

    Sizes as DeepSpec publishes them: the target's own widths, the whole vocabulary, five taps.
    """
    kind = DraftKind(method)
    block = kind in (DraftKind.DFLASH, DraftKind.DSPARK)
    layers = scale.draft_layers if block else 1
    backbone = Backbone(
        family="qwen3",
        num_layers=layers,
        hidden_size=shape.hidden,
        num_heads=shape.heads,
        num_kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.intermediate,
        norm_eps=_NORM_EPS,
        activation="silu",
        attention_bias=False,
        qk_norm=True,
        rope=Rope(theta=_ROPE_BASE),
        causal=(not block,) * layers,
        window=(None,) * layers,
        max_position=None,
    )
    heads = {"markov": "vanilla", "markov_rank": scale.rank, "confidence": "hidden+markov", "confidence_bias": True}
    return make_spec(
        kind=kind,
        layout="specbench",
        backbone=backbone,
        vocab_size=shape.vocab,
        taps=() if kind is DraftKind.MTP else shape.taps,
        tap_final_norm=kind is DraftKind.MTP,
        target_hidden_size=shape.hidden,
        num_target_layers=shape.layers,
        gamma=k,
        block_inputs=k if block else 0,
        mask_token_id=shape.vocab - 1 if block else None,
        recycle="post_norm" if kind is DraftKind.MTP else "pre_norm",
        **(heads if kind is DraftKind.DSPARK else {}),
    )


def random_drafter(
    method: str, *, k: int, shape: TargetShape, scale: Scale, target: TargetView, confidence_logit: float | None = None
) -> Drafter:
    """A drafter of ``k`` drafts a round; ``vanilla`` is the one without drafts.

    With ``confidence_logit`` every confidence has this logit, whatever the text: temperatures then set each position.
    """
    if method == "vanilla":
        return VanillaDrafter()
    spec = drafter_spec(method, k=k, shape=shape, scale=scale)
    given: dict[str, Tensor] = {}
    if confidence_logit is not None:
        width = shape.hidden + scale.rank
        given["confidence_head.proj.weight"] = torch.zeros(1, width, device=target.device)
        given["confidence_head.proj.bias"] = torch.full((1,), confidence_logit, device=target.device)
    return from_spec(spec, target=target, given=given)


def fingerprint(tensors: Iterable[tuple[str, Tensor]], *more: Any) -> str:
    """A hash of random weights: names, shapes and the 64-bit sum of each tensor's bit patterns, weighed by place."""
    state = hashlib.sha256(repr(more).encode())
    for name, tensor in sorted(tensors, key=lambda pair: pair[0]):
        bits = tensor.detach().contiguous().view(torch.int16 if tensor.element_size() == 2 else torch.int32).flatten()
        place = torch.arange(bits.numel(), device=bits.device) % 65_521 + 1
        total = int((bits.to(torch.int64) * place).sum()) if bits.numel() else 0
        state.update(f"{name} {tuple(tensor.shape)} {tensor.dtype} {total}\n".encode())
    return state.hexdigest()
