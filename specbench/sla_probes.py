"""SLA-bound throughput measured: a probe is a cell with its record; arms take turns, so that drift hits all alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from specbench import provenance, registry
from specbench.cell import Measurement, PlannedCell, measure_cell, plan_cell
from specbench.config import BASELINE, MethodSpec, RunSpec, validated
from specbench.errors import ConfigError, SpecbenchError
from specbench.interrupt import StopSignal
from specbench.judging import judge
from specbench.metrics import METRICS_VERSION
from specbench.metrics._service import service
from specbench.recording import Recorder, one_line
from specbench.records import sla_result, store
from specbench.records.schema import Record
from specbench.records.sla_result import SlaResult, SpaceRow
from specbench.report.curves import FEW
from specbench.report.series import family_key
from specbench.report.tables import with_policy
from specbench.resolve import silent_step
from specbench.runner import INTERRUPTED, check_names
from specbench.session import Session, TargetShelf, open_session
from specbench.sla import Sla, Space
from specbench.sla_findings import Contest, LoadData, ProbeRun, gains, level_row, probe_rows, probe_run, search_row
from specbench.types import Status
from specbench.workloads._options import LoadOptions
from specbench.workloads.driver import DriveProgress
from specbench.workloads.patterns import load_options

MIN_TURNS = 2  # conversations a user, so that a closed loop has a steady window


@dataclass(frozen=True, slots=True)
class SlaRequest:
    """What is searched for: ``levels`` share their probes. ``few``: see `report.curves`.

    ``policies``: every drafter is searched under each; empty: under the run's own.
    """

    spec: RunSpec
    levels: tuple[Sla, ...]
    space: Space
    repeats: int = 3
    few: float = FEW
    policies: tuple[str, ...] = ()

    def arms(self) -> Iterator[tuple[str, MethodSpec]]:
        """Policy and method of every contestant; plain decoding plans nothing and is searched once."""
        first, *others = self.policies or (self.spec.policy,)
        for method in self.spec.cells():
            yield first, method
            for policy in others if method.name != BASELINE else ():
                yield policy, method

    def prepared(self) -> SlaRequest:
        """With a load pattern that the search can vary.

        Errors: ConfigError for users of a load that is no closed loop, a pattern without a rate, no repeats.
        """
        spec = self.spec
        twice = [policy for policy in self.policies if self.policies.count(policy) > 1]
        if twice:
            raise ConfigError(f"policy '{twice[0]}' is listed twice; list it once")
        for policy in self.policies:
            validated(RunSpec, {"methods": "vanilla", "policy": policy})
        if self.repeats < 1:
            raise ConfigError(f"every load is run at least once, not {self.repeats} times; correct --repeats")
        if self.space.whole and spec.workload != "closed":
            raise ConfigError(
                f"users are searched in a closed loop, the workload is '{spec.workload}'; drop it, or use --over rate"
            )
        if not self.space.whole and spec.workload == "closed":
            spec = spec.model_copy(update={"workload": "poisson", "load": {}})
        if not self.space.whole:
            pattern = registry.load("workloads", spec.workload)
            if "rate" not in getattr(pattern, "Options", LoadOptions).model_fields:
                raise ConfigError(f"the load pattern '{spec.workload}' has no rate to search over; use poisson, say")
            load_options(spec.workload, {**spec.load, "rate": self.space.start})
        return replace(self, spec=spec)


@dataclass(frozen=True, slots=True)
class SlaSummary:
    """The result, where it lies, and what went wrong, one line each."""

    result: SlaResult
    path: Path
    errors: tuple[str, ...]
    user_fault: bool
    interrupted: bool

    @property
    def exit_code(self) -> int:
        """2 when a cell failed by what the user gave or no load holds any level, 1 for other failures, 130, else 0."""
        if self.interrupted and not self.errors:
            return INTERRUPTED
        if self.errors:
            return 2 if self.user_fault else 1
        return 0 if any(row.throughput is not None for row in self.result.searches) else 2

    @property
    def complaint(self) -> str:
        """In one line, that no load holds any level and how near the nearest came, or what kept it from being known."""
        first = min(self.result.searches, key=lambda row: (row.outcome != "not measured", row.level))
        if first.outcome == "not measured":
            return f"{first.method}: {first.reason}"
        bound = self.result.levels[first.level].label
        return f"no method holds '{bound}': {first.method}: {first.reason}; ask for less, or search other loads"


class Screen(Protocol):
    """Who follows a search."""

    def step(self, text: str) -> AbstractContextManager[object]:
        """Entered around a long step."""
        ...

    def say(self, text: str) -> None:
        """A remark."""
        ...

    def progress(self, text: str, drive: DriveProgress) -> None:
        """How far the probe is that the text names."""
        ...

    def finished(self, text: str, record: Record) -> None:
        """A probe's record is written."""
        ...


