"""EAGLE-3 checkpoints of SafeAILab, SpecForge, AngelSlim and NVIDIA ModelOpt, and their 3.1 variants.

One layer whose attention reads [norm(embedding); norm(hidden)], usually a reduced draft vocabulary with ``d2t``
offsets, embedding the target's (github.com/SafeAILab/EAGLE, eagle/model/cnets.py).
"""

from __future__ import annotations

import json

from specbench_drafters.formats.backbone import layer_attention, read_backbone
from specbench_drafters.formats.fields import Fields, architecture
from specbench_drafters.formats.record import DraftKind
from specbench_drafters.formats.source import Reading, Source, make_spec
from specbench_drafters.formats.taps import boundary_ids, check_fc, checked, chosen_taps, eagle3_default, target_layers
from specbench_drafters.formats.vocabulary import read_vocabulary, reorder_rows

LAYOUTS = {"LlamaForCausalLMEagle3": "specforge", "Eagle3LlamaForCausalLM": "angelslim"}
_LAYER_KEY = "eagle_aux_hidden_state_layer_ids"
_USUAL_DEPTH = 7


def read(source: Source) -> Reading:
    """Spec of an EAGLE-3 folder. Errors: CheckpointError where a field cannot be decided."""
    config = source.folder.config
    nested = Fields(config, where=source.where).mapping("eagle_config")
    fields = Fields(config, nested, where=source.where)
    layout = "modelopt" if is_modelopt(source) else LAYOUTS.get(architecture(config), "safeailab")
    return read_eagle3(source, fields, layout=layout, taps=_taps(source, fields, nested), residual_default=False)


def read_eagle3(
    source: Source,
    fields: Fields,
    *,
    layout: str,
    taps: tuple[int, ...],
    residual_default: bool,
    gamma: int | None = None,
) -> Reading:
    """The part that all EAGLE-3 layouts share, once the tapped layers are known (empty: the post-norm state is fed)."""
    layers = source.num_layers()
    causal, window = layer_attention(fields, source=source, num_layers=layers, explicit=True, sliding_causal=True)
    family = "qwen3" if source.has("layers.0.self_attn.q_norm.weight") else "llama"
    backbone = read_backbone(fields, source=source, family=family, causal=causal, window=window)
    embed_from = "checkpoint" if source.has("embed_tokens.weight") else "target"
    target_hidden = fields.integer("target_hidden_size", default=_target_hidden(source, backbone.hidden_size))
    if target_hidden != backbone.hidden_size and embed_from == "target":
        raise source.error(
            f"the drafter is {backbone.hidden_size} wide and the target {target_hidden}, "
            "so it needs an 'embed_tokens.weight' of its own, which is missing"
        )
    if taps or source.has("fc.weight"):
        check_fc(source, count=len(taps) or 1, target_hidden=target_hidden, hidden=backbone.hidden_size)
    vocab_size = fields.integer("vocab_size")
    draft_size = fields.integer("draft_vocab_size", default=None)
    vocabulary = read_vocabulary(source, vocab_size=vocab_size, draft_size=draft_size)
    spec = make_spec(
        kind=DraftKind.EAGLE3,
        layout=layout,
        backbone=backbone,
        vocab_size=vocab_size,
        taps=taps,
        tap_final_norm=not taps,
        target_hidden_size=target_hidden,
        num_target_layers=target_layers(fields, source),
        gamma=gamma or _depth(source, fields),
        embed_from=embed_from,
        head_from="checkpoint" if source.has("lm_head.weight") else "target",
        d2t=vocabulary.ids,
        residual_normed=fields.boolean("norm_before_residual", default=residual_default),
        pre_fc_norm=_pre_fc_norm(source, fields),
        recycle=_recycle(source, fields, layout),
        notes=tuple(source.notes),
        raw_config=source.folder.config,
    )
    return Reading(spec, dict(source.stored), ready=reorder_rows(source, vocabulary))


def _target_hidden(source: Source, hidden: int) -> int:
    """The target's width: its own where it is known, otherwise the drafter's."""
    return source.target.hidden_size if source.target is not None else hidden


def is_modelopt(source: Source) -> bool:
    """Whether NVIDIA ModelOpt wrote the folder: its quantisation metadata, or a repository of that owner."""
    quantization = source.folder.config.get("quantization_config")
    metadata = [json.dumps(quantization, default=str)] if quantization else []
    metadata += [name for name in source.folder.others if name == "hf_quant_config.json"]
    if any("modelopt" in text.lower() or text == "hf_quant_config.json" for text in metadata):
        return True
    return any(part == "nvidia" or part.startswith("models--nvidia--") for part in source.folder.path.parts)


def _taps(source: Source, fields: Fields, nested: dict[str, object] | None) -> tuple[int, ...]:
    """Tapped layers. The nested key means layer outputs in SpecForge's world and boundaries in ModelOpt's."""
    depth = target_layers(fields, source)
    chosen = chosen_taps(source)
    if chosen is not None:
        return checked(chosen, source=source, num_layers=depth)
    if fields.boolean("use_aux_hidden_state", default=True) is False:
        source.notes.append("the target's final normed state is fed: 'use_aux_hidden_state' is false")
        return ()
    top = Fields(source.folder.config, where=source.where)
    if top.has(_LAYER_KEY):
        return boundary_ids(top, _LAYER_KEY, source=source, num_layers=depth)
    if nested is None or not Fields(nested, where=source.where).has(_LAYER_KEY):
        return eagle3_default(source, depth)
    ids = Fields(nested, where=source.where).ids(_LAYER_KEY)
    boundary = is_modelopt(source) or (depth is not None and max(ids) == depth)
    if boundary:
        source.notes.append(
            f"taps {list(ids)}: nested layer ids of a ModelOpt head are boundaries and are used as they are"
        )
        return checked(ids, source=source, num_layers=depth)
    taps = tuple(i + 1 for i in ids)
    source.notes.append(f"taps {list(taps)}: nested layer ids {list(ids)} count layer outputs from 0, so 1 is added")
    return checked(taps, source=source, num_layers=depth)


def _depth(source: Source, fields: Fields) -> int:
    for key in ("ttt_length", "length"):
        found = fields.integer(key, default=None)
        if found is not None:
            return int(found)
    source.notes.append(f"{_USUAL_DEPTH} drafts a round: no key says, EAGLE-3 is trained with {_USUAL_DEPTH} steps")
    return _USUAL_DEPTH


def _pre_fc_norm(source: Source, fields: Fields) -> str:
    concat, per_tap = source.has("input_norm.weight"), source.has("fc_norm.0.weight")
    if concat and per_tap:
        raise source.error("both 'input_norm' and 'fc_norm' are stored; a checkpoint has one or the other")
    if fields.boolean("norm_before_fc", default=concat) and not concat:
        raise source.error("config says norm_before_fc but there is no 'input_norm.weight'")
    if fields.boolean("fc_norm", default=per_tap) and not per_tap:
        raise source.error("config says fc_norm but there is no 'fc_norm.0.weight'")
    return "concat" if concat else ("per_tap" if per_tap else "none")


def _recycle(source: Source, fields: Fields, layout: str) -> str:
    if not fields.boolean("norm_output", default=False):
        return "pre_norm"
    if layout == "specforge":
        source.notes.append(
            "recycle post_norm: 'norm_output' is true; SpecForge before September 2026 trained the other way "
            "(--set METHOD.recycle=pre_norm), see --check"
        )
    else:
        source.notes.append("recycle post_norm: 'norm_output' is true (EAGLE-3.1)")
    return "post_norm"
