"""The tensors that a spec asks for, by canonical name: what is missing, what is left over, what has a wrong shape."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from specbench_drafters.formats.hf_layers import known, layer_shapes
from specbench_drafters.formats.record import Backbone, DrafterSpec, DraftKind

Shape = tuple[int, ...]


def required(spec: DrafterSpec, stored: Iterable[str] = ()) -> dict[str, Shape]:
    """Shapes of the tensors without which a checkpoint cannot run.

    ``stored`` are the names at hand: whether an MTP layer has experts is only told by them. Errors: CheckpointError
    when transformers cannot build the layer.
    """
    hidden = spec.backbone.hidden_size
    width = (len(spec.taps) + int(spec.tap_final_norm)) * spec.target_hidden_size
    found: dict[str, Shape] = {"norm.weight": (hidden,)}
    if spec.embed_from == "checkpoint":
        found["embed_tokens.weight"] = (spec.vocab_size, hidden)
    if spec.head_from == "checkpoint":
        found["lm_head.weight"] = (draft_vocab(spec), hidden)
    if spec.kind in (DraftKind.DSPARK, DraftKind.DFLASH):
        found |= {"fc.weight": (hidden, width), "hidden_norm.weight": (hidden,)} | _heads(spec)
    elif spec.kind == DraftKind.EAGLE3:
        found |= _eagle3(spec, width)
    else:
        found |= {"input_proj.weight": (hidden, hidden + spec.target_hidden_size), "token_norm.weight": (hidden,)}
        found |= {"hidden_norm.weight": (spec.target_hidden_size,)}
    for index in range(spec.backbone.num_layers):
        if known(spec.backbone.family):
            sparse = any(name.startswith(f"layers.{index}.mlp.experts.") for name in stored)
            shapes = layer_shapes(spec.backbone.family, spec.layer_config, sparse=sparse)
            found |= {f"layers.{index}.{name}": shape for name, shape in shapes.items()}
            continue
        first_eagle = spec.kind == DraftKind.EAGLE3 and index == 0
        found |= layer(spec.backbone, index, inputs=2 * hidden if first_eagle else hidden)
    if spec.kind == DraftKind.EAGLE3:
        found["layers.0.hidden_norm.weight"] = (hidden,)
    return found


def optional(spec: DrafterSpec) -> dict[str, Shape]:
    """Shapes of tensors that may be there and are used when they are."""
    backbone = spec.backbone
    hidden = backbone.hidden_size
    found: dict[str, Shape] = {}
    if spec.kind in (DraftKind.DSPARK, DraftKind.DFLASH):
        found["mask_embedding"] = (hidden,)
    if spec.kind == DraftKind.EAGLE3 and spec.tap_final_norm and not spec.taps:
        found["fc.weight"] = (hidden, spec.target_hidden_size)
    for index in range(backbone.num_layers):
        at = f"layers.{index}."
        if backbone.attention_bias and not known(backbone.family):
            found[at + "self_attn.o_proj.bias"] = (hidden,)
        if backbone.family == "gemma4":
            found[at + "self_attn.v_proj.weight"] = (backbone.num_kv_heads * backbone.head_dim, hidden)
    return found


def draft_vocab(spec: DrafterSpec) -> int:
    """Size of the draft vocabulary."""
    return spec.vocab_size if spec.d2t is None else int(spec.d2t.numel())


def layer(backbone: Backbone, index: int, *, inputs: int) -> dict[str, Shape]:
    """One Llama, Qwen3 or Gemma4 layer; ``inputs`` is the width that the attention projections read."""
    at, hidden = f"layers.{index}.", backbone.hidden_size
    queries, keys = backbone.num_heads * backbone.head_dim, backbone.num_kv_heads * backbone.head_dim
    found: dict[str, Shape] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (queries, inputs),
        "self_attn.k_proj.weight": (keys, inputs),
        "self_attn.o_proj.weight": (hidden, queries),
        "mlp.gate_proj.weight": (backbone.intermediate_size, hidden),
        "mlp.up_proj.weight": (backbone.intermediate_size, hidden),
        "mlp.down_proj.weight": (hidden, backbone.intermediate_size),
    }
    if backbone.family == "gemma4":
        found |= {"pre_feedforward_layernorm.weight": (hidden,), "post_feedforward_layernorm.weight": (hidden,)}
        found["layer_scalar"] = (1,)
    else:
        found["self_attn.v_proj.weight"] = (keys, inputs)
    if backbone.qk_norm:
        found |= {"self_attn.q_norm.weight": (backbone.head_dim,), "self_attn.k_norm.weight": (backbone.head_dim,)}
    if backbone.attention_bias:
        found |= {"self_attn.q_proj.bias": (queries,), "self_attn.k_proj.bias": (keys,)}
        if backbone.family != "gemma4":
            found["self_attn.v_proj.bias"] = (keys,)
    return {at + name: shape for name, shape in found.items()}


def _heads(spec: DrafterSpec) -> dict[str, Shape]:
    hidden, rank = spec.backbone.hidden_size, spec.markov_rank
    found: dict[str, Shape] = {}
    if spec.markov != "none":
        found["markov_head.markov_w1.weight"] = (spec.vocab_size, rank)
        found["markov_head.markov_w2.weight"] = (draft_vocab(spec), rank)
    if spec.markov == "gated":
        found |= {"markov_head.gate_proj.weight": (rank, hidden + rank), "markov_head.gate_proj.bias": (rank,)}
    if spec.markov == "rnn":
        found["markov_head.joint_proj.weight"] = (3 * rank, 2 * rank + hidden)
        found["markov_head.joint_proj.bias"] = (3 * rank,)
    if spec.confidence != "none":
        features = hidden + (rank if spec.confidence == "hidden+markov" else 0)
        found["confidence_head.proj.weight"] = (1, features)
    if spec.confidence_bias:
        found["confidence_head.proj.bias"] = (1,)
    return found


def _eagle3(spec: DrafterSpec, width: int) -> dict[str, Shape]:
    found: dict[str, Shape] = {}
    if spec.taps:
        found["fc.weight"] = (spec.backbone.hidden_size, width)
    if spec.pre_fc_norm == "concat":
        found["input_norm.weight"] = (width,)
    if spec.pre_fc_norm == "per_tap":
        count = len(spec.taps) + int(spec.tap_final_norm)
        found |= {f"fc_norm.{j}.weight": (spec.target_hidden_size,) for j in range(count)}
    return found


def wrong_shapes(wanted: Mapping[str, Shape], seen: Mapping[str, Shape]) -> list[str]:
    """One phrase for every tensor whose shape is not the wanted one."""
    return [
        f"'{name}' has shape {list(seen[name])}, expected {list(shape)}"
        for name, shape in wanted.items()
        if name in seen and seen[name] != shape
    ]
