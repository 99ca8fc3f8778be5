"""Contestants at one load: steady throughput beside the best fixed draft length, paired by repeat.

Drafting nothing is a fixed length too. The best one, of those that may be ranked where there are any, is chosen by its
mean on the same runs, which can only make a ratio to it smaller than it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specbench.config import BASELINE
from specbench.errors import RecordError
from specbench.records import keys
from specbench.records.schema import EstimateRow, Record, digest
from specbench.report import curves, numbers
from specbench.report.arms import row_key
from specbench.report.tables import full_label, policy_of

THROUGHPUT = "steady_tokens_per_s"


@dataclass(frozen=True, slots=True)
class Row:
    """A contestant at a load. ``ratio`` is to the best fixed length, of means over the repeats that both have and with
    the interval from repeat to repeat; None where they have none in common.
    """

    label: str
    fixed: bool
    best: bool
    throughput: EstimateRow
    speed: EstimateRow | None
    budget: float | None  # tokens verified a round, the last one included
    ratio: EstimateRow | None
    run_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AtLoad:
    """Rows that may be compared, the fastest first."""

    load: str
    tasks: str
    size: float
    rows: tuple[Row, ...]

    @property
    def best(self) -> Row:
        """The best fixed length."""
        return next(row for row in self.rows if row.best)


def at_loads(records: Sequence[Record]) -> tuple[list[AtLoad], list[str]]:
    """Every load with a fixed length, by rising load, and a note for each record that is in none.

    Errors: RecordError when nothing can be compared.
    """
    groups: dict[str, list[Record]] = {}
    notes = []
    for record in sorted(records, key=lambda record: (record.created, record.run_id)):
        if record.status != "ok" or record.find(THROUGHPUT) is None:
            notes.append(f"run {record.run_id} ({full_label(record)}) is {record.status} or has no steady throughput")
            continue
        reasons = keys.obstacles(record) + keys.timing_obstacles(record)
        if reasons:  # shown, as compare does, and said
            notes.append(f"run {record.run_id} ({full_label(record)}) cannot be ranked: {'; '.join(reasons)}")
        groups.setdefault(_setting(record), []).append(record)
    found = []
    for members in groups.values():
        rows = _rows(members)
        if rows:
            first = members[0]
            tasks = ", ".join(str(task) for task in first.spec.get("tasks") or ())
            found.append(AtLoad(str(first.comparability["load"]), tasks, _size(first), tuple(rows)))
        else:
            notes += [f"run {r.run_id} ({full_label(r)}): no fixed length was run beside it" for r in members]
    if not found:
        why = f" ({notes[0]})" if notes else ""
        raise RecordError(f"nothing to compare at a load{why}; name a folder with several policies at one load")
    return sorted(found, key=lambda one: (one.size, one.load, one.tasks)), notes


def _setting(record: Record) -> str:
    """What is compared agrees on everything but the contestant, and on the number of prompts that its seed drew."""
    key = dict(record.comparability)
    key["prompt_set"] = key["prompt_set"].get("count")
    key["rendering"] = {name: value for name, value in key["rendering"].items() if name != "dataset"}
    return digest([key, list(record.spec.get("tasks") or ())])


def _size(record: Record) -> float:
    rate = (record.spec.get("load") or {}).get("rate")
    return float(rate) if rate is not None else float(record.spec.get("concurrency", 1))


def _is_fixed(record: Record) -> bool:
    return record.method == BASELINE or policy_of(record).partition(":")[0] == "fixed"


def _repeats(runs: Sequence[Record]) -> dict[tuple[int, int], float]:
    """Throughput by (seed, repeat); runs outside a sweep are repeats in the order of their time."""
    found: dict[tuple[int, int], float] = {}
    for order, record in enumerate(runs):
        place = (record.provenance.get("sweep") or {}).get("repeat", order)
        row = record.find(THROUGHPUT)
        assert row is not None, "only such records are compared"
        found[int(record.spec.get("seed", 0)), int(place)] = row.value
    return found


def _rows(members: Sequence[Record]) -> list[Row]:
    arms: dict[str, list[Record]] = {}
    for record in members:
        arms.setdefault(row_key(record), []).append(record)
    held = [(runs, _repeats(runs)) for runs in arms.values()]
    fixed = [(runs, values) for runs, values in held if _is_fixed(runs[0])]
    if not fixed:
        return []
    sound = [one for one in fixed if not any(keys.obstacles(run) + keys.timing_obstacles(run) for run in one[0])]
    best, theirs = max(sound or fixed, key=lambda one: float(np.mean(list(one[1].values()))))
    made = []
    for runs, ours in held:
        shared = sorted(ours.keys() & theirs.keys())
        paired = [[values[place] for place in shared] for values in (ours, theirs)]
        means = [float(np.mean(values)) for values in paired] if shared else [0.0, 0.0]
        speeds = [row.value for run in runs if (row := run.find("tokens_per_s_user", stat="mean")) is not None]
        budgets = [row.value for run in runs if (row := run.find("verification_budget")) is not None]
        made.append(
            Row(
                label=full_label(runs[0]),
                fixed=_is_fixed(runs[0]),
                best=runs is best,
                throughput=curves.mean_row(THROUGHPUT, list(ours.values()), "tokens/s"),
                speed=curves.mean_row("tokens_per_s_user", speeds, "tokens/s") if speeds else None,
                budget=float(np.mean(budgets)) if budgets else None,
                ratio=curves.ratio_row("throughput_ratio", means[0] / means[1], *paired) if means[1] > 0 else None,
                run_ids=tuple(run.run_id for run in runs),
            )
        )
    return sorted(made, key=lambda row: -row.throughput.value)


# ----------------------------------------------------------------------------------------------------- on the screen


def loads_table(found: Sequence[AtLoad], notes: Iterable[str] = ()) -> RenderableType:
    """A row per load and contestant, the best fixed length marked, and what each policy reached over all loads."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0, header_style="bold")
    for name in ("load", "contestant"):
        table.add_column(name, no_wrap=True)
    for name in ("tok/s [95%]", "tok/s/user [95%]", "over best fixed [95%]", "verified a round", "runs"):
        table.add_column(name, justify="right")
    several = len({one.tasks for one in found}) > 1
    for one in found:
        for index, row in enumerate(one.rows):
            table.add_row(
                (f"{one.load} {one.tasks}" if several else one.load) if index == 0 else "",
                row.label + (" *" if row.best else ""),
                numbers.bounded(row.throughput),
                numbers.bounded(row.speed),
                numbers.ABSENT if row.best else _ratio(row.ratio),
                numbers.ABSENT if row.budget is None else f"{row.budget:.2f}",
                str(len(row.run_ids)),
            )
        table.add_section()
    legend = "* the best fixed length, plain decoding among them; intervals: Student's t over repeats, paired by repeat"
    lines = [legend, *_summary(found), *(f"note: {note}" for note in notes)]
    return Group(table, *(Text(line, "dim") for line in lines))


def _ratio(row: EstimateRow | None) -> str:
    if row is None:
        return numbers.ABSENT
    text = f"{row.value:.3f}"
    return text if row.low is None or row.high is None else f"{text} [{row.low:.3f},{row.high:.3f}]"


def _summary(found: Sequence[AtLoad]) -> Iterable[str]:
    labels = dict.fromkeys(row.label for one in found for row in one.rows if not row.fixed)
    for label in labels:
        ratios = [row.ratio for one in found for row in one.rows if row.label == label and row.ratio is not None]
        lows = [row.low for row in ratios if row.low is not None]
        if ratios:
            held, won = sum(low >= 0.98 for low in lows), sum(low > 1 for low in lows)
            yield (
                f"{label}: least ratio {min(row.value for row in ratios):.3f}; interval above .98 at {held} and "
                f"above 1 at {won} of {len(ratios)} loads"
            )
