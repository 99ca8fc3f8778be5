"""One group of a sweep: its arms measured one after the other on one session, each judged against the group's control.

Arms that come before the control in the order wait for it, unwritten. A control that an earlier process measured is
read back from its record.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from specbench import provenance
from specbench.cell import Measurement, PlannedCell, measure_cell, plan_cell
from specbench.engine.sequence import hash_ids
from specbench.errors import ConfigError, RecordError, SpecbenchError
from specbench.interleave import measure_in_turn
from specbench.judging import judge
from specbench.recording import Recorder, one_line
from specbench.records import store
from specbench.records.schema import Record
from specbench.session import Session, TargetShelf, choose_device, open_session
from specbench.sweep_failure import unplanned
from specbench.sweep_folder import ResultsFolder
from specbench.sweep_plan import Group, SweepCell
from specbench.types import Status
from specbench.workloads.driver import DriveProgress


class FolderError(RecordError):
    """The results folder takes no more; what is in it stays."""


@dataclass(frozen=True, slots=True)
class CellOutcome:
    """How a cell ended; ``error`` is one line, and ``user_fault`` says whose it is."""

    cell: SweepCell
    record: Record
    error: str | None = None
    user_fault: bool = False


class Screen(Protocol):
    """Who follows a sweep."""

    def step(self, text: str) -> AbstractContextManager[object]:
        """Entered around a long step."""
        ...

    def started(self, cell: SweepCell) -> None:
        """A cell is about to be measured."""
        ...

    def progress(self, cell: SweepCell, drive: DriveProgress) -> None:
        """How far it is."""
        ...

    def finished(self, outcome: CellOutcome) -> None:
        """Its record is written."""
        ...

    def say(self, text: str) -> None:
        """A remark."""
        ...


@dataclass(slots=True)
class _Measured:
    """A measured cell that has no record yet. Times in seconds."""

    cell: SweepCell
    planned: PlannedCell
    measured: Measurement
    started_s: float
    setup_s: float
    measure_s: float


@dataclass(slots=True)
class Process:
    """What the groups of one process share: the loaded target, the machine's facts, the folder, the clock.

    ``measure_s`` and ``judge_s`` are the seconds in measurements and verdicts; all else that a sweep takes is set-up.
    """

    sweep: str
    results: ResultsFolder
    screen: Screen
    stop: Callable[[], bool]
    enough: Callable[[SweepCell], bool] = lambda cell: False  # no time is left to begin this one
    command: Sequence[str] = ()
    threads: int | None = None
    executor: str = "local"
    shelf: TargetShelf = field(default_factory=TargetShelf)
    measure_s: float = 0.0
    judge_s: float = 0.0
    outcomes: list[CellOutcome] = field(default_factory=list)
    _machines: dict[str, dict[str, Any]] = field(default_factory=dict)
    _said: set[str] = field(default_factory=set)

    def machine(self, device: str, threads: int | None) -> dict[str, Any]:
        """Code and machine, looked at once, and the moment's load."""
        if device not in self._machines:
            self._machines[device] = provenance.collect(device=device, threads=threads)
            return self._machines[device]
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        load = provenance.load_facts(interval_s=0.1)
        return {**self._machines[device], "time_utc": now, "load": load, "threads": provenance.thread_facts(threads)}

    def say_once(self, text: str) -> None:
        """A remark that would repeat from group to group."""
        if text not in self._said:
            self._said.add(text)
            self.screen.say(text)


def run_group(process: Process, group: Group, todo: Sequence[SweepCell]) -> None:
    """Measure the cells to do, in the group's order. Ends early where the process is told to stop.

    Errors: FolderError when a record cannot be written; RecordError when a finished control cannot be read back.
    """
    run = group.run.model_copy(update={"threads": group.run.threads or process.threads, "out": process.results.path})
    try:
        session = open_session(run, step=process.screen.step, shelf=process.shelf)
    except Exception as error:  # whatever a target or a task raises ends its own cells only
        facts = process.machine(choose_device(run.device), run.threads)
        for cell in todo:
            _Cells(process, group, None, facts).fail(cell, error, started_s=time.time())
        return
    _Cells(process, group, session, process.machine(session.device, session.threads)).run(todo)