def at_load(spec: RunSpec, load: float, *, whole: bool) -> RunSpec:
    """The run under a load: users, or requests a second."""
    if whole:
        return spec.model_copy(update={"concurrency": int(load)})
    return spec.model_copy(update={"load": {**spec.load, "rate": load}})


def run_sla(request: SlaRequest, *, screen: Screen, command: Sequence[str] = ()) -> SlaSummary:
    """Search every method under every level and write the result.

    Whatever can be seen before the first probe is raised as a SpecbenchError; a method whose cell fails later leaves
    its record and drops out. Ctrl-C ends the search with what is finished.
    """
    request = request.prepared()
    check_names(at_load(request.spec, request.space.start, whole=request.space.whole))
    store.check_writable(request.spec.out)
    prober = _Prober(request, screen, command)
    contests = prober.plan()
    with StopSignal() as stop:
        _take_turns(request, prober, contests, stop)
    complete = not stop.raised or all(c.wanted(request.space, request.levels) is None for c in contests.values())
    result = _result(request, prober, list(contests.values()), complete=complete, command=command)
    path = sla_result.write(request.spec.out, result)
    return SlaSummary(result, path, tuple(prober.errors), prober.user_fault, interrupted=not complete)


def _take_turns(request: SlaRequest, prober: _Prober, contests: dict[str, Contest], stop: Callable[[], bool]) -> None:
    """Round after round, one load of every contestant that still searches; every other pass runs backwards.

    The first round keeps the order: the baseline comes first in it, and its texts are what others are judged by.
    """
    turn = 0
    while not stop():
        wanted = {label: load for label, c in contests.items() if (load := c.wanted(request.space, request.levels))}
        if not wanted:
            return
        runs: dict[str, list[ProbeRun]] = {label: [] for label in wanted}
        for repeat in range(request.repeats):
            order = list(wanted.items())
            for label, load in reversed(order) if turn and (turn + repeat) % 2 else order:
                contest = contests[label]
                if contest.trouble is not None:
                    continue
                run = prober.measure(contest, load, repeat=repeat, stop=stop)
                if stop():
                    return
                if run is not None:
                    runs[label].append(run)
        for label, load in wanted.items():
            if contests[label].trouble is None:
                contests[label].loads[load] = LoadData.of(load, runs[label])
        turn += 1


