"""What a sweep will do: its cells in order, what a folder already holds of them, and the time that the rest will take.

No torch here: the plan is on the screen before anything heavy is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.records.schema import Record
from specbench.sweep_folder import ResultsFolder
from specbench.sweep_plan import Group, SweepCell, expand, label, select, varying
from specbench.sweep_spec import SweepSpec
from specbench.sweep_time import TimeEstimates


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """What a sweep will do: its groups in order, and the state of every cell in the folder."""

    spec: SweepSpec
    groups: tuple[Group, ...]
    results: ResultsFolder
    retry_failed: bool
    estimates: TimeEstimates
    axes: tuple[str, ...]  # on which the cells differ

    @property
    def cells(self) -> list[SweepCell]:
        """All cells in the order of measurement."""
        return [cell for group in self.groups for cell in group.cells]

    def todo(self, group: Group) -> list[SweepCell]:
        """The cells of a group that are to be measured, in order.

        A failed one only with ``retry_failed``; with it also those that had to do without their failed control.
        """
        found = []
        for cell in group.cells:
            finished = self.results.finished.get(cell.key)
            if finished is None:
                wanted = cell.key not in self.results.failed or self.retry_failed
            else:
                wanted = self.retry_failed and _lacks_control(group, cell, finished)
            if wanted:
                found.append(cell)
        return found

    @property
    def left(self) -> list[SweepCell]:
        """All cells that are to be measured."""
        return [cell for group in self.groups for cell in self.todo(group)]

    def label(self, cell: SweepCell) -> str:
        """The cell in words, its varying values only."""
        return label(cell, self.axes)

    def state(self, cell: SweepCell) -> str:
        """``done``, ``failed`` or ``to do``."""
        if cell.key in self.results.finished:
            return "done"
        return "failed" if cell.key in self.results.failed else "to do"

    def records(self) -> list[Record]:
        """The records of the sweep's cells that have one, in the order of the cells."""
        held = {**self.results.failed, **self.results.finished}
        return [held[cell.key] for cell in self.cells if cell.key in held]


def _lacks_control(group: Group, cell: SweepCell, record: Record) -> bool:
    return not cell.is_control and group.control is not None and record.baseline is None


def make_plan(
    spec: SweepSpec, results: ResultsFolder, *, only: Sequence[str] = (), retry_failed: bool = False
) -> SweepPlan:
    """The plan of a sweep over a folder's state; needs neither weights nor network.

    Errors: UnknownNameError or ConfigError for what no run takes; TaskError for a prompt file that is not there.
    """
    groups = expand(spec)
    axes = tuple(varying(groups))
    chosen = tuple(select(groups, only)) if only else tuple(groups)
    finished = [(cell, results.finished[cell.key]) for g in groups for cell in g.cells if cell.key in results.finished]
    return SweepPlan(spec, chosen, results, retry_failed, TimeEstimates.of(finished), axes)
