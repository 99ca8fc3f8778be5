"""Seconds of a simulated step: the forward and the drafting from a cost table, the engine's own share as recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

import numpy as np

from specbench.config import BASELINE
from specbench.engine.cost_table import CostTable, RowCost
from specbench.errors import ConfigError, RecordError
from specbench.metrics._emissions import pure_decode
from specbench.types import RunTrace

NO_PRICE = RowCost((1,), (0.0,))


@dataclass(frozen=True, slots=True)
class Overhead:
    """Seconds of a step outside forward and drafting, ``fixed_s`` and ``row_s`` for each decoding row."""

    fixed_s: float = 0.0
    row_s: float = 0.0

    def at(self, rows: int) -> float:
        """Seconds with so many rows."""
        return self.fixed_s + self.row_s * rows


@dataclass(slots=True)
class StepCosts:
    """What a step of one method costs. Every step is looked up once.

    ``scale`` multiplies the table's forwards of steps that only decode, ``mixed_scale`` those with prompt tokens.
    """

    table: CostTable
    draft: RowCost
    overhead: Overhead = Overhead()
    scale: float = 1.0
    mixed_scale: float = 1.0
    _known: dict[tuple[int, int, int, bool], float] = field(default_factory=dict)

    def forward_s(self, tokens: int, rows: int, *, prompt: int = 0, uneven: bool = False) -> float:
        """Seconds of the target's forward; ``prompt`` tokens more are prompts'. ``uneven``: the rows' tokens differ."""
        key = (tokens, rows, prompt, uneven)
        if key not in self._known:
            self._known[key] = self.table.step_s(tokens, rows=rows, prompt=prompt, uneven=uneven)
        return (self.mixed_scale if prompt else self.scale) * self._known[key]

    def draft_s(self, rows: int, *, drafts: int | None = None) -> float:
        """Seconds of one proposal of ``drafts`` tokens for so many rows; nothing where none drafts."""
        return float(self.draft.at(rows, drafts=drafts)) if rows else 0.0


def draft_price(table: CostTable, method: str) -> RowCost:
    """What the table says of a method's proposals; plain decoding has none. Errors: ConfigError when it is silent."""
    if method == BASELINE:
        return NO_PRICE
    if method not in table.draft:
        known = ", ".join(sorted(table.draft)) or "no drafter"
        raise ConfigError(
            f"the cost table knows the price of drafting with {known}, not with '{method}'; measure it with "
            f"'specbench profile --method {method}'"
        )
    return table.draft[method]


def fit_draft_price(trace: RunTrace, costs: StepCosts, *, drawn: bool) -> str | None:
    """Draw a price of another draft length to what the recorded rounds took, if ``drawn``; a remark where it differs.

    The price becomes the table's times the recorded drafting over it, both summed over the steps that only decode.
    """
    priced = costs.draft.draft_length
    if costs.draft.by_length or priced is None or not trace.draft_length or priced == trace.draft_length:
        return None
    text = f"the table prices {priced} drafts a row, the recorded rounds have {trace.draft_length}"
    drafting = _drafting_rows(trace)
    steps = [step for step in trace.steps if pure_decode(step) and drafting.get(step.step)] if drawn else []
    if not steps:
        return text
    factor = sum(step.draft_s for step in steps) / sum(costs.draft_s(drafting[step.step]) for step in steps)
    costs.draft = replace(costs.draft, seconds=tuple(seconds * factor for seconds in costs.draft.seconds))
    return f"{text}; its price is multiplied by {factor:.2f}, to what they took"


def recorded_overhead(trace: RunTrace, costs: StepCosts) -> Overhead:
    """The recorded run's own share of a step: its pure decode steps without forward and proposals.

    A straight line over the rows where the run had steps of several sizes, else the mean. Errors: RecordError for a
    run without a pure decode step.
    """
    drafting = _drafting_rows(trace)
    steps = [step for step in trace.steps if pure_decode(step) and step.decode_rows]
    if not steps:
        raise RecordError(f"the run of '{trace.method}' holds no step that only decodes; its overhead is unknown")
    rest: dict[int, list[float]] = {}
    for step in steps:
        spent = step.total_s - step.verify_s - costs.draft_s(drafting.get(step.step, 0), drafts=trace.draft_length)
        rest.setdefault(step.decode_rows, []).append(spent)
    rows = sorted(rest)
    typical = [fmean(rest[count]) for count in rows]
    if len(rows) == 1:
        return Overhead(typical[0], 0.0)
    weights = [len(rest[count]) ** 0.5 for count in rows]
    slope, start = np.polyfit(rows, typical, 1, w=weights)
    if slope < 0 or start < 0:
        return Overhead(float(np.average(typical, weights=np.square(weights))), 0.0)
    return Overhead(float(start), float(slope))


def forward_check(trace: RunTrace, costs: StepCosts, *, mixed: bool = False) -> float | None:
    """The table's forwards over the recorded ones, both summed; None without any.

    Over the steps that only decode, or with ``mixed`` over those that also run prompt tokens.

    Sums, as throughput is made of sums: a median would leave out the slow steps that a machine has now and then.
    """
    kind = [step for step in trace.steps if (step.prefill_tokens > 0 if mixed else pure_decode(step))]
    steps = [step for step in kind if step.verify_s > 0 and (mixed or step.decode_rows)]
    ours = sum(costs.forward_s(s.decode_tokens, s.decode_rows, prompt=s.prefill_tokens) for s in steps)
    return ours / sum(step.verify_s for step in steps) if steps else None


def _drafting_rows(trace: RunTrace) -> dict[int, int]:
    """Rows by step that were asked to draft: all that had room for a draft, whatever the drafter found."""
    if not trace.draft_length:
        return {}
    limits = {request.id: request.max_new_tokens + request.prompt_tokens for request in trace.requests}
    found: dict[int, int] = {}
    for entry in trace.rounds:
        if limits[entry.request] - entry.anchor_position - 1 > 1:
            found[entry.step] = found.get(entry.step, 0) + 1
    return found


def table_remarks(stated: Sequence[tuple[str, object, object]]) -> list[str]:
    """How the table's origin differs from the recorded run's: (what, the run's, the table's) that are both known."""
    return [
        f"the cost table is of another {what} ({_short(theirs)}) than the recorded run ({_short(ours)})"
        for what, ours, theirs in stated
        if ours is not None and theirs is not None and ours != theirs
    ]


def _short(value: object) -> str:
    text = str(value)
    return text[:12] if len(text) == 64 else text
