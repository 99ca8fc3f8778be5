"""From a folder to a drafter's spec and tensors: the one entry point of every method that reads a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from specbench.errors import CheckpointError
from specbench_drafters.formats import deepspec, eagle3, native_mtp, own, specforge, speculators, zlab
from specbench_drafters.formats.detect import Detection, require_supported
from specbench_drafters.formats.files import check_finite, open_folder
from specbench_drafters.formats.overrides import apply_overrides, parse_overrides
from specbench_drafters.formats.record import DrafterSpec, LoadedCheckpoint
from specbench_drafters.formats.source import Reading, Source, canonical_names, target_facts
from specbench_drafters.formats.survey import check_survey, survey

_LOADERS: dict[str, Callable[[Source], Reading]] = {
    "deepspec": deepspec.read,
    "zlab": zlab.read,
    "eagle3": eagle3.read,
    "specforge": specforge.read,
    "speculators": speculators.read,
    "native_mtp": native_mtp.read,
    "own": own.read,
}


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
    found = survey(reading, source.folder)
    check_survey(source, found)
    plain = {name: at for name, at in found.stored.items() if name not in reading.ready}
    values = source.folder.read(plain.values())
    tensors = {name: values[at] for name, at in plain.items()}
    tensors |= {name: derived.make() for name, derived in reading.ready.items()}
    check_finite(tensors, folder=source.folder, origin=reading.stored)
    return LoadedCheckpoint(
        spec=reading.spec,
        tensors=dict(sorted(tensors.items())),
        missing=found.missing,
        unused=found.unused,
        path=source.folder.path,
        sha256=source.folder.sha256(reading.stored.values()),
    )


def reinterpret(loaded: LoadedCheckpoint, overrides: Mapping[str, Any]) -> LoadedCheckpoint:
    """The same weights under another reading; a stored table that the reading does not use is left out.

    Errors: UnknownNameError, ConfigError for a bad field; CheckpointError when the reading needs a table that is not
    stored.
    """
    spec = apply_overrides(loaded.spec, parse_overrides(overrides))
    tensors = dict(loaded.tensors)
    for name, wanted in (("embed_tokens.weight", spec.embed_from), ("lm_head.weight", spec.head_from)):
        if wanted == "target":
            tensors.pop(name, None)
        elif name not in tensors:
            raise CheckpointError(f"{loaded.path}: '{name}' is not stored, so it cannot come from the checkpoint")
    return replace(loaded, spec=spec, tensors=tensors)


class Loader:
    """What the referee reaches through the registry."""

    load = staticmethod(load_checkpoint)
    reinterpret = staticmethod(reinterpret)


PLUGIN = Loader
