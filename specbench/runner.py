"""A run: cells measured one after the other on one loaded target, judged against plain decoding, and written."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specbench import registry
from specbench.backends.engine import check_options
from specbench.cell import Measurement, PlannedCell, measure_cell, plan_cell
from specbench.config import BASELINE, RunSpec
from specbench.errors import ConfigError, RecordError, SpecbenchError, unknown_name
from specbench.interrupt import StopSignal
from specbench.judging import judge
from specbench.processes import of_this_process
from specbench.recording import Recorder, one_line
from specbench.records import store, tidy
from specbench.records.schema import Record
from specbench.resolve import silent_step
from specbench.session import Session, Step, open_session
from specbench.workloads.driver import DriveProgress
from specbench.workloads.patterns import load_options

INTERRUPTED = 130  # what a shell gives a process that Ctrl-C ended
TABLE = "estimates.csv"


@dataclass(frozen=True, slots=True)
class RunProgress:
    """How far the run is; turns and tokens of all its cells together, warm-up left out."""

    cell: int  # 0-based
    cells: int
    label: str
    done_turns: int
    total_turns: int
    tokens: int
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class CellResult:
    """How one cell ended. ``path`` is None where its record could not be written; ``error`` is one line."""

    label: str
    record: Record
    path: Path | None
    error: str | None = None
    user_fault: bool = False


@dataclass(frozen=True, slots=True)
class RunSummary:
    """All cells of a run in the order they were measured; ``left_out`` names those that an interrupt kept from it."""

    results: tuple[CellResult, ...]
    left_out: tuple[str, ...]
    interrupted: bool
    table: Path
    table_trouble: str | None  # why the table is missing or incomplete
    warnings: tuple[str, ...]  # what was said before the numbers

    @property
    def exit_code(self) -> int:
        """2 when a cell failed by what the user gave, 1 when one failed otherwise, 130 after an interrupt, else 0."""
        failed = [result for result in self.results if result.error is not None]
        if self.interrupted and not failed:
            return INTERRUPTED
        if any(result.user_fault for result in failed):
            return 2
        return 1 if failed else 0


OnProgress = Callable[[RunProgress], None]
OnResult = Callable[[CellResult], None]


def check_names(spec: RunSpec) -> None:
    """Refuse unknown methods, policies, load patterns and options of these before anything is loaded or measured.

    Errors: UnknownNameError with the nearest name; ConfigError for a bad option of the load pattern.
    """
    for method in spec.methods:
        _check_name("drafters", method.name)
    _check_name("policies", spec.policy_parts[0])
    load_options(spec.workload, spec.load)
    for name, options in spec.options.items():
        check_options(name, options)


def _check_name(kind: str, name: str) -> None:
    known = registry.names(kind)
    if name not in known:
        raise unknown_name(registry.KINDS[kind].word, name, known)


def run_cells(
    spec: RunSpec,
    *,
    on_progress: OnProgress | None = None,
    on_result: OnResult | None = None,
    on_warning: Callable[[str], None] = lambda text: None,
    step: Step = silent_step,
    command: Sequence[str] = (),
) -> RunSummary:
    """Measure every cell of the run and write its record.

    Whatever the user got wrong and can be seen before the first measurement is raised as a SpecbenchError; a cell that
    fails later gets a record of its failure and the run goes on. Ctrl-C ends the run with what is finished.
    """
    check_names(spec)
    spec = of_this_process(spec)
    store.check_writable(spec.out)
    session = open_session(spec, step=step)
    cells = [plan_cell(session, method, step=step) for method in spec.cells()]
    _check_distinct(cells)
    recorder = Recorder.of(session, command=command)
    for warning in recorder.warnings:
        on_warning(warning)
    run = _Run(session, cells, recorder, on_progress)
    results: list[CellResult] = []
    with StopSignal() as stop:
        for index in range(len(cells)):
            if stop():
                break
            results.append(run.cell(index, stop=stop))
            if on_result is not None:
                on_result(results[-1])
            if results[-1].path is None:  # the folder takes no more: nothing that follows could be kept
                break
    left_out = tuple(cell.label for cell in cells[len(results) :])
    interrupted = stop.raised and (bool(left_out) or results[-1].record.status == "interrupted")
    return RunSummary(
        tuple(results), left_out, interrupted, spec.out / TABLE, _write_table(spec), tuple(recorder.warnings)
    )


def _check_distinct(cells: list[PlannedCell]) -> None:
    seen: dict[str, str] = {}
    for cell in cells:
        other = seen.setdefault(cell.spec.key(), cell.method.label)
        if other != cell.method.label:
            raise ConfigError(f"'{other}' and '{cell.method.label}' are the same cell ({cell.label}); list it once")


class _Run:
    """The cells of one run and the baseline that they are judged against."""

    def __init__(
        self, session: Session, cells: list[PlannedCell], recorder: Recorder, on_progress: OnProgress | None
    ) -> None:
        self._session = session
        self._cells = cells
        self._recorder = recorder
        self._on_progress = on_progress
        self._control: Measurement | None = None
        self._control_id: str | None = None
        self._started_s = time.perf_counter()
        self._tokens = 0

    def cell(self, index: int, *, stop: Callable[[], bool]) -> CellResult:
        """Measure, judge and write one cell; a failure becomes a record of it, and the run goes on."""
        cell, started_s = self._cells[index], time.time()
        is_control = cell.spec.method == BASELINE
        measured: Measurement | None = None
        try:
            measured = measure_cell(self._session, cell, stop=stop, on_progress=self._follow(index))
            control = None if is_control else self._control
            judged = judge(
                measured,
                control=control,
                target=self._session.target,
                synthetic=cell.spec.synthetic is not None,
            )
            control_id = None if is_control else self._control_id
            record, data = self._recorder.finished(cell, measured, judged, started_s=started_s, baseline=control_id)
        except Exception as error:  # whatever a plugin raises ends its own cell only
            return self._failed(cell, error, started_s=started_s, measured=measured)
        self._tokens += sum(len(request.output_ids) for request in measured.trace.requests if not request.warmup)
        result = self._write(cell, record, data)
        if is_control and result.path is not None:
            self._control, self._control_id = measured, record.run_id
        return result

    def _failed(
        self, cell: PlannedCell, error: Exception, *, started_s: float, measured: Measurement | None
    ) -> CellResult:
        record, data = self._recorder.failed(cell, error, started_s=started_s, measured=measured)
        written = self._write(cell, record, data)
        if written.error is not None:
            return written
        text = f"{cell.label} failed: {one_line(error)}"
        return replace(written, error=text, user_fault=isinstance(error, SpecbenchError))

    def _write(self, cell: PlannedCell, record: Record, data: bytes | None = None) -> CellResult:
        try:
            path = self._recorder.write(record, data)
        except RecordError as error:
            return CellResult(cell.label, record, None, error=str(error), user_fault=True)
        return CellResult(cell.label, record, path)

    def _follow(self, index: int) -> Callable[[DriveProgress], None] | None:
        on_progress = self._on_progress
        if on_progress is None:
            return None
        tokens_before = self._tokens

        def follow(drive: DriveProgress) -> None:
            on_progress(
                RunProgress(
                    cell=index,
                    cells=len(self._cells),
                    label=self._cells[index].label,
                    done_turns=index * drive.total + drive.done,
                    total_turns=len(self._cells) * drive.total,
                    tokens=tokens_before + drive.tokens,
                    elapsed_s=time.perf_counter() - self._started_s,
                )
            )

        return follow


def _write_table(spec: RunSpec) -> str | None:
    """Write the tidy table of every record in the folder; what could not be read or written, in one line."""
    try:
        records, broken = store.scan(spec.out)
        tidy.write_csv(records, spec.out / TABLE)
    except RecordError as error:
        return str(error)
    return f"{TABLE} leaves out {len(broken)} unreadable records, first: {broken[0]}" if broken else None
