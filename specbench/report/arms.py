"""What a comparison is between: the runs behind a file, a run id or a folder, row by row."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.errors import RecordError
from specbench.records import keys, store
from specbench.records.schema import Record, digest
from specbench.report.series import workload_key
from specbench.report.tables import full_label, method_label

_METHOD = re.compile(r"[a-z][a-z0-9-]*(:\d+( [a-z][a-z0-9-]*(:\S+)?)?)?")


@dataclass(frozen=True, slots=True)
class Run:
    """A record and the folder that it and its rounds lie in."""

    record: Record
    folder: Path


@dataclass(frozen=True, slots=True)
class Arm:
    """Repeats of one row, oldest first: they differ in seed and time alone."""

    runs: tuple[Run, ...]

    @property
    def record(self) -> Record:
        """The first run's record, which speaks for all."""
        return self.runs[0].record

    @property
    def label(self) -> str:
        """``ngram:5``, with the policy where it is not the plain one."""
        return full_label(self.record)

    @property
    def place(self) -> tuple[str, str, str]:
        """What tells rows of one folder apart: label, load, tasks and sampling."""
        spec = self.record.spec
        chosen = [f"{name}={spec.get(name)}" for name in ("tasks", "temperature", "top_p", "top_k", "max_new_tokens")]
        return self.label, str(self.record.comparability.get("load")), " ".join(chosen)


@dataclass(frozen=True, slots=True)
class Found:
    """The rows behind one name, and what was left out of them."""

    name: str
    arms: tuple[Arm, ...]
    notes: tuple[str, ...]


def find_arms(name: str, *, folder: Path) -> Found:
    """The rows behind a record's file, a run id in ``folder`` (or its beginning), a folder, or a method of ``folder``.

    A method is named with its draft length and policy, as in ``dspark:7`` or ``dspark:7 load-aware``. Runs that failed
    or left no rounds are noted and left out. Errors: RecordError when nothing usable is there.
    """
    given, notes = Path(name), []
    wanted: str | None = None
    if given.is_dir():
        paths = store.record_files(given)
    elif given.suffix == ".json" or given.is_file():
        paths = [given]
    elif _METHOD.fullmatch(name) and set(name) - set("0123456789abcdef"):
        paths, wanted = store.record_files(folder), name
    else:
        paths = [store.find(folder, name)]
    rows: dict[str, list[Run]] = {}
    for path in paths:
        try:
            record = store.read(path)
        except RecordError as error:
            if len(paths) == 1:
                raise
            notes.append(f"left out: {error}")
            continue
        if wanted is not None and full_label(record) != wanted:
            continue
        if record.status != "ok" or record.rounds is None:
            why = record.error.message if record.error is not None else "it left no rounds"
            notes.append(f"left out: run {record.run_id} ({method_label(record)}) is {record.status}: {why}")
            continue
        rows.setdefault(row_key(record), []).append(Run(record, path.parent))
    if not rows:
        reason = f": {notes[0]}" if notes else ""
        where = f"{folder} holds no finished run of {name}" if wanted is not None else f"{name} holds no finished run"
        raise RecordError(f"{where}{reason}; name a record, a run id, a folder with records, or a method as dspark:7")
    arms = [Arm(tuple(sorted(runs, key=lambda run: (run.record.created, run.record.run_id)))) for runs in rows.values()]
    return Found(name, tuple(sorted(arms, key=lambda arm: arm.place)), tuple(notes))


def row_key(record: Record, *, without: Sequence[str] = ()) -> str:
    """What runs of one row share: all but the seed, and the sample of prompts that was drawn with it.

    ``without`` are further fields of the spec to leave out; with one of them, the load, the row limit and the number of
    prompts are too.
    """
    spec = {name: value for name, value in record.spec.items() if name not in ("seed", "inputs", *without)}
    inputs = record.spec.get("inputs") or {}
    kept = {name: value for name, value in inputs.items() if name not in ("rendering", "prompt_set")}
    key: dict[str, Any] = workload_key(record) if without else dict(record.comparability)
    if not without:
        key["prompt_set"] = key["prompt_set"].get("count")
        key["rendering"] = {name: value for name, value in key["rendering"].items() if name != "dataset"}
    weights = record.drafter.sha256 if record.drafter is not None else None
    return digest([record.method, record.draft_length, weights, spec, kept, key])


def paired_runs(first: Arm, second: Arm) -> tuple[list[tuple[Run, Run]], list[str]]:
    """Runs with the same seed, the oldest with the oldest, and notes on runs without a partner."""
    ours, theirs = by_seed(first), by_seed(second)
    pairs = [pair for seed in sorted(ours.keys() & theirs.keys()) for pair in zip(ours[seed], theirs[seed])]
    left = [(arm.label, len(arm.runs) - len(pairs)) for arm in (first, second)]
    return pairs, [f"{count} runs of {label} have no partner with their seed" for label, count in left if count]


def by_seed(arm: Arm) -> dict[int, list[Run]]:
    """Runs of a row by their seed, oldest first."""
    found: dict[int, list[Run]] = {}
    for run in arm.runs:
        found.setdefault(int(run.record.spec.get("seed", 0)), []).append(run)
    return found


def paired_arms(first: Found, second: Found) -> tuple[list[tuple[Arm, Arm]], list[str]]:
    """Which row is compared with which, and notes on those without a partner.

    One row on each side is a pair, whatever the methods; else rows are paired by method, policy, load, tasks and
    sampling, without method and policy where each side has one only. Errors: RecordError when no row has a partner, or
    more than one.
    """
    if len(first.arms) == len(second.arms) == 1:
        return [(first.arms[0], second.arms[0])], []
    single = all(len({arm.label for arm in found.arms}) == 1 for found in (first, second))
    ours, theirs = (_by_place(found, whole=not single) for found in (first, second))
    pairs = [(arm, theirs[place]) for place, arm in ours.items() if place in theirs]
    if not pairs:
        raise RecordError(
            f"no row of {first.name} has a partner in {second.name} with the same method, policy, load, tasks and "
            f"sampling; name two runs to compare different methods ({_listed(first.arms)} against "
            f"{_listed(second.arms)})"
        )
    alone = [(first.name, arm) for place, arm in ours.items() if place not in theirs]
    alone += [(second.name, arm) for place, arm in theirs.items() if place not in ours]
    return pairs, [f"no partner for {arm.label} at {arm.place[1]} of {name}" for name, arm in alone]


def _by_place(found: Found, *, whole: bool) -> dict[tuple[str, ...], Arm]:
    rows: dict[tuple[str, ...], Arm] = {}
    for arm in found.arms:
        other = rows.setdefault(arm.place if whole else arm.place[1:], arm)
        if other is not arm:
            differ = keys.row_differences(other.record, arm.record)
            raise RecordError(
                f"{found.name} holds two rows of {arm.label} at {arm.place[1]} ({other.record.run_id} and "
                f"{arm.record.run_id}: {'; '.join(differ[:3])}); name the run to compare"
            )
    return rows


def _listed(arms: Sequence[Arm]) -> str:
    shown = [f"{arm.label} at {arm.place[1]}" for arm in arms]
    return ", ".join(shown[:4]) + (", ..." if len(shown) > 4 else "")
