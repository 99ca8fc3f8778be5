"""Accuracy beside speed: each method answers the same items, which a grader scores; every method has its records.

Answers of one call that share their generation settings are a cell like any other, with its rounds, verdict and
speed-up; the scores of its items and their paired difference from plain decoding are in its record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from specbench.config import BASELINE, RunSpec
from specbench.errors import RecordError
from specbench.interrupt import StopSignal
from specbench.judging import judge
from specbench.metrics._recorded import graded_estimates
from specbench.quality.measured import Answered, MeasuredTexts, Settings
from specbench.quality.texts import TextServer
from specbench.recording import Recorder
from specbench.records import store
from specbench.records.schema import GradedRow, Record
from specbench.resolve import silent_step
from specbench.session import Step, TargetShelf
from specbench.workloads.driver import DriveProgress

Grade = Callable[[TextServer], list[GradedRow]]
"""Asks a server every item and scores the answers."""


@dataclass(frozen=True, slots=True)
class _Plain:
    """What plain decoding answered with one setting."""

    answered: Answered
    graded: list[GradedRow]
    run_id: str


@dataclass(slots=True)
class QualityRun:
    """The methods of one run, plain decoding first. ``versions`` of tasks go into records and keys."""

    spec: RunSpec
    grade: Grade
    versions: dict[str, str] = field(default_factory=dict)
    command: Sequence[str] = ()
    step: Step = silent_step
    on_progress: Callable[[str, DriveProgress], None] | None = None
    _plain: dict[Settings, _Plain] = field(default_factory=dict)

    def records(self) -> Iterator[Record]:
        """Measure, grade, judge and write, method by method.

        Errors: SpecbenchError; KeyboardInterrupt after Ctrl-C, when a method's answers are not complete.
        """
        store.check_writable(self.spec.out)
        shelf = TargetShelf()
        with StopSignal() as stop:
            for method in self.spec.cells():
                follow = None if self.on_progress is None else _follow(self.on_progress, method.label)
                server = MeasuredTexts(self.spec, method, shelf, self.step, stop, follow, self.versions)
                graded = self.grade(server)
                if not server.answered:
                    raise RecordError(f"the grader asked '{method.label}' nothing; there is no record to write")
                for answered in server.answered:
                    yield self._write(answered, [row for row in graded if row.task in answered.tasks])

    def _write(self, answered: Answered, graded: list[GradedRow]) -> Record:
        plain_arm = answered.cell.spec.method == BASELINE
        plain = None if plain_arm else self._plain.get(answered.settings)
        recorder = Recorder.of(answered.session, command=self.command)
        judged = judge(
            answered.measured,
            control=None if plain is None else plain.answered.measured,
            target=answered.session.target,
            synthetic=answered.cell.spec.synthetic is not None,
        )
        scores = graded_estimates(graded, control=[] if plain is None else plain.graded)
        record, data = recorder.finished(
            answered.cell,
            answered.measured,
            replace(judged, estimates=(*judged.estimates, *scores)),
            started_s=answered.started_s,
            baseline=None if plain is None else plain.run_id,
            graded=graded or None,
        )
        recorder.write(record, data)
        if plain_arm:
            self._plain[answered.settings] = _Plain(answered, graded, record.run_id)
        return record


def _follow(on_progress: Callable[[str, DriveProgress], None], label: str) -> Callable[[DriveProgress], None]:
    return lambda drive: on_progress(label, drive)
