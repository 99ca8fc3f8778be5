"""A sweep: the cells of a file measured one after the other, from wherever an earlier process left off.

Every group of cells is a job; an executor (`specbench.executors`) decides where jobs run. Records are all that a job
leaves and all that the next process needs, so a sweep may be killed at any moment and started again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specbench import errors, provenance
from specbench.config import RunSpec
from specbench.errors import ConfigError, RecordError, SpecbenchError
from specbench.executors.local import LocalExecutor, Work
from specbench.interrupt import StopSignal
from specbench.planning import COST_BLIND
from specbench.records import tidy
from specbench.records.schema import Record
from specbench.runner import INTERRUPTED, TABLE, check_names
from specbench.session import TargetShelf, load_task
from specbench.sweep_folder import ResultsFolder
from specbench.sweep_group import FolderError, Process, Screen, run_group
from specbench.sweep_plan import Group, SweepCell
from specbench.sweep_remote import LOCAL, RemoteOptions, RemoteSweep, open_pool
from specbench.sweep_state import SweepPlan

# ------------------------------------------------------------------------------------------------------- check


def check_sweep(plan: SweepPlan) -> None:
    """Refuse unknown names and options in all cells before any is measured.

    Errors: UnknownNameError, ConfigError; TaskError for a prompt file that is not there.
    """
    groups = plan.groups
    seen: set[str] = set()
    for run in (cell.run for group in groups for cell in group.cells):
        shape = f"{run.methods[0].name} {run.policy} {run.workload} {run.load} {run.options}"
        if shape not in seen:
            seen.add(shape)
            check_names(run)
    for name in dict.fromkeys(name for group in groups for name in group.run.tasks):
        load_task(name)
    for name in dict.fromkeys(group.run.target for group in groups):
        _check_target(name)


def _check_target(name: str) -> None:
    from specbench.errors import unknown_name
    from specbench.resolve import find_target, known_targets

    if "/" not in name and not Path(name).expanduser().exists() and find_target(name) is None:
        raise unknown_name("target", name, [known.name for known in known_targets()])


def check_policies(plan: SweepPlan) -> list[str]:
    """Try every policy of the cells to do; a remark for each cost table that cannot be looked for yet.

    Errors: ConfigError where a policy's argument is wrong, or its cost table is absent.
    """
    seen: dict[tuple[str, str, str | None], RunSpec] = {}
    for cell in plan.left:
        if not cell.is_control and cell.run.policy not in COST_BLIND:
            seen.setdefault((cell.run.policy, cell.run.target, str(cell.run.cost_table)), cell.run)
    return [remark for run in seen.values() if (remark := _try_policy(run)) is not None]


def _try_policy(run: RunSpec) -> str | None:
    import torch

    from specbench import registry
    from specbench.engine.policy import PolicyContext
    from specbench.planning import gather, origin
    from specbench.resolve import resolve_target, silent_step
    from specbench.session import choose_device, choose_dtype

    cost, found = None, True
    try:
        resolved = resolve_target(
            run.target, offline=True, progress=silent_step, trust_remote_code=run.trust_remote_code
        )
    except SpecbenchError:
        found = False  # not on this disk yet
    else:
        device = choose_device(run.device)
        threads = run.threads or provenance.default_threads()
        dtype = choose_dtype(run.dtype, device=device)
        here = origin(device=device, weights_sha256=resolved.weights_sha256, dtype=dtype, threads=threads)
        cost = gather(run.model_copy(update={"calibration": "off"}), place=here, checkpoint=None).cost
    name, argument = run.policy_parts
    context = PolicyContext(max_rows=1, device=torch.device("cpu"), method=run.methods[0].name, cost=cost)
    try:
        registry.load("policies", name)(1, argument, context=context)
    except ConfigError as error:
        if found or "cost table" not in str(error):
            raise
        profile = f"'specbench profile --target {run.target}'"
        return f"policy '{run.policy}' needs a cost table of {run.target}: measure it with {profile}"
    return None


# --------------------------------------------------------------------------------------------------------- run


@dataclass(slots=True)
class SweepSummary:
    """How a sweep ended. ``troubles`` are lines that no record tells: groups that could not be judged, a full disk."""

    plan: SweepPlan
    measured: int  # cells that got a record now
    failed_now: list[tuple[SweepCell, str]] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    interrupted: bool = False
    out_of_time: bool = False
    wall_s: float = 0.0
    measure_s: float = 0.0
    judge_s: float = 0.0
    loads: int = 0
    load_s: float = 0.0

    @property
    def failed(self) -> list[tuple[SweepCell, Record]]:
        """Every cell of the sweep that failed, now or before, and was not finished since."""
        held = self.plan.results.failed
        return [(cell, held[cell.key]) for cell in self.plan.cells if cell.key in held]

    @property
    def exit_code(self) -> int:
        """2 when a cell failed by what the user gave or the folder was full, 1 when one failed otherwise, 130, 0."""
        if self.troubles or any(_users_fault(record) for _, record in self.failed):
            return 2
        if self.failed:
            return 1
        return INTERRUPTED if self.interrupted else 0


def _users_fault(record: Record) -> bool:
    kind = getattr(errors, record.error.kind, None) if record.error is not None else None
    return isinstance(kind, type) and issubclass(kind, SpecbenchError)


def run_sweep(
    plan: SweepPlan,
    *,
    screen: Screen,
    command: Sequence[str] = (),
    limit_s: float | None = None,
    executor: str = LOCAL,
    remote: RemoteOptions | None = None,
) -> SweepSummary:
    """Measure what is left. The caller holds the folder's lock.

    ``limit_s``: no cell is begun that is not expected to end before. Ctrl-C ends the sweep with what is finished.
    ``executor`` names where groups are measured; all but the local one need ``remote``. Errors: ConfigError when a
    policy cannot be made, or the executor is not to be had.
    """
    for remark in check_policies(plan):
        screen.say(remark)
    start, summary = time.perf_counter(), SweepSummary(plan, 0)

    def enough(cell: SweepCell) -> bool:
        spent = time.perf_counter() - start
        if limit_s is None or summary.out_of_time:
            return summary.out_of_time
        known = plan.estimates.seconds(cell) if plan.estimates.cells else 0.0
        summary.out_of_time = spent + known > limit_s
        return summary.out_of_time

    with StopSignal() as stop:
        process = Process(
            sweep=plan.spec.name,
            results=plan.results,
            screen=screen,
            stop=stop,
            enough=enough,
            command=command,
            threads=_pinned_threads(plan),
        )
        left = [group for group in plan.groups if plan.todo(group)]
        shelf: TargetShelf | RemoteSweep = process.shelf
        try:
            if executor == LOCAL:
                work = _worker(plan, process, summary)
                LocalExecutor().run(left, work=work, stop=lambda: stop() or summary.out_of_time)
            elif left:
                assert remote is not None, "an executor of other processes has its options"
                shelf = RemoteSweep(plan, process, open_pool(executor, remote.pool), remote)
                shelf.run(left, stop=stop)
        except FolderError as error:
            summary.troubles.append(str(error))
        if isinstance(shelf, RemoteSweep):
            summary.troubles += shelf.troubles
    summary.interrupted = stop.raised
    summary.measured = len(process.outcomes)
    summary.failed_now = [(o.cell, o.error) for o in process.outcomes if o.error is not None]
    summary.wall_s, summary.measure_s = time.perf_counter() - start, process.measure_s
    summary.judge_s = process.judge_s
    summary.loads, summary.load_s = shelf.loads, shelf.load_s
    return summary


def _worker(plan: SweepPlan, process: Process, summary: SweepSummary) -> Work:
    def work(group: Group) -> None:
        todo = plan.todo(group)
        if process.enough(todo[0]):
            return
        try:
            run_group(process, group, todo)
        except FolderError:
            raise
        except RecordError as error:
            summary.troubles.append(str(error))

    return work


def _pinned_threads(plan: SweepPlan) -> int | None:
    """The threads of cells that name none: those of the finished ones, so that a resumed sweep agrees with itself."""
    for cell in plan.cells:
        record = plan.results.finished.get(cell.key)
        if record is not None and cell.run.threads is None:
            return int(record.spec["threads"])
    return provenance.default_threads()


def write_table(results: ResultsFolder) -> Path:
    """The tidy table of every record in the folder, by time of creation. Errors: RecordError."""
    path = results.path / TABLE
    tidy.write_csv(results.records(), path)
    return path
