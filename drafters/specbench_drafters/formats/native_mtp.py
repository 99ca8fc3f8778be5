"""Native multi-token-prediction layers, picked out of a full target checkpoint.

Only the MTP tensors are read. DeepSeek-V3/R1 and GLM-4.5/4.6 keep them under ``model.layers.{n}``, Qwen3-Next and
Qwen3.5 under ``mtp``, MiMo under ``model.mtp_layers``.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from specbench_drafters.formats.fields import Fields
from specbench_drafters.formats.hf_layers import complete_config, known
from specbench_drafters.formats.mtp_families import Family, family_of, read_mtp
from specbench_drafters.formats.source import Reading, Source

_DEEPSEEK = {
    "enorm": "token_norm",
    "hnorm": "hidden_norm",
    "eh_proj": "input_proj",
    "shared_head.norm": "norm",
    "shared_head.head": "lm_head",
    "embed_tokens": "embed_tokens",
}
_QWEN = {
    "fc": "input_proj",
    "pre_fc_norm_embedding": "token_norm",
    "pre_fc_norm_hidden": "hidden_norm",
    "norm": "norm",
}
_MIMO = {
    "token_layernorm": "token_norm",
    "hidden_layernorm": "hidden_norm",
    "input_proj": "input_proj",
    "final_layernorm": "norm",
}
_QWEN_NAME = re.compile(r"^(?:model\.)?(?:language_model\.)?mtp\.(.*)$")
_MIMO_NAME = re.compile(r"^model\.mtp_layers\.(\d+)\.(.*)$")
_MAIN_EMBEDDINGS = ("model.embed_tokens.weight", "model.language_model.embed_tokens.weight")


def read(source: Source) -> Reading:
    """Spec of the first MTP layer of a target checkpoint. Errors: CheckpointError."""
    config = source.folder.config
    top = Fields(config, where=source.where)
    text = top.mapping("text_config") or config
    model_type = Fields(text, config, where=source.where).string("model_type")
    family = family_of(model_type, source=source)
    full = complete_config(family.layer_type, text, where=source.where) if known(family.layer_type) else dict(text)
    all_names = dict(source.stored)
    source.stored = _mtp_names(source, family, full)
    if not source.stored:
        raise source.error("the configuration promises MTP layers but their tensors were stripped from the weights")
    _drop_copies(source, all_names)
    return read_mtp(source, family, full, layout=f"native-mtp:{family.name}", gamma=1)


def _mtp_names(source: Source, family: Family, config: dict[str, Any]) -> dict[str, str]:
    """Canonical names of the first MTP layer's tensors; further layers are left out with a note."""
    found: dict[str, str] = {}
    later: set[str] = set()
    for stored in source.folder.names:
        split = _split(stored, family, config, source)
        if split is None:
            continue
        index, inner, heads = split
        if index > 0:
            later.add(str(index))
            continue
        stem = next((stem for stem in sorted(heads, key=len, reverse=True) if inner.startswith(stem + ".")), None)
        if stem is not None:
            found[heads[stem] + inner[len(stem) :]] = stored
        else:
            found[inner if inner.startswith("layers.") else f"layers.0.{inner}"] = stored
    if later:
        source.notes.append(f"only the first of {len(later) + 1} MTP layers is used, again for every draft")
    return found


def _split(
    stored: str, family: Family, config: dict[str, Any], source: Source
) -> tuple[int, str, dict[str, str]] | None:
    """Index of the MTP layer, name inside it, and the family's names for its heads; None for the target's tensors."""
    if family.name in ("deepseek_v3", "glm4_moe"):
        depth = Fields(config, where=source.where).integer("num_hidden_layers")
        match = re.match(r"^model\.layers\.(\d+)\.(.*)$", stored)
        if match is None or int(match.group(1)) < depth:
            return None
        return int(match.group(1)) - depth, match.group(2), _DEEPSEEK
    if family.name == "mimo":
        match = _MIMO_NAME.match(stored)
        return (int(match.group(1)), match.group(2), _MIMO) if match else None
    match = _QWEN_NAME.match(stored)
    if match is None:
        return None
    layer = re.match(r"^layers\.(\d+)\.", match.group(1))
    return int(layer.group(1)) if layer else 0, match.group(1), _QWEN


def _drop_copies(source: Source, all_names: dict[str, str]) -> None:
    """Embedding and head stored with the MTP layer are used only where they differ from the target's own."""
    embedding = next((name for name in _MAIN_EMBEDDINGS if name in all_names), None)
    for name, main in (("embed_tokens.weight", embedding), ("lm_head.weight", "lm_head.weight")):
        if not source.has(name) or main not in all_names:
            continue
        same = source.shape(name) == source.folder.shape(main)
        if same and torch.equal(source.read(name), source.folder.read([main])[main]):
            source.notes.append(f"the stored {name} equals the target's, which is used")
            del source.stored[name]
