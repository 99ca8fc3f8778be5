"""What a checkpoint is, why, what is missing or unused, and what it would do: for people and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from specbench.errors import CheckpointError
from specbench_drafters.formats.detect import Detection, detect
from specbench_drafters.formats.files import Folder, open_folder
from specbench_drafters.formats.load import open_source, read_spec, read_tensors
from specbench_drafters.formats.record import DrafterSpec, DraftKind
from specbench_drafters.formats.source import Reading
from specbench_drafters.formats.survey import Survey, check_survey, survey

if TYPE_CHECKING:
    from rich.console import RenderableType

_PARTS = {
    "embedding": ("embed_tokens.",),
    "head": ("lm_head.",),
    "combiner": ("fc.", "fc_norm.", "input_norm.", "input_proj.", "hidden_norm.", "token_norm."),
    "layers": ("layers.", "norm."),
    "sequential head": ("markov_head.",),
    "confidence head": ("confidence_head.",),
    "mask embedding": ("mask_embedding",),
}


@dataclass(frozen=True, slots=True)
class Report:
    """The findings about one folder. ``problem`` is the one line for which it cannot be used, None where it can."""

    path: str
    format: str
    reason: str
    usable: bool
    problem: str | None = None
    method: str | None = None
    spec: dict[str, Any] | None = None
    would_do: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    wrong_shapes: tuple[str, ...] = ()
    tensors: int = 0
    dtypes: tuple[str, ...] = ()
    parameters: dict[str, int] = field(default_factory=dict)
    sha256: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return asdict(self)


def inspect(
    path: Path | str,
    *,
    target_config: Any = None,
    overrides: Mapping[str, Any] | None = None,
    weights: bool = True,
) -> Report:
    """Look at a folder and say everything that can be said, also about one that cannot be used.

    ``weights`` False skips reading values (no NaN check, no hash). Errors: CheckpointError only when there is no
    readable checkpoint of a known format at all.
    """
    folder = open_folder(Path(path))
    detection = detect(folder)
    if detection.refused:
        line = f"{detection.label} is not supported; {detection.refused}"
        return _partial(folder, detection, problem=line)
    try:
        source, _ = open_source(Path(path), target_config=target_config, overrides=overrides)
        reading = read_spec(source, detection)
    except CheckpointError as error:
        return _partial(folder, detection, problem=str(error))
    found = survey(reading, folder)
    problem, sha256 = None, None
    try:
        check_survey(source, found)
        if weights:
            sha256 = read_tensors(source, reading).sha256
    except CheckpointError as error:
        problem = str(error)
    return _full(folder, detection, reading, found, problem=problem, sha256=sha256)


def _partial(folder: Folder, detection: Detection, *, problem: str) -> Report:
    shapes = {name: info.shape for name, info in folder.infos.items()}
    return Report(
        path=str(folder.path),
        format=detection.label,
        reason=detection.reason,
        usable=False,
        problem=problem,
        notes=folder.notes,
        tensors=len(shapes),
        dtypes=tuple(sorted({info.dtype for info in folder.infos.values()})),
        parameters={"all tensors": sum(prod(shape) for shape in shapes.values())},
    )


def _full(
    folder: Folder, detection: Detection, reading: Reading, found: Survey, *, problem: str | None, sha256: str | None
) -> Report:
    spec = reading.spec
    shapes = {name: folder.infos[at].shape for name, at in found.stored.items()}
    shapes |= {name: derived.shape for name, derived in reading.ready.items()}
    return Report(
        path=str(folder.path),
        format=detection.label,
        reason=detection.reason,
        usable=problem is None,
        problem=problem,
        method=str(spec.kind),
        spec=spec_dict(spec),
        would_do=would_do(spec),
        notes=spec.notes,
        missing=found.missing,
        unused=found.unused,
        wrong_shapes=found.wrong,
        tensors=len(folder.infos),
        dtypes=tuple(sorted({folder.infos[at].dtype for at in found.stored.values()})),
        parameters=_parameters(shapes),
        sha256=sha256,
    )


def _parameters(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Parameters by part, and in all; parts that are not stored are absent."""
    counts = {}
    for part, prefixes in _PARTS.items():
        count = sum(prod(shape) for name, shape in shapes.items() if name.startswith(prefixes))
        if count:
            counts[part] = count
    return counts | {"total": sum(prod(shape) for shape in shapes.values())}


