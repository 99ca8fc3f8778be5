"""Two rows side by side, paired on prompt and seed; rows that are not comparable are refused with the difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specbench.errors import RecordError
from specbench.metrics._identities import check_identities
from specbench.metrics._paired import Contrast, Matched, contrasts, macro_tau, match
from specbench.records import keys, store
from specbench.records.schema import EstimateRow
from specbench.report import numbers
from specbench.report.arms import Arm, Run, by_seed, find_arms, paired_arms, paired_runs
from specbench.report.tables import method_label
from specbench.types import Estimate, RunTrace

_TITLES = {
    "tau": "tau",
    "acceptance_rate": "acceptance rate",
    "mean_output_tokens": "output tokens",
    "seconds_per_decode_token": "ms per decode token",
    "ttft": "TTFT ms",
    "tpot": "TPOT ms",
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """The second arm against the first. ``runs`` are the paired run ids; ``requests`` the pairs behind the figures."""

    first: str
    second: str
    load: str
    tasks: str
    runs: tuple[tuple[str, str], ...]
    requests: int
    contrasts: tuple[Contrast, ...]
    notes: tuple[str, ...]


def compare(first: str, second: str, *, folder: Path, timings: bool = True) -> list[Comparison]:
    """Compare what two names stand for: records, run ids or methods in ``folder``, or folders; a result a pair of rows.

    Rows that differ in the task alone are followed by the mean of their accepted lengths.

    ``timings`` False leaves out what depends on the machine, and then the machines may differ. Errors: RecordError
    when rows disagree on what must agree, naming it, or share no request.
    """
    ours, theirs = find_arms(first, folder=folder), find_arms(second, folder=folder)
    pairs, notes = paired_arms(ours, theirs)
    runs = [_checked_runs(one, other, timings=timings) for one, other in pairs]  # all, before anything is read
    remarks = [*ours.notes, *theirs.notes, *notes]
    made = [
        _compared(*arms, *found, timings=timings, notes=remarks if not index else [])
        for index, (arms, found) in enumerate(zip(pairs, runs))
    ]
    return [found for found, _ in made] + _over_tasks(pairs, made)


def _over_tasks(pairs: Sequence[tuple[Arm, Arm]], made: Sequence[tuple[Comparison, Matched]]) -> list[Comparison]:
    """The mean over tasks of each set of rows that differ in the task alone, where there are several."""
    sets: dict[tuple[str, ...], list[tuple[str, Comparison, Matched]]] = {}
    for (one, other), (found, matched) in zip(pairs, made):
        names = [str(name) for name in one.record.spec.get("tasks") or ()]
        if len(names) == 1:
            sampling = [str(one.record.spec.get(name)) for name in ("temperature", "top_p", "top_k", "max_new_tokens")]
            place = (one.label, other.label, found.load, *sampling)
            sets.setdefault(place, []).append((names[0], found, matched))
    macros = []
    for members in sets.values():
        contrast = macro_tau([matched for _, _, matched in members]) if len(members) > 1 else None
        if contrast is not None:
            first = members[0][1]
            runs = tuple(pair for _, found, _ in members for pair in found.runs)
            count = sum(found.requests for _, found, _ in members)
            tasks = f"mean over {', '.join(sorted(name for name, _, _ in members))}"
            macros.append(Comparison(first.first, first.second, first.load, tasks, runs, count, (contrast,), ()))
    return macros


def check_comparable(first: Run, second: Run, *, timings: bool) -> None:
    """Refuse runs that must not be compared. Errors: RecordError naming every difference."""
    ours, theirs = first.record, second.record
    found = keys.differences(ours.comparability, theirs.comparability, timings=timings)
    if not found:
        return
    hint = "compare rows that agree on these"
    if not keys.differences(ours.comparability, theirs.comparability, timings=False):
        hint += ", or leave out what depends on the machine with --no-timings"
    raise RecordError(
        f"runs {ours.run_id} ({method_label(ours)}) and {theirs.run_id} ({method_label(theirs)}) cannot be compared: "
        f"{'; '.join(found)}; {hint}"
    )


def _checked_runs(first: Arm, second: Arm, *, timings: bool) -> tuple[list[tuple[Run, Run]], list[str]]:
    """The runs to compare, each pair of them comparable. Errors: RecordError."""
    pairs, remarks = paired_runs(first, second)
    for one, other in pairs or [(first.runs[0], second.runs[0])]:
        check_comparable(one, other, timings=timings)
    if not pairs:
        raise RecordError(
            f"{first.label} ran with seeds {sorted(by_seed(first))} and {second.label} with "
            f"{sorted(by_seed(second))}; comparisons are paired on the seed, run both with the same"
        )
    return pairs, remarks


def _compared(
    first: Arm, second: Arm, pairs: Sequence[tuple[Run, Run]], remarks: Sequence[str], *, timings: bool,
    notes: Sequence[str],
) -> tuple[Comparison, Matched]:  # fmt: skip
    remarks = list(remarks)
    matched = match([_trace(one) for one, _ in pairs], [_trace(other) for _, other in pairs])
    if not matched.pairs:
        raise RecordError(
            f"{first.label} ({first.record.run_id}) and {second.label} ({second.record.run_id}) share no finished "
            "request with the same prompt and seed; run both on the same prompts and seed"
        )
    for arm, count in zip((first, second), matched.alone):
        if count:
            remarks.append(f"{count} requests of {arm.label} have no partner and are left out")
    for arm in (first, second):
        reasons = keys.obstacles(arm.record) + (keys.timing_obstacles(arm.record) if timings else [])
        if reasons:
            remarks.append(f"{arm.label} cannot be ranked: {'; '.join(reasons)}")
    found = Comparison(
        first=first.label,
        second=second.label,
        load=first.place[1],
        tasks=", ".join(str(name) for name in first.record.spec.get("tasks") or ()),
        runs=tuple((one.record.run_id, other.record.run_id) for one, other in pairs),
        requests=len(matched.pairs),
        contrasts=tuple(contrasts(matched, timings=timings)),
        notes=(*notes, f"drafts a cycle: {first.record.draft_length} against {second.record.draft_length}", *remarks),
    )
    return found, matched


def _trace(run: Run) -> RunTrace:
    trace = store.read_trace(run.folder, run.record)
    check_identities(trace)
    return trace


# ---------------------------------------------------------------------------------------------------- on the screen


def comparison_table(found: Comparison) -> RenderableType:
    """A row per figure: both arms, difference and ratio with paired intervals, and the ratio from run to run."""
    runs = f"{len(found.runs)} runs an arm" if len(found.runs) > 1 else "one run an arm"
    place = f"load {found.load}, {found.tasks}" if found.tasks else f"load {found.load}"
    title = f"{found.second} (B) against {found.first} (A), {place}: {found.requests} request pairs, {runs}"
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0, title=title, title_justify="left")
    table.add_column("", no_wrap=True)
    for name in ("A", "B", "B - A [95%]", "B / A [95%]", "B / A run to run", "n"):
        table.add_column(name, justify="right")
    for row in found.contrasts:
        table.add_row(_title(row), *_figures(row))
    legend = "intervals: bootstrap over prompts, paired on prompt and seed; run to run: Student's t over runs"
    return Group(table, Text(legend, "dim"), *(Text(f"note: {note}", style="dim") for note in found.notes))


def _title(row: Contrast) -> str:
    stat = " ".join(value for _, value in row.scope)
    return f"{_TITLES[row.metric]} {stat}".strip()


def _figures(row: Contrast) -> list[str]:
    scale = 1000.0 if row.unit.startswith("s") else 1.0
    return [
        numbers.general(row.first * scale),
        numbers.general(row.second * scale),
        _bounded(row.difference, scale=scale, sign=True),
        _bounded(row.ratio),
        _bounded(row.ratio_runs),
        str(row.difference.n),
    ]


def _bounded(estimate: Estimate | None, *, scale: float = 1.0, sign: bool = False) -> str:
    if estimate is None:
        return numbers.ABSENT

    def shown(value: float) -> str:
        text = f"{value * scale:+.4g}" if sign else f"{value:.3f}"
        return text.removeprefix("+") if value == 0 else text

    row = EstimateRow.of(estimate)
    if row.low is None or row.high is None:
        return shown(row.value)
    return f"{shown(row.value)} [{shown(row.low)},{shown(row.high)}]"
