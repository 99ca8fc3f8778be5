"""DeepSpec checkpoints: DSpark, DFlash with shifted slots, EAGLE-3 with five taps and the full vocabulary.

Keys are flat, a copy of the target's text configuration with overrides. A block of gamma rows drafts gamma tokens: the
anchor row predicts too (github.com/deepseek-ai/DeepSpec, deepspec/modeling/dspark).
"""

from __future__ import annotations

from specbench_drafters.formats.backbone import gemma4_backbone, gemma_embed_scale, plain_attention, read_backbone
from specbench_drafters.formats.fields import Fields, architecture
from specbench_drafters.formats.heads import read_heads
from specbench_drafters.formats.record import Backbone, DraftKind
from specbench_drafters.formats.source import Reading, Source, make_spec
from specbench_drafters.formats.taps import check_fc, layer_output_ids, target_layers

LAYOUT = "deepspec"


def read(source: Source) -> Reading:
    """Spec of a DeepSpec folder. Errors: CheckpointError where a field cannot be decided."""
    fields = Fields(source.folder.config, where=source.where)
    if "Eagle3" in architecture(source.folder.config):
        return _read_eagle3(source, fields)
    return _read_block(source, fields)


def _backbone(source: Source, fields: Fields, *, causal: bool) -> Backbone:
    flags, windows = plain_attention(source.num_layers(), causal=causal)
    if architecture(source.folder.config).startswith("Gemma4"):
        return gemma4_backbone(fields, source=source, causal=flags)
    return read_backbone(fields, source=source, family="qwen3", causal=flags, window=windows)


def _common(source: Source, fields: Fields, backbone: Backbone) -> dict[str, object]:
    """Fields that the three methods share: sizes, taps, stored embedding and head."""
    depth = target_layers(fields, source)
    taps = layer_output_ids(fields, "target_layer_ids", source=source, num_layers=depth)
    check_fc(source, count=len(taps), target_hidden=backbone.hidden_size, hidden=backbone.hidden_size)
    embed_from = "checkpoint" if source.has("embed_tokens.weight") else "target"
    head_from = "checkpoint" if source.has("lm_head.weight") else "target"
    for part, found in (("embed_tokens.weight", embed_from), ("lm_head.weight", head_from)):
        if found == "target":
            source.notes.append(f"no {part} stored, as this format normally has; the target's is used")
    gemma = backbone.family == "gemma4"
    return {
        "layout": LAYOUT,
        "backbone": backbone,
        "vocab_size": fields.integer("vocab_size"),
        "taps": taps,
        "target_hidden_size": backbone.hidden_size,
        "num_target_layers": depth,
        "embed_from": embed_from,
        "embed_scale": gemma_embed_scale(backbone.hidden_size) if gemma and embed_from == "checkpoint" else None,
        "head_from": head_from,
        "softcap": fields.number("final_logit_softcapping", default=None),
        "raw_config": source.folder.config,
    }


def _read_block(source: Source, fields: Fields) -> Reading:
    backbone = _backbone(source, fields, causal=False)
    heads = read_heads(fields, source=source, hidden=backbone.hidden_size)
    rows = fields.integer("block_size")
    common = _common(source, fields, backbone)
    if heads.kind == DraftKind.DFLASH:
        source.notes.append("DFlash by DeepSpec: slots are shifted (slot k predicts anchor + k + 1), unlike z-lab's")
    spec = make_spec(
        kind=heads.kind,
        gamma=rows,
        block_inputs=rows,
        slot_shift=1,
        mask_token_id=fields.integer("mask_token_id", minimum=0),
        notes=tuple(source.notes),
        **common,
        **heads.fields(),
    )
    return Reading(spec, dict(source.stored))


def _read_eagle3(source: Source, fields: Fields) -> Reading:
    backbone = _backbone(source, fields, causal=True)
    common = _common(source, fields, backbone)
    steps = fields.integer("ttt_length", default=None)
    if steps is None:
        source.notes.append("7 drafts a round: no 'ttt_length', the format's usual training depth")
    spec = make_spec(kind=DraftKind.EAGLE3, gamma=steps or 7, notes=tuple(source.notes), **common)
    return Reading(spec, dict(source.stored))
