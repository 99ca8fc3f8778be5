"""Measured values beside the paper's. A difference is given only where nothing that is known keeps the two apart."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from specbench.records.schema import EstimateRow
from specbench.report import curves, numbers
from specbench.report import entries as rows
from specbench.report import paper_values as paper
from specbench.report.entries import Entry, Measured, bucket
from specbench.report.figures import acceptance_rate, threshold
from specbench.report.frontier import frontier
from specbench.report.paper_values import PaperValue
from specbench.report.tables import policy_of


@dataclass(frozen=True, slots=True)
class Candidate:
    """A measured value, in the unit of the paper's, and what is not as in the paper, one phrase each."""

    value: float
    low: float | None
    high: float | None
    n: str
    run_ids: tuple[str, ...]
    apart: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """One of the paper's numbers with the nearest measured one; ``others`` is how many more there are."""

    paper: PaperValue
    measured: Candidate | None
    others: int = 0

    @property
    def difference(self) -> float | None:
        """Measured minus the paper's; to the nearer end of a range. None where something keeps them apart."""
        if self.measured is None or self.measured.apart:
            return None
        low = self.paper.value
        high = low if self.paper.high is None else self.paper.high
        return self.measured.value - min(max(self.measured.value, low), high)


def beside(entries: Sequence[Entry]) -> list[Line]:
    """A line for each of the paper's numbers, in its order."""
    by_method = bucket(entries, lambda entry: entry.record.method)
    ratios = _gains(entries)
    found = []
    for value in paper.paper_values():
        if value.quantity in _READERS:
            held = [_candidate(value, entry, measured)
                    for entry in by_method.get(value.method, ())
                    if (measured := _READERS[value.quantity](value, entry)) is not None]  # fmt: skip
        else:
            held = ratios(value)
        held.sort(key=lambda one: (len(one.apart), one.apart, one.run_ids))
        found.append(Line(value, held[0] if held else None, max(len(held) - 1, 0)))
    return found


# ---------------------------------------------------------------------------------------- how a quantity is read


def _scopes(value: PaperValue, entry: Entry) -> list[dict[str, str]]:
    """Where a value may stand, the nearest first: its task, its domain, everything."""
    found: list[dict[str, str]] = []
    if value.task is not None and value.task in _tasks(entry):
        found.append({"task": value.task})
    if value.domain is not None:
        found.append({"domain": value.domain})
    return [*found, {}]


def _first(value: PaperValue, entry: Entry, read: Callable[[dict[str, str]], Measured | None]) -> Measured | None:
    return next((held for scope in _scopes(value, entry) if (held := read(scope)) is not None), None)


def _tau(value: PaperValue, entry: Entry) -> Measured | None:
    return _first(value, entry, lambda scope: entry.get("tau", **scope)) if entry.plain else None


def _at_position(metric: str) -> Callable[[PaperValue, Entry], Measured | None]:
    def read(value: PaperValue, entry: Entry) -> Measured | None:
        assert value.at is not None
        return _first(value, entry, lambda scope: entry.get(metric, **scope, k=f"{value.at:g}"))

    return read


def _conditional(value: PaperValue, entry: Entry) -> Measured | None:
    return _at_position("conditional")(value, entry) if entry.plain else None


def _ece(value: PaperValue, entry: Entry) -> Measured | None:
    return _at_position("ece")(value, entry) if (entry.calibrated is not None) == value.calibrated else None


def _auroc(value: PaperValue, entry: Entry) -> Measured | None:
    return _first(value, entry, lambda scope: entry.get("auroc", **scope, k="1"))


def _acceptance(value: PaperValue, entry: Entry) -> Measured | None:
    cut = threshold(entry.record)
    lowest = value.quantity == "acceptance_lowest"
    if cut is None or (cut == 0) != lowest:
        return None
    return _first(value, entry, lambda scope: acceptance_rate(entry, scope))


