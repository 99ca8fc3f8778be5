"""From a folder to a drafter's spec and tensors: the one entry point of every method that reads a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from specbench.errors import CheckpointError
from specbench_drafters.formats import deepspec, eagle3, zlab
from specbench_drafters.formats.detect import Detection, require_supported
from specbench_drafters.formats.files import check_finite, open_folder
from specbench_drafters.formats.overrides import apply_overrides, parse_overrides
from specbench_drafters.formats.record import DrafterSpec, LoadedCheckpoint
from specbench_drafters.formats.shapes import optional, required, wrong_shapes
from specbench_drafters.formats.source import Reading, Source, canonical_names, target_facts

_LOADERS: dict[str, Callable[[Source], Reading]] = {
    "deepspec": deepspec.read,
    "zlab": zlab.read,
    "eagle3": eagle3.read,
}
_NEVER_NEEDED = ("d2t", "t2d", "rotary_emb.inv_freq", "verifier_norm.", "verifier_lm_head.")


def load_checkpoint(
    path: Path | str, *, target_config: Any = None, overrides: Mapping[str, Any] | None = None
) -> LoadedCheckpoint:
    """Detect, read and check a drafter checkpoint.

    ``target_config`` is the target's transformers configuration (or its dictionary): it decides what the checkpoint
    leaves open and is checked against it. ``overrides`` maps DrafterSpec fields to the user's values. Tensors keep
    their stored dtype, on the CPU. Errors: CheckpointError with one line for anything missing, damaged or undecided.
    """
    source, detection = open_source(Path(path), target_config=target_config, overrides=overrides)
    reading = read_spec(source, detection)
    return read_tensors(source, reading)


def open_source(
    path: Path, *, target_config: Any = None, overrides: Mapping[str, Any] | None = None
) -> tuple[Source, Detection]:
    """The folder under canonical names and what format it is. Errors: CheckpointError."""
    folder = open_folder(path)
    detection = require_supported(folder)
    stored = {name: name for name in folder.names} if detection.family == "native_mtp" else canonical_names(folder)
    source = Source(
        folder=folder,
        stored=stored,
        target=target_facts(target_config),
        overrides=parse_overrides(overrides),
        notes=list(folder.notes),
    )
    return source, detection


def read_spec(source: Source, detection: Detection) -> Reading:
    """What the checkpoint means, with the user's values, checked against the target. Errors: CheckpointError."""
    reading = _LOADERS[detection.family](source)
    spec = apply_overrides(reading.spec, source.overrides)
    check_target(source, spec)
    return replace(reading, spec=spec)


def check_target(source: Source, spec: DrafterSpec) -> None:
    """A drafter only fits the target that it was made for. Errors: CheckpointError naming the first difference."""
    where = source.where
    limit = spec.vocab_size
    if spec.mask_token_id is not None and spec.mask_token_id >= limit:
        raise CheckpointError(f"{where}: mask token {spec.mask_token_id} is outside the vocabulary of {limit}")
    if spec.num_target_layers is not None and spec.taps and max(spec.taps) > spec.num_target_layers:
        raise CheckpointError(f"{where}: tap {max(spec.taps)} is beyond the target's {spec.num_target_layers} layers")
    if source.target is None:
        return
    for word, made_for, given in (
        ("hidden size", spec.target_hidden_size, source.target.hidden_size),
        ("vocabulary", spec.vocab_size, source.target.vocab_size),
        ("number of layers", spec.num_target_layers, source.target.num_layers),
    ):
        if made_for is not None and made_for != given:
            raise CheckpointError(
                f"{where}: made for a target with {word} {made_for}, this target has {given}; "
                "choose the drafter of this target"
            )


def read_tensors(source: Source, reading: Reading) -> LoadedCheckpoint:
    """The tensors that the spec asks for, with their shapes and values checked. Errors: CheckpointError."""
    spec = reading.spec
    wanted, extra = required(spec), optional(spec)
    stored = {name: reading.stored[name] for name in (*wanted, *extra) if name in reading.stored}
    shapes = {name: source.folder.infos[at].shape for name, at in stored.items()}
    shapes |= {name: tuple(tensor.shape) for name, tensor in reading.ready.items()}
    missing = tuple(sorted(name for name in wanted if name not in shapes))
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise source.error(f"tensor '{missing[0]}'{more} is missing; the checkpoint is incomplete")
    wrong = wrong_shapes(wanted | extra, shapes)
    if wrong:
        raise source.error(f"{wrong[0]}; weights and config.json do not belong together")
    unused = leftovers(reading, stored)
    structural = [name for name in unused if name.startswith("layers.")]
    if structural:
        raise source.error(
            f"draft layers hold '{structural[0]}', which this format does not have; "
            "leaving it out would silently lower acceptance, so the checkpoint is refused"
        )
    tensors = _read(source, reading, stored)
    check_finite(tensors, folder=source.folder, origin=reading.stored)
    return LoadedCheckpoint(
        spec=spec,
        tensors=tensors,
        missing=(),
        unused=unused,
        path=source.folder.path,
        sha256=source.folder.sha256(stored.values()),
    )


def leftovers(reading: Reading, stored: Mapping[str, str]) -> tuple[str, ...]:
    """Stored tensors that nothing needs, apart from maps and buffers whose content is elsewhere."""
    return tuple(
        sorted(
            name
            for name, at in reading.stored.items()
            if name not in stored
            and name not in reading.ready
            and at not in reading.spare
            and not any(part in name for part in _NEVER_NEEDED)
        )
    )


def _read(source: Source, reading: Reading, stored: Mapping[str, str]) -> dict[str, Tensor]:
    found = source.folder.read([at for name, at in stored.items() if name not in reading.ready])
    tensors = {name: found[at] for name, at in stored.items() if name not in reading.ready}
    return dict(sorted((tensors | reading.ready).items()))


PLUGIN = load_checkpoint
