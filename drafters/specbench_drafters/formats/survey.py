"""What a spec asks for against what a folder stores, tensor by tensor, without reading a weight."""

from __future__ import annotations

from dataclasses import dataclass

from specbench_drafters.formats.files import Folder
from specbench_drafters.formats.shapes import optional, required, wrong_shapes
from specbench_drafters.formats.source import Reading, Source

_ELSEWHERE = ("d2t", "t2d", "rotary_emb.inv_freq", "verifier_norm.", "verifier_lm_head.")  # in the spec, or not needed
DTYPES = ("float32", "bfloat16", "float16", "float64")


@dataclass(frozen=True, slots=True)
class Survey:
    """What a reading needs against what is stored, by canonical name."""

    stored: dict[str, str]  # needed and stored: canonical name -> name in the files
    missing: tuple[str, ...]
    unused: tuple[str, ...]
    wrong: tuple[str, ...]  # one phrase per wrong shape or number format


def survey(reading: Reading, folder: Folder) -> Survey:
    """Compare the tensors of a folder with what the spec asks for. Errors: CheckpointError for an unbuildable layer."""
    wanted = required(reading.spec, (*reading.stored, *reading.ready))
    extra = optional(reading.spec)
    stored = {name: reading.stored[name] for name in (*wanted, *extra) if name in reading.stored}
    shapes = {name: folder.infos[at].shape for name, at in stored.items()}
    shapes |= {name: derived.shape for name, derived in reading.ready.items()}
    unused = (
        name
        for name in reading.stored
        if name not in stored and name not in reading.ready and name not in reading.spare
    )
    strange = [
        f"'{at}' is stored as {folder.infos[at].dtype}, expected {', '.join(DTYPES)}"
        for name, at in stored.items()
        if name not in reading.ready and folder.infos[at].dtype not in DTYPES
    ]
    return Survey(
        stored=stored,
        missing=tuple(sorted(name for name in wanted if name not in shapes)),
        unused=tuple(sorted(name for name in unused if not any(part in name for part in _ELSEWHERE))),
        wrong=tuple(wrong_shapes(wanted | extra, shapes) + strange),
    )


def check_survey(source: Source, found: Survey) -> None:
    """Refuse an incomplete checkpoint, and layers that hold more than their format has. Errors: CheckpointError."""
    if found.missing:
        more = f" (and {len(found.missing) - 1} more)" if len(found.missing) > 1 else ""
        raise source.error(f"tensor '{found.missing[0]}'{more} is missing; the checkpoint is incomplete")
    if found.wrong:
        raise source.error(f"{found.wrong[0]}; weights and config.json do not belong together")
    structural = [name for name in found.unused if name.startswith("layers.")]
    if structural:
        raise source.error(
            f"draft layers hold '{structural[0]}', which this format does not have; "
            "leaving it out would silently lower acceptance, so the checkpoint is refused"
        )
