"""From a cell's raw trace to what a record says of it: estimates, losslessness with its control, alarms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.cell import Measurement
from specbench.engine.control import noise_floor
from specbench.engine.target import Target
from specbench.metrics._all import compute_all
from specbench.metrics._recorded import recorded_estimates
from specbench.metrics.alarms import Alarm, find_alarms, prompt_alarms
from specbench.metrics.losslessness import Losslessness, Outcome, verdict
from specbench.types import Estimate, RequestTrace, Status

Text = tuple[tuple[int, ...], tuple[int, ...]]
"""Prompt and output of a control request."""

FLOOR_REQUESTS = 4
FLOOR_TOKENS = 64
FLOOR_ROWS = 8  # the logits of a whole group are held at once
"""The noise floor is first measured on a few short texts. They can only give a smaller floor than all texts together,
so a tie below it is a tie; before anything is called a failure, the floor of every control text is measured."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """All that is derived from a trace. ``losslessness`` None: there was no control, or the cell is the control."""

    estimates: tuple[Estimate, ...]
    losslessness: Losslessness | None
    alarms: tuple[Alarm, ...]
    notes: tuple[str, ...]


def judge(
    cell: Measurement,
    *,
    control: Measurement | None,
    target: Target,
    synthetic: bool = False,
    same_load: bool = True,
) -> Judgement:
    """Compute everything; ``control`` is plain decoding of the same prompts, None where there is none.

    A cell with ``synthetic`` acceptance writes no text of the target's: its verdict is never a pass. A control that ran
    under another load judges the text, but there is no speed-up over it.
    """
    notes: list[str] = []
    found = None
    if synthetic:
        found = Losslessness(Outcome.INCONCLUSIVE, "synthetic", "acceptance was forced, the text is nobody's", 0, 0)
    elif control is not None:
        found, note = _verdict(cell, control, target)
        notes += [note] if note is not None else []
    computed = compute_all(cell.trace, baseline=control.trace if control is not None and same_load else None)
    recorded = recorded_estimates(cell.trace, telemetry=cell.telemetry, vocabulary=cell.vocabulary)
    return Judgement(
        estimates=(*computed, *recorded),
        losslessness=found,
        alarms=(*prompt_alarms(cell.prompt_ids), *find_alarms(cell.trace)),
        notes=tuple(notes),
    )


def _verdict(cell: Measurement, control: Measurement, target: Target) -> tuple[Losslessness, str | None]:
    if cell.trace.sampling.temperature > 0 or cell.trace.server is not None:  # a server's target is not here
        return verdict(cell.trace, control.trace, noise_floor=None), None
    texts = _control_texts(control)
    few = [(prompt, output[:FLOOR_TOKENS]) for prompt, output in texts[:FLOOR_REQUESTS]]
    found, note = _with_floor(cell, control, target, few)
    if found.outcome is Outcome.FAIL and texts != few:
        found, note = _with_floor(cell, control, target, texts)
    return found, note


def _with_floor(
    cell: Measurement, control: Measurement, target: Target, texts: Sequence[Text]
) -> tuple[Losslessness, str | None]:
    """The verdict with the noise floor of ``texts``, batched in groups as large as the run's own batches."""
    rows, gamma = min(cell.trace.concurrency, FLOOR_ROWS), cell.trace.draft_length
    groups = [texts[start : start + rows] for start in range(0, len(texts), rows)]
    controls = [noise_floor(target, group, gamma=gamma) for group in groups]
    positions = sum(control.positions for control in controls)
    if positions == 0:
        return verdict(cell.trace, control.trace, noise_floor=None), None
    floor = max(control.noise_floor for control in controls)
    return (
        verdict(cell.trace, control.trace, noise_floor=floor),
        f"noise floor {floor:.3g} logits, from {positions} positions of {len(texts)} control texts",
    )


def _control_texts(control: Measurement) -> list[Text]:
    def usable(request: RequestTrace) -> bool:
        return request.status == Status.OK and not request.warmup and bool(request.output_ids)

    return [(control.prompt_ids[r.id], r.output_ids) for r in control.trace.requests if usable(r)]
