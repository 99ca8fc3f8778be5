"""The ``speculators`` layout of the vLLM project: eagle3, dflash, dspark and mtp.

Sizes lie in ``transformer_layer_config`` with transformers' defaults left out; tapped layers are Hugging Face indices;
``d2t`` holds offsets (github.com/vllm-project/speculators, src/speculators).
"""

from __future__ import annotations

from typing import Any

from specbench_drafters.formats.backbone import layer_attention, read_backbone
from specbench_drafters.formats.eagle3 import read_eagle3
from specbench_drafters.formats.fields import Fields
from specbench_drafters.formats.heads import read_heads
from specbench_drafters.formats.hf_layers import complete_config
from specbench_drafters.formats.mtp_families import family_of, read_mtp
from specbench_drafters.formats.record import DraftKind
from specbench_drafters.formats.source import Reading, Source, make_spec
from specbench_drafters.formats.taps import boundary_ids, check_fc, chosen_taps, eagle3_default, target_layers
from specbench_drafters.formats.vocabulary import read_vocabulary, reorder_rows

LAYOUT = "speculators"
_DEFAULT_BLOCK = 8
_LAYER_KEYS = ("aux_hidden_state_layer_ids", "eagle_aux_hidden_state_layer_ids")
_MTP_NAMES = {"hidden_layernorm": "hidden_norm", "token_layernorm": "token_norm", "final_layernorm": "norm"}


def read(source: Source) -> Reading:
    """Spec of a speculators folder. Errors: CheckpointError where a field cannot be decided."""
    top = Fields(source.folder.config, where=source.where)
    layer_config = top.mapping("transformer_layer_config") or top.mapping("transformer_config")
    if layer_config is None:
        raise source.error("config.json has no 'transformer_layer_config'; speculators keep all sizes there")
    model_type = Fields(layer_config, where=source.where).string("model_type")
    full = complete_config(model_type, layer_config, where=source.where)
    fields = Fields(_algorithm_keys(source.folder.config), full, where=source.where)
    kind = top.string("speculators_model_type")
    if kind == "eagle3":
        return _read_eagle3(source, fields)
    if kind == "mtp":
        return _read_mtp(source, fields, full, model_type)
    return _read_block(source, fields, dspark=kind == "dspark")


def _algorithm_keys(config: dict[str, Any]) -> dict[str, Any]:
    """Top-level keys without what transformers writes for itself, so that sizes come from the layer configuration."""
    own = ("dtype", "torch_dtype", "architectures", "auto_map", "transformers_version", "tie_word_embeddings")
    return {key: value for key, value in config.items() if key not in own and not key.startswith("transformer_")}


def proposed_tokens(source: Source) -> int | None:
    """``speculative_tokens`` of the first proposal method, None where the configuration does not say."""
    top = Fields(source.folder.config, where=source.where)
    outer = Fields(top.mapping("speculators_config"), where=source.where)
    methods = outer.raw("proposal_methods")
    first = methods[0] if isinstance(methods, list) and methods and isinstance(methods[0], dict) else None
    found: int | None = Fields(first, where=source.where).integer("speculative_tokens", default=None)
    return found


def _taps(source: Source, fields: Fields, *, default: bool) -> tuple[int, ...]:
    depth = target_layers(fields, source)
    key = next((key for key in _LAYER_KEYS if fields.has(key)), None)
    if key is not None:
        return boundary_ids(fields, key, source=source, num_layers=depth)
    if default or chosen_taps(source) is not None:
        return eagle3_default(source, depth)
    raise source.error(
        f"config.json has no '{_LAYER_KEYS[0]}' (the target_layer_ids of this layout); "
        "guessing it would only lower acceptance: add it, or --set METHOD.taps=..."
    )