@dataclass(slots=True)
class _Prober:
    """Sessions on one loaded target, one a repeat (its seed draws prompts and arrivals), and what was measured."""

    request: SlaRequest
    screen: Screen
    command: Sequence[str]
    shelf: TargetShelf = field(default_factory=TargetShelf)
    errors: list[str] = field(default_factory=list)
    user_fault: bool = False
    notes: list[str] = field(default_factory=list)
    family: dict[str, Any] = field(default_factory=dict)
    _sessions: dict[int, Session] = field(default_factory=dict)
    _planned: dict[tuple[int, str], PlannedCell] = field(default_factory=dict)
    _policies: dict[str, str] = field(default_factory=dict)
    _controls: dict[tuple[int, float], tuple[Measurement, str]] = field(default_factory=dict)
    _machine: dict[str, Any] = field(default_factory=dict)

    def plan(self) -> dict[str, Contest]:
        """Load the target, draw the prompts of every repeat and try every contestant. Errors: SpecbenchError."""
        for repeat in range(self.request.repeats):
            session = self._open(repeat)
            for policy, method in self.request.arms():
                high = self._under(session, self.request.space.high, policy=policy)
                cell = plan_cell(high, method, step=silent_step if repeat else self.screen.step)
                label = cell.label
                if self.request.policies:
                    label = with_policy(label, policy, draft_length=cell.spec.draft_length)
                if (repeat, label) in self._planned:
                    raise ConfigError(f"'{method.label}' is listed twice ({label}); list it once")
                self._planned[repeat, label], self._policies[label] = cell, policy
        session = self._sessions[0]
        self._machine = provenance.collect(device=session.device, threads=session.threads)
        busy = self._machine["load"].get("busy")
        if busy is not None:
            self.notes.append(str(busy))
            self.screen.say(str(busy))
        return {label: Contest(label) for repeat, label in self._planned if repeat == 0}

    def _open(self, repeat: int) -> Session:
        spec = self.request.spec
        seeded = spec.model_copy(update={"seed": spec.seed + repeat})
        at_most = at_load(seeded, self.request.space.high, whole=self.request.space.whole)
        session = open_session(at_most, step=self.screen.step, shelf=self.shelf)
        self._check_prompts(session)
        self._sessions[repeat] = session
        return session

    def _check_prompts(self, session: Session) -> None:
        """Errors: ConfigError when a closed loop would end before it is steady."""
        count, high = len(session.prompts.prompts), int(self.request.space.high)
        if self.request.space.whole and count < MIN_TURNS * high:
            raise ConfigError(
                f"{high} users need at least {MIN_TURNS * high} prompts for a steady window and there are {count}; "
                f"raise --num-prompts, add tasks, or search up to --max {count // MIN_TURNS}"
            )

    def _under(self, session: Session, load: float, *, policy: str) -> Session:
        spec = at_load(session.spec, load, whole=self.request.space.whole)
        return replace(session, spec=spec.model_copy(update={"policy": policy}))

    def _cell(self, session: Session, label: str, load: float, *, repeat: int) -> PlannedCell:
        """The planned cell under a load: nothing but the load differs between the probes of a contestant."""
        planned = self._planned[repeat, label]
        spec = at_load(session.spec, load, whole=self.request.space.whole)
        described = load_options(spec.workload, spec.load).described()
        update = {"concurrency": spec.concurrency, "load": described}
        return replace(planned, spec=planned.spec.model_copy(update=update))

    # ------------------------------------------------------------------------------------------------- one run

    def measure(self, contest: Contest, load: float, *, repeat: int, stop: Callable[[], bool]) -> ProbeRun | None:
        """Run a contestant under a load and write the record; None where it failed or was stopped.

        Errors: RecordError when the record cannot be written.
        """
        text = f"{contest.label} at {load:g} {self.unit}, run {repeat + 1} of {self.request.repeats}"
        started_s, measured = time.time(), None
        session = self._under(self._sessions[repeat], load, policy=self._policies[contest.label])
        cell = self._cell(session, contest.label, load, repeat=repeat)
        recorder = Recorder(session, self.command, self._facts(load, repeat))
        try:
            measured = measure_cell(
                session, cell, stop=stop, on_progress=lambda drive: self.screen.progress(text, drive)
            )
            control, control_id, same = self._control(cell, load, repeat)
            judged = judge(
                measured,
                control=control,
                target=session.target,
                synthetic=cell.spec.synthetic is not None,
                same_load=same,
            )
            record, data = recorder.finished(
                cell, measured, judged, started_s=started_s, baseline=control_id if same else None, control=control_id
            )
        except Exception as error:  # whatever a plugin raises ends its own search only
            failed, rounds = recorder.failed(cell, error, started_s=started_s, measured=measured)
            recorder.write(failed, rounds)
            self._drop(contest, f"{text} failed: {one_line(error)}", user_fault=isinstance(error, SpecbenchError))
            return None
        recorder.write(record, data)
        self.screen.finished(text, record)
        self.family = self.family or family_key(record)
        if measured.trace.status != Status.OK:
            return None
        if cell.spec.method == BASELINE:
            self._controls[repeat, load] = (measured, record.run_id)
        return probe_run(record, service(measured.trace), repeat=repeat)

    @property
    def unit(self) -> str:
        """Of a load."""
        return "users" if self.request.space.whole else "requests/s"

    def _facts(self, load: float, repeat: int) -> dict[str, Any]:
        """Code and machine with the moment's load, and the probe's place in the search."""
        now = {"time_utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        place = {"load": load, "repeat": repeat, "over": "concurrency" if self.request.space.whole else "rate"}
        return {**self._machine, **now, "load": provenance.load_facts(interval_s=0.1), "sla_probe": place}

    def _control(self, cell: PlannedCell, load: float, repeat: int) -> tuple[Measurement | None, str | None, bool]:
        """Plain decoding of the same prompts: under the same load where it ran, else under another one."""
        if cell.spec.method == BASELINE:
            return None, None, True
        same = self._controls.get((repeat, load))
        other = next((found for (r, _), found in self._controls.items() if r == repeat), None)
        measured, run_id = same or other or (None, None)
        return measured, run_id, same is not None

    def _drop(self, contest: Contest, text: str, *, user_fault: bool) -> None:
        contest.trouble = text
        self.errors.append(text)
        self.user_fault = self.user_fault or user_fault
        self.screen.say(text)


def _result(
    request: SlaRequest, prober: _Prober, contests: Sequence[Contest], *, complete: bool, command: Sequence[str]
) -> SlaResult:
    space = request.space
    probes = [row for contest in contests for row in probe_rows(contest)]
    searches = [
        search_row(contest, space, level, index=index)
        for index, level in enumerate(request.levels)
        for contest in contests
    ]
    baseline = BASELINE if any(contest.label == BASELINE for contest in contests) else None
    return sla_result.build(
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        command=list(command),
        metrics_version=METRICS_VERSION,
        complete=complete,
        levels=[level_row(level) for level in request.levels],
        space=SpaceRow(
            over="concurrency" if space.whole else "rate",
            start=space.start,
            low=space.low,
            high=space.high,
            tolerance=space.tolerance,
            beyond=space.beyond,
        ),
        repeats=request.repeats,
        few=request.few,
        baseline=baseline,
        family=prober.family,
        probes=probes,
        searches=searches,
        gains=gains(searches, probes, baseline=baseline, few=request.few),
        notes=prober.notes,
    )