def _budget(value: PaperValue, entry: Entry) -> Measured | None:
    return entry.get("verification_budget")


_READERS: dict[str, Callable[[PaperValue, Entry], Measured | None]] = {
    "tau": _tau,
    "conditional": _conditional,
    "ece": _ece,
    "auroc": _auroc,
    "acceptance_lowest": _acceptance,
    "acceptance_highest": _acceptance,
    "budget": _budget,
}


def _candidate(value: PaperValue, entry: Entry, held: Measured) -> Candidate:
    row = held.row
    scale = 100.0 if value.unit == "%" and row.unit == "fraction" else 1.0
    low, high = (None if bound is None else scale * bound for bound in (row.low, row.high))
    return Candidate(scale * row.value, low, high, _counted(row), held.run_ids, tuple(_apart(value, entry, row)))


def _counted(row: EstimateRow) -> str:
    return f"{numbers.count(row.n)} {row.n_of}"


# ------------------------------------------------------------------------------------- what keeps two values apart


def _tasks(entry: Entry) -> list[str]:
    return [str(task) for task in entry.record.spec.get("tasks") or ()]


def _last(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].lower()


def _apart(value: PaperValue, entry: Entry, row: EstimateRow | None) -> list[str]:
    """What is not as in the paper, or not known to be."""
    record, found = entry.record, []
    known = {"target": value.target, "temperature": value.temperature, "drafts a round": value.draft_length}
    unknown = [name for name, stated in known.items() if stated is None]
    if unknown:
        found.append(f"not carried over from the paper: {', '.join(unknown)}")
    if value.target is not None and _last(record.target.name) != paper.TARGETS[value.target]:
        found.append(f"target: {record.target.name}, not {value.target}")
    found += _apart_in_task(value, entry, row)
    found += _apart_in_drafter(value, entry)
    temperature = record.spec.get("temperature")
    if value.temperature is not None and temperature != value.temperature:
        found.append(f"temperature: {temperature}, not {value.temperature:g}")
    if value.quantity == "acceptance_highest":
        found.append(f"policy: {policy_of(record)}, the paper's threshold is not carried over here")
    if value.load is not None:
        found.append(f"load: {record.comparability.get('load')}, not {value.load}")
    return found


def _apart_in_task(value: PaperValue, entry: Entry, row: EstimateRow | None) -> list[str]:
    scope = {} if row is None else row.scope
    tasks = [scope["task"]] if "task" in scope else _tasks(entry)
    if value.task is not None and tasks != [value.task]:
        return [f"task: {', '.join(tasks) or 'not known'}, not {value.task}"]
    if value.domain is not None and value.task is None:
        wanted = [task for task, (_, domain) in paper.TASKS.items() if domain == value.domain]
        if scope.get("domain") != value.domain or not set(wanted) <= set(tasks):
            where = f"{scope['domain']} of {', '.join(tasks)}" if "domain" in scope else ", ".join(tasks)
            return [f"task: {where or 'not known'}, not {', '.join(wanted)}"]
    return []


def _apart_in_drafter(value: PaperValue, entry: Entry) -> list[str]:
    record, found = entry.record, []
    if value.draft_length is not None and record.draft_length != value.draft_length:
        found.append(f"drafts a round: {record.draft_length}, not {value.draft_length}")
    pattern = paper.CHECKPOINTS.get(value.method)
    if pattern is not None and value.target in paper.CHECKPOINT_TARGETS:
        wanted = pattern.format(paper.CHECKPOINT_TARGETS[value.target])
        name = record.drafter.name if record.drafter is not None else "none"
        if _last(name) != wanted:
            found.append(f"drafter: {name}, not {wanted}")
    return found


# --------------------------------------------------------------------------------------------- ratios of two arms


