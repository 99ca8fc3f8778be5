"""From a cell's raw trace to what a record says of it: estimates, losslessness with its control, alarms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specbench.cell import Measurement
from specbench.engine.control import noise_floor
from specbench.engine.target import Target
from specbench.metrics._all import compute_all
from specbench.metrics._identities import check_identities
from specbench.metrics.alarms import Alarm, prompt_alarms, find_alarms
from specbench.metrics.losslessness import Losslessness, Outcome, verdict
from specbench.metrics.throughput import invalid_reason
from specbench.types import Estimate, RequestTrace, RunTrace, Status

FLOOR_REQUESTS = 4
FLOOR_TOKENS = 64
"""The noise floor is first measured on a few short texts. They can only give a smaller floor than all texts together,
so a tie below it is a tie; before anything is called a failure, the floor of every control text is measured."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """All that is derived from a trace. ``losslessness`` None: there was no control, or the cell is the control."""

    estimates: tuple[Estimate, ...]
    losslessness: Losslessness | None
    floor_tokens: int | None  # control tokens that the noise floor was measured on
    alarms: tuple[Alarm, ...]
    invalid: str | None
    notes: tuple[str, ...]


def judge(cell: Measurement, *, control: Measurement | None, target: Target) -> Judgement:
    """Check the trace's identities and compute everything; ``control`` is plain decoding of the same prompts.

    Errors: RecordError when the trace is inconsistent.
    """
    check_identities(cell.trace)
    notes: list[str] = []
    baseline = None if control is None else _comparable(cell.trace, control.trace, notes)
    found, tokens = (None, None) if control is None else _verdict(cell, control, target)
    return Judgement(
        estimates=tuple(compute_all(cell.trace, baseline=baseline)),
        losslessness=found,
        floor_tokens=tokens,
        alarms=(*prompt_alarms(cell.prompt_ids), *find_alarms(cell.trace)),
        invalid=invalid_reason(cell.trace),
        notes=tuple(notes),
    )


def _comparable(trace: RunTrace, control: RunTrace, notes: list[str]) -> RunTrace:
    """The control without the turns whose prompt differs: a later turn's prompt holds the arm's own earlier answer."""
    ours = {request.id: request.prompt_hash for request in trace.requests}
    same = tuple(r for r in control.requests if ours.get(r.id, r.prompt_hash) == r.prompt_hash)
    if len(same) < len(control.requests):
        count = len(control.requests) - len(same)
        notes.append(f"{count} later turns had other prompts in the two arms, because their earlier answers differ")
    return replace(control, requests=same)


def _verdict(cell: Measurement, control: Measurement, target: Target) -> tuple[Losslessness, int | None]:
    if cell.trace.sampling.temperature > 0:
        return verdict(cell.trace, control.trace, noise_floor=None), None
    texts = _control_texts(control)
    few = [(prompt, output[:FLOOR_TOKENS]) for prompt, output in texts[:FLOOR_REQUESTS]]
    found, tokens = _with_floor(cell, control, target, few)
    if found.outcome is Outcome.FAIL and texts != few:
        found, tokens = _with_floor(cell, control, target, texts)
    return found, tokens


def _with_floor(
    cell: Measurement, control: Measurement, target: Target, texts: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]
) -> tuple[Losslessness, int]:
    floor = noise_floor(target, list(texts), cell.trace.draft_length) if texts else 0.0
    return verdict(cell.trace, control.trace, noise_floor=floor), sum(len(output) for _, output in texts)


def _control_texts(control: Measurement) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    def usable(request: RequestTrace) -> bool:
        return request.status == Status.OK and not request.warmup and bool(request.output_ids)

    return [(control.prompt_ids[r.id], r.output_ids) for r in control.trace.requests if usable(r)]
