"""Write a loaded checkpoint in another layout: DeepSpec's, speculators', or our compact one.

Every export is read back before it is kept. What the layout cannot express is refused in one line, never dropped.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from specbench.errors import CheckpointError, unknown_name
from specbench_drafters.formats import own, to_deepspec, to_speculators
from specbench_drafters.formats.compare import spec_differences, tensor_differences
from specbench_drafters.formats.files import Folder, open_folder
from specbench_drafters.formats.load import load_checkpoint
from specbench_drafters.formats.record import DrafterSpec, LoadedCheckpoint

LAYOUTS = ("deepspec", "speculators", "specbench")
_EMBEDDINGS = ("model.embed_tokens.weight", "model.language_model.embed_tokens.weight", "transformer.wte.weight")
_SOURCES = ("embed_from", "head_from", "embed_scale")  # change when tables are added or left out


@dataclass(frozen=True, slots=True)
class Tables:
    """Embedding [V, d] and head [V, d] of the target, and its configuration."""

    embedding: Tensor
    head: Tensor
    config: dict[str, Any]


def export(
    loaded: LoadedCheckpoint, destination: Path | str, *, layout: str, target: Path | None = None, target_name: str = ""
) -> Path:
    """Write ``loaded`` to a new folder in ``layout`` and return the folder.

    ``target`` is the folder of the target's weights: DeepSpec's and speculators' layouts store its embedding and head,
    the compact one leaves out what equals them. Errors: CheckpointError when the layout cannot express the drafter, the
    target is needed but not given, or the destination is not empty.
    """
    if layout not in LAYOUTS:
        raise unknown_name("layout", layout, LAYOUTS)
    folder = Path(destination)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CheckpointError(f"export: '{folder}' exists and is not empty; choose a new folder")
    tables = read_tables(target) if target is not None else None
    spec, tensors, config = _convert(loaded, layout, tables=tables, target_name=target_name)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
        written = Path(scratch) / "export"
        _write(written, config, tensors, spec)
        _check(loaded, spec, written, layout)
        if folder.exists():
            folder.rmdir()
        shutil.move(str(written), str(folder))
    return folder


def _convert(
    loaded: LoadedCheckpoint, layout: str, *, tables: Tables | None, target_name: str
) -> tuple[DrafterSpec, dict[str, Tensor], dict[str, Any]]:
    if layout == "specbench":
        spec, tensors = compact(loaded, tables)
        return spec, tensors | own.map_tensor(spec), own.to_config(spec)
    if "mask_embedding" in loaded.tensors:
        raise CheckpointError(f"layout '{layout}' cannot express a mask embedding of its own, which this drafter has")
    if layout == "deepspec":
        to_deepspec.check(loaded)
    spec, tensors = completed(loaded, tables, layout=layout)
    if layout == "deepspec":
        return spec, tensors, to_deepspec.config(spec, dtype=_dtype(tensors), target=tables.config if tables else {})
    stored = to_speculators.tensors(spec, tensors)
    return spec, stored, to_speculators.config(spec, target_name=target_name, dtype=_dtype(tensors))


def _dtype(tensors: dict[str, Tensor]) -> str:
    return str(tensors["norm.weight"].dtype).removeprefix("torch.")


def read_tables(target: Path) -> Tables:
    """Embedding and head out of a target's folder; a tied head is the embedding. Errors: CheckpointError."""
    folder: Folder = open_folder(target)
    name = next((name for name in _EMBEDDINGS if name in folder.names), None)
    if name is None:
        raise CheckpointError(f"{target}: no embedding ({_EMBEDDINGS[0]}) among the target's weights")
    wanted = [name] + (["lm_head.weight"] if "lm_head.weight" in folder.names else [])
    found = folder.read(wanted)
    return Tables(found[name], found.get("lm_head.weight", found[name]), folder.config)


def _rows(spec: DrafterSpec, table: Tensor) -> Tensor:
    return table if spec.d2t is None else table[spec.d2t]


def compact(loaded: LoadedCheckpoint, tables: Tables | None) -> tuple[DrafterSpec, dict[str, Tensor]]:
    """Without the embedding and head where they equal the target's."""
    spec, tensors = loaded.spec, dict(loaded.tensors)
    if tables is None:
        return spec, tensors
    embedding, head = tensors.get("embed_tokens.weight"), tensors.get("lm_head.weight")
    if embedding is not None and _equal(embedding, tables.embedding):
        del tensors["embed_tokens.weight"]
        spec = replace(spec, embed_from="target", embed_scale=None)
    if head is not None and _equal(head, _rows(spec, tables.head)):
        del tensors["lm_head.weight"]
        spec = replace(spec, head_from="target")
    return spec, tensors


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other.to(one.dtype))


