"""A sweep on a pool of workers: jobs handed out, lost ones handed out again, records written here and only here."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from specbench import provenance, registry
from specbench.errors import ConfigError, RecordError, unknown_name
from specbench.executors.jobs import BEAT_S, Ended, Handed, Job, JobResult, Pool, PoolOptions, parcels
from specbench.records import store
from specbench.sweep_failure import unplanned
from specbench.sweep_group import CellOutcome, FolderError, Process
from specbench.sweep_plan import Group, SweepCell
from specbench.sweep_state import SweepPlan

LOCAL = "local"
EXTRAS = {"ray": "ray", "slurm": "slurm"}
"""What to install for an executor: the extra's name."""

_POLL_S = 0.5


class WorkerLostError(RuntimeError):
    """A job was lost as often as it may be tried."""


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """``retries``: how often a lost job is begun again. A job without a sign of life for ``beat_limit_s`` is lost."""

    pool: PoolOptions
    retries: int = 2
    beat_limit_s: float = 300.0

    def __post_init__(self) -> None:
        if self.retries < 0:
            raise ConfigError(f"retries are counted from 0, not {self.retries}; correct --retries")
        if self.beat_limit_s < 4 * BEAT_S:
            raise ConfigError(
                f"workers give a sign of life every {BEAT_S:g} s; a limit of {self.beat_limit_s:g} s would lose living"
                f" ones, give at least {4 * BEAT_S:g}"
            )
        for name, least in (("workers", 1), ("gpus", 0), ("cpus", 1)):
            value = getattr(self.pool, name)
            if value is not None and value < least:
                raise ConfigError(f"--{name} is a whole number from {least} on, not {value}; correct it")


def open_pool(name: str, options: PoolOptions) -> Pool:
    """The pool called ``name``. Errors: UnknownNameError; ConfigError where its package is missing or it refuses."""
    if name not in registry.names("executors"):
        raise unknown_name("executor", name, registry.names("executors"))
    try:
        made: Pool = registry.load("executors", name)(options)
    except ImportError as error:
        raise ConfigError(
            f"the executor '{name}' needs a package that is not installed ({error}); install it with pip install "
            f"'specbench-llm[{EXTRAS.get(name, name)}]'"
        ) from None
    return made


@dataclass(slots=True)
class _Under:
    """A job under way, when it was begun, and its newest sign of life by this process's clock."""

    job: Job
    tries: int
    signs: int = 0
    heard_s: float = field(default_factory=time.monotonic)
    begun: bool = False


class RemoteSweep:
    """Measures groups on a pool. ``process`` holds the sweep's folder; its outcomes and times are filled in here."""

    def __init__(self, plan: SweepPlan, process: Process, pool: Pool, options: RemoteOptions) -> None:
        self._plan, self._process, self._pool, self._options = plan, process, pool, options
        self._waiting: deque[tuple[Job, int]] = deque()  # with how often it was begun
        self._under: dict[str, _Under] = {}
        self.troubles: list[str] = []
        self.loads, self.load_s = 0, 0.0

    def run(self, groups: list[Group], *, stop: Callable[[], bool]) -> None:
        """All groups, until ``stop`` says so; what is under way then is let go and measured another time.

        Errors: FolderError when the folder takes no more.
        """
        left = deque(groups)
        try:
            while not stop() and (left or self._waiting or self._under):
                self._hand_out(left)
                if not self._under:
                    return
                for ended in self._pool.poll(_POLL_S):
                    self._take(ended)
                self._listen()
        finally:
            self._pool.close()

    # ---------------------------------------------------------------------------------------------- out

    def _hand_out(self, left: deque[Group]) -> None:
        while len(self._under) < self._pool.slots and (self._waiting or left):
            if self._waiting:
                job, tries = self._waiting.popleft()
            else:
                group = left[0]
                todo = self._plan.todo(group)
                if self._process.enough(todo[0]):
                    left.clear()
                    return
                left.popleft()
                try:
                    job, tries = self._job(group, todo), 0
                except RecordError as error:
                    self.troubles.append(str(error))
                    continue
            self._pool.submit(job)
            self._under[job.key] = _Under(job, tries + 1)
            for cell in job.todo:
                self._process.screen.started(cell)

    def _job(self, group: Group, todo: list[SweepCell]) -> Job:
        results, control = self._process.results, group.control
        held = [] if control is None or control.key not in results.finished else [results.finished[control.key]]
        return Job(
            key=group.key,
            sweep=self._process.sweep,
            executor=self._pool.name,
            group=group,
            todo=tuple(todo),
            done=parcels(results.path, held),
            command=tuple(self._process.command),
            threads=self._process.threads,
        )

    # --------------------------------------------------------------------------------------------- back

    def _take(self, ended: Ended) -> None:
        under = self._under.pop(ended.key, None)
        if under is None:
            return  # it was let go before
        if ended.result is not None:
            self._keep(under.job, ended.result)
        else:
            self._lost(under, ended.lost or "no reason is known")

    def _lost(self, under: _Under, why: str) -> None:
        names = ", ".join(cell.settings["method"] for cell in under.job.todo)
        if under.tries <= self._options.retries:
            self._process.screen.say(f"lost the worker of {names}: {why}; they are measured again")
            self._waiting.append((under.job, under.tries))
            return
        error = WorkerLostError(f"its worker was lost {under.tries} times, at last: {why}")
        for cell in under.job.todo:
            record = unplanned(
                cell,
                error,
                machine=self._place(cell, under.job),
                command=self._process.command,
                session=None,
                started_s=time.time(),
            )
            self._write(CellOutcome(cell, record, str(error)), None)

    def _place(self, cell: SweepCell, job: Job) -> dict[str, Any]:
        """What a record of a cell that nobody measured says of code and place."""
        order = [other.key for other in job.group.cells].index(cell.key)
        place = {"name": job.sweep, "cell": cell.key, "group": cell.group, "repeat": cell.repeat, "order": order}
        return {**provenance.git_state(), "rankable": False, "sweep": {**place, "executor": job.executor}}

    def _keep(self, job: Job, result: JobResult) -> None:
        cells = {cell.key: cell for cell in job.todo}
        for handed in result.cells:
            self._write(_outcome(cells[handed.key], handed), handed.parcel.rounds)
        for text in result.remarks:
            self._process.say_once(text)
        self.troubles += result.troubles
        self._process.measure_s += result.measure_s
        self._process.judge_s += result.judge_s
        self.loads, self.load_s = self.loads + result.loads, self.load_s + result.load_s

    def _write(self, outcome: CellOutcome, data: bytes | None) -> None:
        process = self._process
        try:
            store.write(process.results.path, outcome.record, rounds_data=data)
        except RecordError as error:
            raise FolderError(str(error)) from error
        process.results.add(outcome.record)
        process.outcomes.append(outcome)
        process.screen.finished(outcome)

    # ------------------------------------------------------------------------------------- signs of life

    def _listen(self) -> None:
        """Show what workers do, and give up those that have fallen silent since they began."""
        now, beats = time.monotonic(), self._pool.beats()
        for key, under in list(self._under.items()):
            signs, text = beats.get(key, (under.signs, ""))
            if signs != under.signs:
                under.signs, under.heard_s, under.begun = signs, now, True
                self._process.screen.step(text)
            elif under.begun and now - under.heard_s > self._options.beat_limit_s:
                self._pool.cancel(key)
                self._take(Ended(key, None, f"no sign of life for {self._options.beat_limit_s:.0f} s"))


def _outcome(cell: SweepCell, handed: Handed) -> CellOutcome:
    return CellOutcome(cell, handed.parcel.record(), handed.error, handed.user_fault)