def spec_dict(spec: DrafterSpec) -> dict[str, Any]:
    """The spec as plain values; the vocabulary map by its size and range."""
    skip = ("raw_config", "layer_config", "notes", "d2t", "backbone", "kind")
    values = {item.name: getattr(spec, item.name) for item in fields(DrafterSpec) if item.name not in skip}
    values["backbone"] = asdict(spec.backbone)
    values["draft_vocabulary"] = _vocabulary(spec.d2t)
    return {"kind": str(spec.kind), **values}


def _vocabulary(d2t: Tensor | None) -> dict[str, int] | None:
    if d2t is None:
        return None
    return {"tokens": int(d2t.numel()), "first": int(d2t[0]), "last": int(d2t[-1])}


def would_do(spec: DrafterSpec) -> tuple[str, ...]:
    """The run in sentences: what is read from the target, what a round computes, where the tables come from."""
    backbone = spec.backbone
    norms = " with q/k norms" if backbone.qk_norm else ""
    layers = f"{backbone.num_layers} {backbone.family} layer{'s' if backbone.num_layers != 1 else ''}{norms}"
    lines = [f"reads from the target: {_tap_text(spec)}"]
    if spec.kind in (DraftKind.DSPARK, DraftKind.DFLASH):
        offset = "k + 1" if spec.slot_shift else "k"
        lines.append(
            f"a round: {spec.block_inputs} rows (anchor, {spec.block_inputs - 1} masks {spec.mask_token_id}) through "
            f"{layers}; slot k predicts anchor + {offset}, {spec.gamma} drafts"
        )
        if any(backbone.causal) or any(backbone.window):
            lines.append(f"attention in a block: causal {list(backbone.causal)}, windows {list(backbone.window)}")
    else:
        steps = f"{spec.gamma} step{'s' if spec.gamma != 1 else ''} of {layers}"
        lines.append(f"a round: {steps} on [{spec.concat_order}], feeding back the {spec.recycle} state")
    lines.append(_table_text(spec))
    if spec.markov != "none":
        lines.append(f"{spec.markov} sequential head of rank {spec.markov_rank}, tokens chosen left to right")
    if spec.confidence != "none":
        calibrated = "calibrated" if spec.sts_temperatures else "uncalibrated"
        lines.append(f"confidence head on {spec.confidence}, {calibrated}")
    count = f"{spec.gamma} draft{'s' if spec.gamma != 1 else ''}"
    lines.append(f"runs as --method {str(spec.kind).replace('_', '-')}, {count} a round by default")
    return tuple(lines)


def _tap_text(spec: DrafterSpec) -> str:
    parts = []
    if spec.taps:
        names = ["the embedding" if tap == 0 else f"layer {tap - 1}" for tap in spec.taps]
        parts.append(f"outputs of {', '.join(names)} (indices {', '.join(map(str, spec.taps))})")
    if spec.tap_final_norm:
        parts.append("the state after the final norm")
    return " and ".join(parts) or "nothing"


def _table_text(spec: DrafterSpec) -> str:
    vocabulary = ""
    if spec.d2t is not None:
        share = spec.d2t.numel() / spec.vocab_size
        vocabulary = f" of {spec.d2t.numel()} draft tokens among {spec.vocab_size} ({share:.1%})"
    scale = f", embeddings times {spec.embed_scale:g}" if spec.embed_scale is not None else ""
    scale += f", logits times {spec.logit_scale:g}" if spec.logit_scale is not None else ""
    scale += f", softcap {spec.softcap:g}" if spec.softcap is not None else ""
    return f"embedding from the {spec.embed_from}, head from the {spec.head_from}{vocabulary}{scale}"


def render(report: Report) -> RenderableType:
    """For the terminal: one table of findings."""
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")

    def add(label: str, *lines: str, style: str = "") -> None:
        if lines:
            table.add_row(label, Text("\n".join(lines), style=style))

    add("checkpoint", report.path)
    add("format", f"{report.format} ({report.reason})")
    add("problem", *([report.problem] if report.problem else []), style="red")
    add("would do", *report.would_do)
    add("assumed", *report.notes, style="yellow" if report.notes else "")
    add("missing", *report.missing, style="red")
    add("wrong shape", *report.wrong_shapes, style="red")
    add("unused", *report.unused, style="yellow")
    add("tensors", f"{report.tensors} stored, {', '.join(report.dtypes)}")
    add("parameters", ", ".join(f"{part} {count:,}" for part, count in report.parameters.items()))
    add("sha256", *([report.sha256] if report.sha256 else []))
    return table


class Inspector:
    """What the command line reaches through the registry."""

    inspect = staticmethod(inspect)
    render = staticmethod(render)


PLUGIN = Inspector
