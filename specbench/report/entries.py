"""Repeats of a row as one: what a figure's point is drawn from, and which points may share a sheet.

Repeats differ in seed and in the sample of prompts drawn with it. Points share a sheet where their comparability keys
agree, all prompt samples included, but for what the figure itself varies (the load) or does not depend on (the
machine).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from specbench.metrics._resampled import run_to_run
from specbench.records import keys
from specbench.records.schema import EstimateRow, Record, digest
from specbench.report.board import Estimates, facts_of
from specbench.report.curves import estimate_row
from specbench.report.tables import method_label, policy_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Measured:
    """An estimate over the runs that have it: of one run as recorded, of several their mean."""

    row: EstimateRow
    run_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """Repeats of one row, oldest first; ``found`` are their estimates."""

    records: tuple[Record, ...]
    found: tuple[Estimates, ...]

    @property
    def record(self) -> Record:
        """The first run, which speaks for all in everything but seed and numbers."""
        return self.records[0]

    @property
    def policy(self) -> str:
        """Name of the verification policy, without its argument."""
        return policy_of(self.record).partition(":")[0]

    @property
    def plain(self) -> bool:
        """Every draft is verified in every round."""
        name, _, argument = policy_of(self.record).partition(":")
        return name == "fixed" and argument in ("", str(self.record.draft_length))

    @property
    def timed(self) -> bool:
        """Its times may be ranked: the machine had no other work in any of the runs."""
        return not any(keys.timing_obstacles(record) for record in self.records)

    @property
    def calibrated(self) -> str | None:
        """Hash of the calibration of its confidences; None where they are the drafter's own."""
        return calibration_of(self.record)

    def get(self, metric: str, **scope: str) -> Measured | None:
        """The estimate with exactly this scope, over the runs that have it; None where none has."""
        held = [
            (record.run_id, row)
            for record, found in zip(self.records, self.found)
            if (row := found.get(metric, scope.items())) is not None
        ]
        if not held:
            return None
        rows = [row for _, row in held]
        if len(rows) == 1:
            return Measured(rows[0], (held[0][0],))
        values = [row.value for row in rows]
        mean = estimate_row(metric, float(np.mean(values)), rows[0].unit, n=len(rows), bounds=run_to_run(values))
        return Measured(mean.model_copy(update={"scope": dict(scope)}), tuple(name for name, _ in held))

    def domains(self) -> list[str]:
        """Domains that any of the runs has a tau for."""
        return sorted({name for found in self.found for name in found.domains()})


def calibration_of(record: Record) -> str | None:
    """Hash of the calibration that a run applied to its drafter's confidences, or None."""
    found = (record.spec.get("inputs") or {}).get("calibration")
    return None if found is None else str(found)


UNSURE = " (inconclusive)"  # behind a label
_INCONCLUSIVE = "the losslessness verdict is inconclusive"


def gather(records: Sequence[Record], *, unsure: bool = False) -> tuple[list[Entry], list[str]]:
    """Rows that may be ranked, repeats together, and a note for every run that may not.

    With ``unsure`` those whose verdict could not tell are there too; their labels say so.
    """
    rows: dict[str, list[Record]] = {}
    notes = []
    for record in sorted(records, key=lambda record: (record.created, record.run_id)):
        reasons = [text for text in keys.obstacles(record) if not (unsure and text == _INCONCLUSIVE)]
        if not reasons and not record.estimates:
            reasons = ["it holds no estimates"]
        if reasons:
            notes.append(f"run {record.run_id} ({method_label(record)}): {'; '.join(reasons)}")
            continue
        notes += [f"run {record.run_id} ({method_label(record)}): {text}" for text in keys.timing_obstacles(record)]
        rows.setdefault(_repeat_key(record), []).append(record)
    groups = [group for found in rows.values() for group in _split(found)]
    return [Entry(tuple(group), tuple(Estimates(record) for record in group)) for group in groups], notes


def _repeat_key(record: Record) -> str:
    key = {name: value for name, value in record.comparability.items() if name not in ("prompt_set", "rendering")}
    rendering = {name: value for name, value in _rendering(record).items() if name != "dataset"}
    count = (record.comparability.get("prompt_set") or {}).get("count")
    tasks = list(record.spec.get("tasks") or ())
    return digest([key, rendering, count, tasks, contestant(record)])


def _split(group: list[Record]) -> list[list[Record]]:
    """Runs of one seed that saw different prompts are no repeats: then each set of prompts is a row of its own."""
    seen: dict[object, set[str]] = {}
    for record in group:
        seen.setdefault(record.spec.get("seed"), set()).add(_prompts(record))
    if all(len(sets) == 1 for sets in seen.values()):
        return [group]
    return list(bucket(group, _prompts).values())


def _prompts(record: Record) -> str:
    rendering = _rendering(record)
    return digest([rendering.get("dataset"), rendering.get("turns"), record.comparability.get("prompt_set")])