class _Cells:
    """The cells of one group on one session."""

    def __init__(self, process: Process, group: Group, session: Session | None, machine: dict[str, Any]) -> None:
        self._process = process
        self._group = group
        self._shared = session
        self._machine = machine
        self._control: tuple[Measurement, str] | None = None  # with its run id
        self._same: dict[str, str] = {}  # labels by the key of what was resolved

    def run(self, todo: Sequence[SweepCell]) -> None:
        """All of them, those before the control judged when it is there."""
        process, waiting = self._process, list[_Measured]()
        control = self._group.control
        awaited = control is not None and control in todo
        self._remember_finished()
        if not awaited:
            self._read_control()  # before anything is measured that could not be judged
        together = self._measure_in_turn(todo) if self._group.interleave and not process.stop() else None
        for cell in todo:
            if together is None and (process.stop() or (not waiting and process.enough(cell))):
                break
            done = self._measure(cell) if together is None else together.get(cell.key)
            if cell.is_control:
                if done is not None:
                    self._write(done)
                awaited = done is None and process.stop()
                for arm in [] if awaited else waiting:
                    self._write(arm)
                waiting = waiting if awaited else []
            elif done is not None and awaited:
                waiting.append(done)
            elif done is not None:
                self._write(done)
        if waiting:
            names = ", ".join(done.cell.settings["method"] for done in waiting)
            process.screen.say(f"not written, as their control was not reached: {names}; they are measured again")

    def _session(self, cell: SweepCell) -> Session:
        assert self._shared is not None, "cells are measured on a session"
        shared = self._shared
        update = {"threads": shared.threads, "out": self._process.results.path}
        return replace(shared, spec=cell.run.model_copy(update=update))

    def _remember_finished(self) -> None:
        assert self._shared is not None
        inputs = {"target_weights": self._shared.resolved.weights_sha256}
        inputs |= {f"task {name}": version for name, version in self._shared.prompts.tasks}
        for cell in self._group.cells:
            record = self._process.results.finished.get(cell.key)
            if record is None:
                continue
            self._same[record.cell_key] = cell.settings["method"]
            held = record.spec.get("inputs", {})
            for name in (name for name, value in inputs.items() if held.get(name, value) != value):
                self._process.say_once(
                    f"finished cells were measured with another {name.replace('_', ' ')} than this machine has now:"
                    " they are not comparable with what follows; use another folder to measure all of them again"
                )

    # ------------------------------------------------------------------------------------------------ one cell

    def _measure(self, cell: SweepCell) -> _Measured | None:
        """None: the cell failed, which is written, or it was stopped, which leaves it to be done."""
        process, session = self._process, self._session(cell)
        process.screen.started(cell)
        started_s, start = time.time(), time.perf_counter()
        planned: PlannedCell | None = None
        try:
            planned = plan_cell(session, cell.method, step=process.screen.step, keep=True)
            self._check_other(cell, planned)
            setup_s = time.perf_counter() - start
            measured = measure_cell(
                session, planned, stop=process.stop, on_progress=lambda drive: process.screen.progress(cell, drive)
            )
        except Exception as error:  # whatever a plugin raises ends its own cell only
            self.fail(cell, error, started_s=started_s, planned=planned)
            return None
        measure_s = time.perf_counter() - start - setup_s
        process.measure_s += measure_s
        if measured.trace.status == Status.INTERRUPTED:
            process.screen.say(f"stopped inside {cell.settings['method']}; the cell is measured again")
            return None
        return _Measured(cell, replace(planned, contestant=None), measured, started_s, setup_s, measure_s)

    def _measure_in_turn(self, todo: Sequence[SweepCell]) -> dict[str, _Measured]:
        """All cells to do, a step of one after a step of another; without those that failed, or were stopped."""
        process, ready = self._process, list[tuple[SweepCell, Session, PlannedCell, float]]()
        started_s = time.time()
        for cell in todo:
            session, start = self._session(cell), time.perf_counter()
            planned: PlannedCell | None = None
            try:
                planned = plan_cell(session, cell.method, step=process.screen.step, keep=True)
                self._check_other(cell, planned)
            except Exception as error:  # as below
                self.fail(cell, error, started_s=started_s, planned=planned)
            else:
                ready.append((cell, session, planned, time.perf_counter() - start))
        start = time.perf_counter()
        found = measure_in_turn(
            [(session, planned) for _, session, planned, _ in ready],
            stop=process.stop,
            on_progress=[partial(process.screen.progress, cell) for cell, *_ in ready],
        )
        measure_s = (time.perf_counter() - start) / max(len(ready), 1)
        process.measure_s += measure_s * len(ready)
        done: dict[str, _Measured] = {}
        for (cell, _, planned, setup_s), measured in zip(ready, found, strict=True):
            if isinstance(measured, Exception):
                self.fail(cell, measured, started_s=started_s, planned=planned)
            elif measured.trace.status == Status.INTERRUPTED:
                process.screen.say(f"stopped inside {cell.settings['method']}; the cell is measured again")
            else:
                kept = replace(planned, contestant=None)
                done[cell.key] = _Measured(cell, kept, measured, started_s, setup_s, measure_s)
        return done

    def _check_other(self, cell: SweepCell, planned: PlannedCell) -> None:
        label = cell.settings["method"]
        other = self._same.setdefault(planned.spec.key(), label)
        if other != label:
            raise ConfigError(f"'{other}' and '{label}' are the same cell ({planned.label}); list it once")

    def _write(self, done: _Measured) -> None:
        """Judge, and write the record."""
        start, cell = time.perf_counter(), done.cell
        session = self._session(cell)
        control, control_id = (None, None) if cell.is_control else self._read_control()
        try:
            synthetic = done.planned.spec.synthetic is not None
            judged = judge(done.measured, control=control, target=session.target, synthetic=synthetic)
            spent = {"setup_s": done.setup_s, "measure_s": done.measure_s, "judge_s": time.perf_counter() - start}
            recorder = self._recorder(session, cell, {**spent, "total_s": sum(spent.values())})
            record, data = recorder.finished(
                done.planned, done.measured, judged, started_s=done.started_s, baseline=control_id
            )
        except Exception as error:
            self.fail(cell, error, started_s=done.started_s, planned=done.planned, measured=done.measured)
            return
        finally:
            self._process.judge_s += time.perf_counter() - start
        self._keep(CellOutcome(cell, record), recorder, data)
        if cell.is_control:
            self._control = (done.measured, record.run_id)

    def _recorder(self, session: Session, cell: SweepCell, spent: dict[str, float]) -> Recorder:
        return Recorder(session, self._process.command, {**self._machine, "sweep": self._place(cell, spent)})

    def _place(self, cell: SweepCell, spent: dict[str, float]) -> dict[str, Any]:
        order = [other.key for other in self._group.cells].index(cell.key)
        return {
            "name": self._process.sweep,
            "cell": cell.key,
            "group": cell.group,
            "repeat": cell.repeat,
            "order": order,
            **({"interleaved": True} if self._group.interleave else {}),
            **({} if self._process.executor == "local" else {"executor": self._process.executor}),
            **{name: round(value, 4) for name, value in spent.items()},
        }

    def fail(
        self,
        cell: SweepCell,
        error: Exception,
        *,
        started_s: float,
        planned: PlannedCell | None = None,
        measured: Measurement | None = None,
    ) -> None:
        """Write the row of a cell that has no result. Errors: FolderError."""
        data: bytes | None = None
        machine = {**self._machine, "sweep": self._place(cell, {"total_s": time.time() - started_s})}
        if planned is None or self._shared is None:
            facts: dict[str, Any] = {"machine": machine, "command": self._process.command, "started_s": started_s}
            record = unplanned(cell, error, session=self._shared, **facts)
        else:
            recorder = Recorder(self._session(cell), self._process.command, machine)
            record, data = recorder.failed(planned, error, started_s=started_s, measured=measured)
        text = one_line(error)
        self._keep(CellOutcome(cell, record, text, isinstance(error, SpecbenchError)), None, data)

    def _keep(self, outcome: CellOutcome, recorder: Recorder | None, data: bytes | None) -> None:
        try:
            store.write(self._process.results.path, outcome.record, rounds_data=data)
        except RecordError as error:
            raise FolderError(str(error)) from error
        self._process.results.add(outcome.record)
        self._process.outcomes.append(outcome)
        self._process.screen.finished(outcome)

    # ----------------------------------------------------------------------------------------------- the control

    def _read_control(self) -> tuple[Measurement | None, str | None]:
        """The group's control, measured just now or by an earlier process; None where there is none, or it failed."""
        control = self._group.control
        if self._control is None and control is not None:
            record = self._process.results.finished.get(control.key)
            if record is None:
                return None, None
            self._control = (restore(self._session(control), self._process.results.path, record), record.run_id)
        return (None, None) if self._control is None else self._control


def restore(session: Session, folder: Path, record: Record) -> Measurement:
    """A finished cell as it was measured, from its rounds; its prompts are rendered again and must be the same.

    Errors: RecordError when the rounds are missing or damaged, or the prompts have changed.
    """
    trace = store.read_trace(folder, record)
    requests = {request.id: request for request in trace.requests if not request.warmup}
    sent: dict[str, tuple[int, ...]] = {}
    for prompt in session.prompts.prompts:
        answers: list[tuple[int, ...]] = []
        for turn in range(len(prompt.turns)):
            made = requests.get(f"{prompt.task}/{prompt.id}/{turn}")
            if made is None:
                break
            request = session.prompts.request(prompt, answers, limits=session.limits)
            if hash_ids(request.prompt_ids) == made.prompt_hash:
                sent[made.id] = request.prompt_ids
            answers.append(made.output_ids)
    changed = sorted(set(requests) - set(sent))
    if changed:
        raise RecordError(
            f"the prompt {changed[0]} of the control {record.run_id} is no longer what was measured; use another"
            " folder, or delete that record and those of its group"
        )
    return Measurement(trace=trace, skipped=(), prompt_ids=sent, memory={}, notes=())
