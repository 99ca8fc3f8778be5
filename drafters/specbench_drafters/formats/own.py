"""specbench's own compact layout: the whole spec in config.json, no embedding and no head unless they are trained.

``config.json`` holds ``specbench_drafter: 1`` and every field of the DrafterSpec by its name; ``model.safetensors`` the
canonical tensors and ``d2t`` [Vd] as absolute ids. A reduced vocabulary without ``lm_head.weight`` uses those rows of
the target's head. ``sts.json`` optionally holds the temperatures of the confidence logits.
"""

from __future__ import annotations

from dataclasses import fields as dataclass_fields
from typing import Any

import torch
from torch import Tensor

from specbench_drafters.formats.fields import Fields
from specbench_drafters.formats.files import read_json
from specbench_drafters.formats.record import Backbone, DrafterSpec, DraftKind, Rope
from specbench_drafters.formats.source import Reading, Source
from specbench_drafters.formats.vocabulary import read_own_map

LAYOUT = "specbench"
VERSION = 1
_ELSEWHERE = frozenset({"layout", "d2t", "notes", "raw_config", "sts_temperatures"})
_MARKER = "specbench_drafter"


def to_config(spec: DrafterSpec) -> dict[str, Any]:
    """The configuration that `read` turns back into an equal spec."""
    values: dict[str, Any] = {_MARKER: VERSION}
    for item in dataclass_fields(DrafterSpec):
        if item.name not in _ELSEWHERE and item.name != "backbone":
            value = getattr(spec, item.name)
            values[item.name] = list(value) if isinstance(value, tuple) else value
    values["kind"] = str(spec.kind)
    backbone = {item.name: getattr(spec.backbone, item.name) for item in dataclass_fields(Backbone)}
    backbone["rope"] = {item.name: getattr(spec.backbone.rope, item.name) for item in dataclass_fields(Rope)}
    values["backbone"] = {name: list(v) if isinstance(v, tuple) else v for name, v in backbone.items()}
    values["notes"] = list(spec.notes)
    return values


def read(source: Source) -> Reading:
    """Spec of a folder in our layout. Errors: CheckpointError for an unknown, missing or wrong key."""
    config = source.folder.config
    fields = Fields(config, where=source.where)
    version = fields.integer(_MARKER)
    if version != VERSION:
        raise source.error(f"written for version {version} of specbench's layout, this program reads {VERSION}")
    known = {item.name for item in dataclass_fields(DrafterSpec)} - (_ELSEWHERE - {"notes"}) | {_MARKER}
    unknown = sorted(set(config) - known)
    if unknown:
        raise source.error(f"config.json has an unknown key '{unknown[0]}'")
    d2t = read_own_map(source, vocab_size=fields.integer("vocab_size"))
    spec = DrafterSpec(
        layout=LAYOUT,
        d2t=d2t,
        notes=(*source.notes, *fields.strings("notes", default=())),
        raw_config=config,
        sts_temperatures=_temperatures(source, fields),
        backbone=_backbone(source, fields),
        **_scalars(fields),
    )
    return Reading(spec, dict(source.stored))


def _scalars(fields: Fields) -> dict[str, Any]:
    taps = fields.raw("taps")
    return {
        "kind": DraftKind(fields.string("kind", choices=tuple(DraftKind))),
        "vocab_size": fields.integer("vocab_size"),
        "taps": () if taps == [] else fields.ids("taps"),
        "tap_final_norm": fields.boolean("tap_final_norm"),
        "target_hidden_size": fields.integer("target_hidden_size"),
        "num_target_layers": fields.integer("num_target_layers", default=None),
        "gamma": fields.integer("gamma"),
        "block_inputs": fields.integer("block_inputs", minimum=0),
        "slot_shift": fields.integer("slot_shift", minimum=0),
        "mask_token_id": fields.integer("mask_token_id", default=None, minimum=0),
        "embed_from": fields.string("embed_from", choices=("checkpoint", "target")),
        "embed_scale": fields.number("embed_scale", default=None),
        "head_from": fields.string("head_from", choices=("checkpoint", "target")),
        "logit_scale": fields.number("logit_scale", default=None),
        "softcap": fields.number("softcap", default=None),
        "one_plus_norm": fields.boolean("one_plus_norm"),
        "residual_normed": fields.boolean("residual_normed"),
        "pre_fc_norm": fields.string("pre_fc_norm", choices=("none", "concat", "per_tap")),
        "recycle": fields.string("recycle", choices=("pre_norm", "post_norm")),
        "concat_order": fields.string("concat_order", choices=("embedding,hidden", "hidden,embedding")),
        "zero_embedding_at_position_0": fields.boolean("zero_embedding_at_position_0"),
        "markov": fields.string("markov", choices=("none", "vanilla", "gated", "rnn")),
        "markov_rank": fields.integer("markov_rank", minimum=0),
        "confidence": fields.string("confidence", choices=("none", "hidden", "hidden+markov")),
        "confidence_bias": fields.boolean("confidence_bias"),
        "layer_config": fields.mapping("layer_config") or {},
    }


def _backbone(source: Source, fields: Fields) -> Backbone:
    inner = Fields(fields.mapping("backbone"), where=f"{source.where}: backbone")
    rope = Fields(inner.mapping("rope"), where=f"{source.where}: backbone.rope")
    layers = inner.integer("num_layers")
    causal, window = inner.raw("causal"), inner.raw("window")
    if not isinstance(causal, list) or len(causal) != layers or not all(isinstance(flag, bool) for flag in causal):
        raise source.error(
            f"config key 'backbone.causal' must be a list of {layers} true or false, found {causal!r:.60}"
        )
    if not isinstance(window, list) or len(window) != layers or not all(w is None or _is_size(w) for w in window):
        raise source.error(
            f"config key 'backbone.window' must be a list of {layers} sizes or null, found {window!r:.60}"
        )
    return Backbone(
        family=inner.string("family"),
        num_layers=layers,
        hidden_size=inner.integer("hidden_size"),
        num_heads=inner.integer("num_heads"),
        num_kv_heads=inner.integer("num_kv_heads"),
        head_dim=inner.integer("head_dim"),
        intermediate_size=inner.integer("intermediate_size"),
        norm_eps=inner.number("norm_eps"),
        activation=inner.string("activation"),
        attention_bias=inner.boolean("attention_bias"),
        qk_norm=inner.boolean("qk_norm"),
        rope=Rope(rope.number("theta"), rope.mapping("scaling") or {}, rope.number("partial_factor", default=1.0)),
        causal=tuple(causal),
        window=tuple(window),
        max_position=inner.integer("max_position", default=None),
    )


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _temperatures(source: Source, fields: Fields) -> tuple[float, ...] | None:
    """``sts.json``: one positive temperature a drafted position, in the form that serving engines exchange."""
    if "sts.json" not in source.folder.others:
        return None
    found = read_json(source.folder.path / "sts.json").get("temperatures")
    gamma = fields.integer("gamma")
    usable = isinstance(found, list) and len(found) == gamma and all(_is_temperature(value) for value in found)
    if not usable:
        raise source.error(f"sts.json must hold 'temperatures', a list of {gamma} numbers above 0")
    return tuple(float(value) for value in found or ())


def _is_temperature(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e6


def map_tensor(spec: DrafterSpec) -> dict[str, Tensor]:
    """The ``d2t`` tensor of our layout: absolute ids, absent for the full vocabulary."""
    return {} if spec.d2t is None else {"d2t": spec.d2t.to(torch.int64).contiguous()}