def _rendering(record: Record) -> dict[str, Any]:
    return dict(record.comparability.get("rendering") or {})


def contestant(record: Record, *, without: Sequence[str] = ()) -> str:
    """What is measured, whatever the setting: method, length, weights, policy and options.

    ``without`` names parts that a figure varies: "draft_length", "weights", "policy", "calibration".
    """
    spec = record.spec
    inputs = spec.get("inputs") or {}
    parts: dict[str, Any] = {
        "method": record.method,
        "draft_length": record.draft_length,
        "weights": record.drafter.sha256 if record.drafter is not None else None,
        "policy": policy_of(record),
        "options": spec.get("options") or {},
        "calibration": inputs.get("calibration"),
        "cost_table": inputs.get("cost_table"),
        "backend": spec.get("backend"),
    }
    return digest({name: value for name, value in parts.items() if name not in without})


def setting(entry: Entry, *, timings: bool, loads: bool = False, drop: Sequence[str] = ()) -> str:
    """Hash of what entries of one sheet agree on: their keys with all prompt samples.

    ``timings`` keeps the machine's part, ``loads`` leaves out the load's size (not its pattern and other options),
    ``drop`` leaves out further parts.
    """
    key = {name: value for name, value in entry.record.comparability.items() if name not in drop}
    key["prompt_set"] = [] if "prompt_set" in drop else sorted({_prompts(record) for record in entry.records})
    if "rendering" not in drop:
        shown = _rendering(entry.record).items()
        key["rendering"] = {name: value for name, value in shown if name not in ("dataset", "turns")}
    timing = dict(key.pop("timing", None) or {})
    if loads:
        options = str(key.get("load", "")).split(",")[1:]
        key["load"] = [pattern(entry), [option for option in options if not option.startswith("rate=")]]
        if "rate" not in _load(entry.record):  # users are rows
            timing.pop("row_limit", None)
    return digest([key, timing if timings else None])


def prompts_key(entry: Entry) -> str:
    """Hash of the prompts of all repeats."""
    return digest(sorted({_prompts(record) for record in entry.records}))


def pattern(entry: Entry) -> str:
    """The load's pattern, ``closed`` or ``poisson``, without its size."""
    return str(entry.record.comparability.get("load", "")).partition(",")[0].partition(":")[0]


def load_size(entry: Entry) -> float:
    """Requests a second of an open loop, else the number of users."""
    rate = _load(entry.record).get("rate")
    return float(rate) if rate is not None else float(entry.record.spec.get("concurrency", 1))


def _load(record: Record) -> dict[str, Any]:
    return dict(record.spec.get("load") or {})


def bucket(items: Iterable[T], key: Callable[[T], str]) -> dict[str, list[T]]:
    """Items by key, in the order in which the keys first come up."""
    found: dict[str, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def joined_facts(entries: Sequence[Entry], *, without: Sequence[str] = ()) -> dict[str, str]:
    """Facts of the entries by heading; where they differ, each once."""
    texts: dict[str, list[str]] = {}
    for entry in entries:
        for name, text in facts_of(entry.record).items():
            if name not in without and text not in texts.setdefault(name, []):
                texts[name].append(text)
    return {name: "; ".join(found) for name, found in texts.items()}


def labels(entries: Sequence[Entry], plain: Callable[[Record], str]) -> list[str]:
    """A label for each contestant; those that share one are told apart by what they differ in, at last by a run."""
    found = [plain(entry.record) + (UNSURE if inconclusive(entry) else "") for entry in entries]
    for text in sorted({text for text in found if found.count(text) > 1}):
        same = [index for index, label in enumerate(found) if label == text]
        told = _told([_facts(entries[index]) for index in same])
        for index, words in zip(same, told):
            clear = words and told.count(words) == 1
            found[index] = f"{text} ({words if clear else f'run {entries[index].record.run_id}'})"
    return found


def inconclusive(entry: Entry) -> bool:
    """Whether the verdict of a run of it could not tell."""
    return any(r.verdict is not None and r.verdict.outcome == "inconclusive" for r in entry.records)


def _told(facts: Sequence[dict[str, str]]) -> list[str]:
    """Of each the facts that are not the same in all, as many as are needed to tell all apart."""
    words = [""] * len(facts)
    for name in facts[0]:
        if len({one[name] for one in facts}) > 1 and len(set(words)) < len(words):
            words = [", ".join(filter(None, (word, f"{name} {one[name]}"))) for word, one in zip(words, facts)]
    return words


def _facts(entry: Entry) -> dict[str, str]:
    record = entry.record
    options = record.spec.get("options") or {}
    return {
        "drafter": record.drafter.name if record.drafter is not None else "none",
        "weights": record.drafter.sha256[:8] if record.drafter is not None else "none",
        "policy": policy_of(record),
        "calibration": (entry.calibrated or "none")[:8],
        "options": ", ".join(f"{name} {value}" for name, value in sorted(options.items())) or "none",
    }