def completed(loaded: LoadedCheckpoint, tables: Tables | None, *, layout: str) -> tuple[DrafterSpec, dict[str, Tensor]]:
    """With the target's embedding and head where the checkpoint stores none (MTP layers share them for good)."""
    spec, tensors = loaded.spec, dict(loaded.tensors)
    absent = [part for part, kept in (("embedding", spec.embed_from), ("head", spec.head_from)) if kept == "target"]
    if spec.kind == "mtp" or not absent:
        return spec, tensors
    if tables is None:
        raise CheckpointError(
            f"export to '{layout}' stores the target's {' and '.join(absent)}, which this checkpoint leaves out: "
            "pass the target (--target)"
        )
    dtype = tensors["norm.weight"].dtype
    for name, kept, table in (
        ("embed_tokens.weight", spec.embed_from, tables.embedding),
        ("lm_head.weight", spec.head_from, _rows(spec, tables.head)),
    ):
        if kept == "target":
            tensors[name] = table.to(dtype).clone()
    spec = _stated_positions(spec, tables)
    scale = to_deepspec.embed_scale(spec) if spec.embed_from == "target" else spec.embed_scale
    return replace(spec, embed_from="checkpoint", head_from="checkpoint", embed_scale=scale), tensors


def _stated_positions(spec: DrafterSpec, tables: Tables) -> DrafterSpec:
    """A drafter that names no longest position gets the target's: these layouts have to say one."""
    limit = tables.config.get("max_position_embeddings")
    if spec.backbone.max_position is not None or not isinstance(limit, int):
        return spec
    return replace(spec, backbone=replace(spec.backbone, max_position=limit))


def _write(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor], spec: DrafterSpec) -> None:
    folder.mkdir()
    text = json.dumps(config, indent=2, sort_keys=True, default=str)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")
    contiguous = {name: tensor.contiguous() for name, tensor in sorted(tensors.items())}
    save_file(contiguous, str(folder / "model.safetensors"), metadata={"format": "pt"})
    if spec.sts_temperatures is not None:
        (folder / "sts.json").write_text(
            json.dumps({"temperatures": list(spec.sts_temperatures)}) + "\n", encoding="utf-8"
        )


def _check(loaded: LoadedCheckpoint, spec: DrafterSpec, written: Path, layout: str) -> None:
    """Read the export back: anything that it means otherwise is something the layout cannot say."""
    refused = f"layout '{layout}' cannot express this drafter"
    sizes = {"hidden_size": spec.target_hidden_size, "num_hidden_layers": spec.num_target_layers or 0}
    known = {**sizes, "vocab_size": spec.vocab_size} if spec.num_target_layers else None
    try:
        again = load_checkpoint(written, target_config=known)
    except CheckpointError as error:
        raise CheckpointError(f"{refused}: {str(error).replace(str(written), 'export')}") from error
    ignore = ("sts_temperatures",) if layout != "specbench" else ()
    differing = spec_differences(spec, again.spec, ignore=(*ignore, "layer_config"))
    if differing:
        raise CheckpointError(f"{refused}: {differing[0]} after reading it back")
    kept = {name: tensor for name, tensor in again.tensors.items() if name in loaded.tensors}
    stored = {name: tensor for name, tensor in loaded.tensors.items() if name in again.tensors}
    wrong = tensor_differences(stored, kept) or sorted(set(loaded.tensors) - set(again.tensors) - _left_out(spec))
    if wrong:
        raise CheckpointError(f"{refused}: tensor '{wrong[0]}' does not survive it")


def _left_out(spec: DrafterSpec) -> set[str]:
    """Tables that the exported spec takes from the target."""
    tables = {"embed_tokens.weight": spec.embed_from, "lm_head.weight": spec.head_from}
    return {name for name, kept in tables.items() if kept == "target"}


class Exporter:
    """What the command line reaches through the registry."""

    export = staticmethod(export)
    load = staticmethod(load_checkpoint)
    layouts = LAYOUTS


PLUGIN = Exporter