def _read_eagle3(source: Source, fields: Fields) -> Reading:
    if not fields.has("norm_before_residual"):
        source.notes.append(
            "the residual is the normed state: 'norm_before_residual' is absent, which serving engines read as true"
        )
    taps = _taps(source, fields, default=True)
    gamma = proposed_tokens(source)
    return read_eagle3(source, fields, layout=LAYOUT, taps=taps, residual_default=True, gamma=gamma)


def _read_block(source: Source, fields: Fields, *, dspark: bool) -> Reading:
    layers = source.num_layers()
    free = fields.boolean("sliding_window_non_causal", default=False)
    causal, window = layer_attention(fields, source=source, num_layers=layers, explicit=None, sliding_causal=not free)
    family = "qwen3" if source.has("layers.0.self_attn.q_norm.weight") else "llama"
    backbone = read_backbone(fields, source=source, family=family, causal=causal, window=window)
    heads = read_heads(fields, source=source, hidden=backbone.hidden_size)
    taps = _taps(source, fields, default=False)
    target_hidden = fields.integer("target_hidden_size", default=backbone.hidden_size)
    check_fc(source, count=len(taps), target_hidden=target_hidden, hidden=backbone.hidden_size)
    shift, rows = _slots(source, fields, dspark=dspark)
    vocab_size = fields.integer("vocab_size")
    draft_size = fields.integer("draft_vocab_size", default=None)
    vocabulary = read_vocabulary(source, vocab_size=vocab_size, draft_size=draft_size)
    spec = make_spec(
        kind=DraftKind.DSPARK if dspark else heads.kind,
        layout=LAYOUT,
        backbone=backbone,
        vocab_size=vocab_size,
        taps=taps,
        target_hidden_size=target_hidden,
        num_target_layers=target_layers(fields, source),
        gamma=rows - 1 + shift,
        block_inputs=rows,
        slot_shift=shift,
        mask_token_id=fields.integer("mask_token_id", minimum=0),
        embed_from="checkpoint" if source.has("embed_tokens.weight") else "target",
        head_from="checkpoint" if source.has("lm_head.weight") else "target",
        d2t=vocabulary.ids,
        notes=tuple(source.notes),
        raw_config=source.folder.config,
        **heads.fields(),
    )
    return Reading(spec, dict(source.stored), ready=reorder_rows(source, vocabulary))


def _slots(source: Source, fields: Fields, *, dspark: bool) -> tuple[int, int]:
    """Slot shift and rows of a block. ``sample_from_anchor`` absent means False: such files predate the key."""
    shift = int(fields.boolean("sample_from_anchor", default=False))
    if dspark and not fields.has("sample_from_anchor"):
        source.notes.append(
            "slots are not shifted: 'sample_from_anchor' is absent, so the file predates the key "
            "(--set METHOD.slot_shift=1 for the other reading), see --check"
        )
    rows = fields.integer("block_size", default=None, minimum=2 - shift)
    if rows is None:
        source.notes.append(f"block of {_DEFAULT_BLOCK} rows: no 'block_size', the format's default")
        rows = _DEFAULT_BLOCK
    told = proposed_tokens(source)
    if told is not None and told != rows - 1 + shift:
        source.notes.append(f"a block of {rows} rows drafts {rows - 1 + shift}; the proposal method says {told}")
    return shift, rows


def _read_mtp(source: Source, fields: Fields, full: dict[str, Any], model_type: str) -> Reading:
    stored = {}
    for name, at in source.stored.items():
        if not name.startswith("mtp_layers.0."):
            stored[name] = at
            continue
        head, _, tail = name.removeprefix("mtp_layers.0.").partition(".")
        plain = {"input_proj": "input_proj"} | _MTP_NAMES
        stored[f"{plain[head]}.{tail}" if head in plain else f"layers.0.{head}.{tail}"] = at
    source.stored = stored
    steps = fields.integer("num_speculative_steps", default=None) or proposed_tokens(source)
    family = family_of(model_type, source=source)
    return read_mtp(source, family, full, layout=LAYOUT, gamma=steps or 1)
