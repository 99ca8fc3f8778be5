"""The normalised record of a drafter checkpoint: one shape for everything that people publish.

Loaders translate a published layout into a `DrafterSpec` and tensors with canonical names; drafters read only those.
Canonical tensor names: ``fc.weight``, ``hidden_norm.weight``, ``norm.weight``, ``layers.{i}.*`` as in transformers
(``midlayer.*`` becomes ``layers.0.*``), ``embed_tokens.weight``, ``lm_head.weight``, ``fc_norm.{j}.weight``,
``input_norm.weight`` (norm before fc), ``markov_head.{markov_w1,markov_w2,gate_proj,joint_proj}.*``,
``confidence_head.proj.{weight,bias}``, ``mask_embedding``; MTP: ``input_proj.weight``, ``token_norm.weight``,
``hidden_norm.weight``, ``norm.weight`` (final) and ``layers.{i}.*``. ``d2t`` is kept in the spec, as absolute ids.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


class DraftKind(StrEnum):
    """The method that a checkpoint is for."""

    DSPARK = "dspark"
    DFLASH = "dflash"
    EAGLE3 = "eagle3"
    MTP = "mtp"
    CAUSAL_LM = "draft_model"


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding of the draft layers. ``scaling`` is the transformers dictionary (rope_type and its keys)."""

    theta: float
    scaling: dict[str, Any] = field(default_factory=dict)
    partial_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Backbone:
    """Sizes of the draft layers. ``causal[i]`` and ``window[i]`` rule attention inside a drafted block."""

    family: str  # "qwen3", "llama", "gemma4", or a transformers model_type for MTP layers
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    norm_eps: float
    activation: str
    attention_bias: bool
    qk_norm: bool
    rope: Rope
    causal: tuple[bool, ...]
    window: tuple[int | None, ...]
    max_position: int | None


@dataclass(frozen=True, slots=True)
class DrafterSpec:
    """What a checkpoint means. Every field is decided: a loader that cannot decide one raises CheckpointError."""

    kind: DraftKind
    layout: str  # "deepspec", "z-lab", "specforge", "speculators", "safeailab", "specbench", "native-mtp:FAMILY"
    backbone: Backbone
    vocab_size: int  # the target's
    taps: tuple[int, ...]  # Hugging Face indices, see types.Taps.boundaries
    tap_final_norm: bool  # the target's post-norm state is read (after the boundaries)
    target_hidden_size: int
    num_target_layers: int | None  # None where the checkpoint does not say
    gamma: int  # drafts a round that it was trained for
    block_inputs: int  # rows that enter a block: gamma, or gamma + 1 (0 for sequential drafters)
    slot_shift: int  # 1: slot k predicts anchor + k + 1; 0: slot k predicts anchor + k
    mask_token_id: int | None
    embed_from: str  # "checkpoint" or "target"
    embed_scale: float | None  # multiplies raw embedding rows; None: as the source embeds (target's module: inside)
    head_from: str  # "checkpoint" or "target"
    logit_scale: float | None
    softcap: float | None
    d2t: Tensor | None  # [Vd] int64 absolute target ids, strictly increasing; None: full vocabulary
    one_plus_norm: bool  # RMSNorm multiplies by 1 + w
    residual_normed: bool  # EAGLE-3: the residual is the normed hidden state
    pre_fc_norm: str  # "none", "concat", "per_tap"
    recycle: str  # "pre_norm" or "post_norm": which state a sequential drafter feeds back
    concat_order: str  # "embedding,hidden" or "hidden,embedding"
    zero_embedding_at_position_0: bool
    markov: str  # "none", "vanilla", "gated", "rnn"
    markov_rank: int
    confidence: str  # "none", "hidden", "hidden+markov"
    confidence_bias: bool
    notes: tuple[str, ...] = ()  # what was assumed, and why
    raw_config: dict[str, Any] = field(default_factory=dict)
    layer_config: dict[str, Any] = field(default_factory=dict)  # transformers keys of MTP layers of a HF family
    sts_temperatures: tuple[float, ...] | None = None  # per position, of the confidence logits; None: uncalibrated


@dataclass(frozen=True, slots=True)
class LoadedCheckpoint:
    """A spec, its tensors by canonical name, and what was left over."""

    spec: DrafterSpec
    tensors: dict[str, Tensor]
    missing: tuple[str, ...]
    unused: tuple[str, ...]
    path: Path
    sha256: str