def _gains(entries: Sequence[Entry]) -> Callable[[PaperValue], list[Candidate]]:
    """Reads quantities that compare two methods, each pair inside one comparability group or family."""
    settings = bucket((entry for entry in entries if entry.plain), lambda e: rows.setting(e, timings=False))
    families = bucket(entries, lambda entry: rows.setting(entry, timings=True, loads=True))

    def read(value: PaperValue) -> list[Candidate]:
        if value.quantity == "gain_over_dflash":
            return [one for members in settings.values() for one in _tau_gains(value, members)]
        return [one for members in families.values() for one in _load_gains(value, members)]

    return read


def _percent(ratio: EstimateRow) -> tuple[float, float | None, float | None]:
    low, high = (None if bound is None else 100 * (bound - 1) for bound in (ratio.low, ratio.high))
    return 100 * (ratio.value - 1), low, high


def _tau_gains(value: PaperValue, members: Sequence[Entry]) -> Iterable[Candidate]:
    assert value.domain is not None
    arms = [
        [(entry, held) for entry in members
         if entry.record.method == method and entry.record.draft_length == value.draft_length
         and (held := entry.get("tau", domain=value.domain)) is not None]
        for method in (value.method, "dflash")
    ]  # fmt: skip
    for entry, ours in arms[0]:
        for _, theirs in arms[1]:
            ratio = curves.ratio_row("tau_gain", ours.row.value / theirs.row.value, [], [])
            ids = (*ours.run_ids, *theirs.run_ids)
            yield Candidate(*_percent(ratio), _counted(ours.row), ids, tuple(_apart(value, entry, ours.row)))


def _load_gains(value: PaperValue, members: Sequence[Entry]) -> Iterable[Candidate]:
    """Gains of DSpark's curves over MTP-1's, read as the frontier reads them; none outside what was measured."""
    ours, theirs = ([entry for entry in members if _is_arm(entry, method, length)]
                    for method, length in ((value.method, None), ("mtp", 1)))  # fmt: skip
    if not ours or not theirs:
        return
    found = [frontier([record for entry in arm for record in entry.records]).curves for arm in (ours, theirs)]
    for curve in found[0]:
        for base in found[1]:
            for row in _read_gain(value, curve, base):
                ids = tuple(run.run_id for line in (curve, base) for point in line.points for run in point.runs)
                yield Candidate(*_percent(row), _counted(row), ids, tuple(_apart(value, ours[0], row)))


def _is_arm(entry: Entry, method: str, length: int | None) -> bool:
    return entry.record.method == method and length in (None, entry.record.draft_length)


def _read_gain(value: PaperValue, curve: curves.Curve, base: curves.Curve) -> Iterable[EstimateRow]:
    if value.quantity == "throughput_gain":
        assert value.at is not None
        row = curves.gain_at_speed(curve, base, value.at)
        return [] if row is None else [row]
    held = [curves.gain_at_throughput(curve, base, point.throughput.value) for point in base.frontier]
    return [row for row in held if row is not None]


# --------------------------------------------------------------------------------------------------------- writing


_COLUMNS = (
    "place", "quantity", "method", "target", "task", "domain", "draft_length", "temperature", "at", "calibrated",
    "unit", "paper", "paper_high", "measured", "low", "high", "n", "difference", "apart", "other_candidates", "run_ids",
)  # fmt: skip


def to_csv(lines: Sequence[Line]) -> str:
    """Every line with its runs; absent values are empty, floats keep every digit."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for line in lines:
        value, held = line.paper, line.measured
        facts = (value.place, value.quantity, value.method, value.target, value.task, value.domain, value.draft_length,
                 value.temperature, value.at, value.calibrated, value.unit, value.value, value.high)  # fmt: skip
        measured = (None,) * 4 if held is None else (held.value, held.low, held.high, held.n)
        apart, ids = ("", "") if held is None else ("; ".join(held.apart), ";".join(held.run_ids))
        writer.writerow([*facts, *measured, line.difference, apart, line.others, ids])
    return text.getvalue()
