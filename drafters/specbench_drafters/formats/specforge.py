"""SpecForge's DSpark: DeepSpec's slots and heads in z-lab's container.

Everything but the block size sits in ``dflash_config``; slots are shifted, embedding and head are the target's
(github.com/sgl-project/SpecForge, specforge/algorithms and configs/*-dspark.json).
"""

from __future__ import annotations

from specbench_drafters.formats.backbone import layer_attention, read_backbone
from specbench_drafters.formats.heads import read_heads
from specbench_drafters.formats.source import Reading, Source, make_spec
from specbench_drafters.formats.taps import check_fc, layer_output_ids, target_layers
from specbench_drafters.formats.vocabulary import read_vocabulary, reorder_rows
from specbench_drafters.formats.zlab import explicit_causal, mask_token, nested_fields

LAYOUT = "specforge"


def read(source: Source) -> Reading:
    """Spec of a SpecForge DSpark folder. Errors: CheckpointError where a field cannot be decided."""
    fields = nested_fields(source)
    fields.string("attention_mode", default="gqa", choices=("gqa", "mha"))
    layers = source.num_layers()
    causal, window = layer_attention(
        fields, source=source, num_layers=layers, explicit=explicit_causal(fields), sliding_causal=True
    )
    family = "qwen3" if source.has("layers.0.self_attn.q_norm.weight") else "llama"
    backbone = read_backbone(fields, source=source, family=family, causal=causal, window=window)
    heads = read_heads(fields, source=source, hidden=backbone.hidden_size)
    depth = target_layers(fields, source)
    taps = layer_output_ids(fields, "target_layer_ids", source=source, num_layers=depth)
    target_hidden = fields.integer("target_hidden_size", default=backbone.hidden_size)
    check_fc(source, count=len(taps), target_hidden=target_hidden, hidden=backbone.hidden_size)
    rows = fields.integer("block_size")
    vocab_size = fields.integer("vocab_size")
    draft_size = fields.integer("draft_vocab_size", default=None)
    vocabulary = read_vocabulary(source, vocab_size=vocab_size, draft_size=draft_size)
    mask_token_id, ready = mask_token(source, fields)
    spec = make_spec(
        kind=heads.kind,
        layout=LAYOUT,
        backbone=backbone,
        vocab_size=vocab_size,
        taps=taps,
        target_hidden_size=target_hidden,
        num_target_layers=depth,
        gamma=rows,
        block_inputs=rows,
        slot_shift=1,
        mask_token_id=mask_token_id,
        embed_from="checkpoint" if source.has("embed_tokens.weight") else "target",
        embed_scale=fields.number("input_embedding_scale", default=None),
        head_from="checkpoint" if source.has("lm_head.weight") else "target",
        logit_scale=fields.number("output_multiplier", default=None),
        softcap=fields.number("final_logit_softcapping", default=None),
        d2t=vocabulary.ids,
        notes=tuple(source.notes),
        raw_config=source.folder.config,
        **heads.fields(),
    )
    return Reading(spec, dict(source.stored), ready=ready | reorder_rows(source, vocabulary))
