"""z-lab's DFlash checkpoints: slots not shifted, embedding and head the target's.

A block of B rows (anchor and B-1 masks) drafts B-1 tokens, slot k predicting position anchor + k. Keys may sit in
``dflash_config`` or at top level; the nested value wins (github.com/z-lab/dflash, dflash/model.py).
"""

from __future__ import annotations

from specbench_drafters.formats.backbone import layer_attention, read_backbone
from specbench_drafters.formats.fields import Fields
from specbench_drafters.formats.files import read_mask_embedding
from specbench_drafters.formats.record import DraftKind
from specbench_drafters.formats.source import Derived, Reading, Source, make_spec
from specbench_drafters.formats.taps import check_fc, layer_output_ids, target_layers
from specbench_drafters.formats.vocabulary import read_vocabulary, reorder_rows

LAYOUT = "z-lab"
_DEFAULT_BLOCK = 16


def nested_fields(source: Source) -> Fields:
    """Reads ``dflash_config`` first, then the top level."""
    config = source.folder.config
    nested = config.get("dflash_config")
    if nested is not None and not isinstance(nested, dict):
        raise source.error(f"config key 'dflash_config' must be a dictionary, found {type(nested).__name__}")
    return Fields(nested or {}, config, where=source.where)


def explicit_causal(fields: Fields) -> bool | None:
    """Causality that rules every layer: ``is_causal``, else ``causal``, else sliding-window variants by ``use_swa``."""
    for key in ("is_causal", "causal"):
        found = fields.boolean(key, default=None)
        if found is not None:
            return bool(found)
    return False if fields.boolean("use_swa", default=False) else None


def read(source: Source) -> Reading:
    """Spec of a z-lab DFlash folder. Errors: CheckpointError where a field cannot be decided."""
    fields = nested_fields(source)
    layers = source.num_layers()
    causal, window = layer_attention(
        fields, source=source, num_layers=layers, explicit=explicit_causal(fields), sliding_causal=True
    )
    if fields.boolean("use_swa", default=False) and not any(window):
        window = (fields.integer("swa_window_size"),) * layers
    if fields.boolean("attention_sink_bias", default=False):
        raise source.error("attention sinks in draft layers are not supported")
    family = "qwen3" if source.has("layers.0.self_attn.q_norm.weight") else "llama"
    backbone = read_backbone(fields, source=source, family=family, causal=causal, window=window)
    depth = target_layers(fields, source)
    taps = layer_output_ids(fields, "target_layer_ids", source=source, num_layers=depth)
    target_hidden = fields.integer("target_hidden_size", default=backbone.hidden_size)
    check_fc(source, count=len(taps), target_hidden=target_hidden, hidden=backbone.hidden_size)
    rows = fields.integer("block_size", default=None, minimum=2)
    if rows is None:
        source.notes.append(f"block of {_DEFAULT_BLOCK} rows: no 'block_size', the format's default")
        rows = _DEFAULT_BLOCK
    vocab_size = fields.integer("vocab_size")
    vocabulary = read_vocabulary(
        source, vocab_size=vocab_size, draft_size=fields.integer("draft_vocab_size", default=None)
    )
    mask_token_id, ready = mask_token(source, fields)
    spec = make_spec(
        kind=DraftKind.DFLASH,
        layout=LAYOUT,
        backbone=backbone,
        vocab_size=vocab_size,
        taps=taps,
        target_hidden_size=target_hidden,
        num_target_layers=depth,
        gamma=rows - 1,
        block_inputs=rows,
        slot_shift=0,
        mask_token_id=mask_token_id,
        embed_from="checkpoint" if source.has("embed_tokens.weight") else "target",
        embed_scale=fields.number("input_embedding_scale", default=None),
        head_from="checkpoint" if source.has("lm_head.weight") else "target",
        logit_scale=fields.number("output_multiplier", default=None),
        softcap=fields.number("final_logit_softcapping", default=None),
        d2t=vocabulary.ids,
        notes=tuple(source.notes),
        raw_config=source.folder.config,
    )
    return Reading(spec, dict(source.stored), ready=ready | reorder_rows(source, vocabulary))


def mask_token(source: Source, fields: Fields) -> tuple[int, dict[str, Derived]]:
    """The mask token, and its embedding where a separate file brings one. Errors: CheckpointError when neither says."""
    ready: dict[str, Derived] = {}
    told: int | None = fields.integer("mask_token_id", default=None, minimum=0)
    separate = read_mask_embedding(source.folder)
    if separate is not None:
        ready["mask_embedding"] = Derived.of(separate[0])
        told = told if told is not None else separate[1]
        source.notes.append("the mask rows use the vector of mask_embedding.pt")
    chosen = source.overrides.get("mask_token_id", told)
    if chosen is None:
        raise source.error("config.json has no 'mask_token_id'; add it, or --set METHOD.mask_token_id=...")
    return int(chosen), ready
