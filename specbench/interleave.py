"""Cells measured in turn, a step of one engine after a step of another: what drifts on the machine meets all alike.

Cells measured one after the other differ by what the machine did meanwhile. Here every cell has its own engine, and a
clock that stands still while the others run. The next step is always one of the cell with the fewest output tokens, so
that all are at the same part of the same work.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace

import torch

from specbench.cell import measuring, no_memory, warned
from specbench.engine.clock import PausedClock
from specbench.measurement import Measurement, PlannedCell
from specbench.session import Session
from specbench.workloads.driver import DriveProgress


@dataclass(slots=True)
class _Arm:
    session: Session
    steps: Generator[int, None, Measurement]
    clock: PausedClock
    caught: list[warnings.WarningMessage]
    tokens: int = 0
    taken: int = 0
    found: Measurement | Exception | None = None


def measure_in_turn(
    cells: Sequence[tuple[Session, PlannedCell]],
    *,
    stop: Callable[[], bool],
    on_progress: Sequence[Callable[[DriveProgress], None] | None],
) -> list[Measurement | Exception]:
    """Warm up and run all conversations of every cell; an error ends its own cell only.

    Memory holds all engines at once. Peaks of memory and the device's telemetry would be those of all together, and are
    not taken.
    """
    arms = []
    for (session, cell), show in zip(cells, on_progress, strict=True):
        clock = PausedClock()
        steps = measuring(session, cell, clock=clock, stop=stop, on_progress=show, alone=False)
        arms.append(_Arm(session, steps, clock, []))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        while left := [arm for arm in arms if arm.found is None]:
            _step(min(left, key=lambda arm: (arm.tokens, arm.taken)), caught)
    note = (
        f"measured in turn with {len(arms) - 1} other cells, step by step; its clock stood still meanwhile, peaks of "
        "memory and telemetry were not taken"
    )
    return [_noted(arm.found, note) for arm in arms]


def _step(arm: _Arm, caught: list[warnings.WarningMessage]) -> None:
    arm.taken += 1
    arm.clock.resume()
    try:
        arm.tokens = next(arm.steps)
        if arm.session.device.startswith("cuda"):
            torch.cuda.synchronize(arm.session.device)  # what it still has to do is not to meet the next one
    except StopIteration as end:
        arm.found = end.value
    except torch.OutOfMemoryError as error:
        arm.found = no_memory(arm.session, error)
    except Exception as error:  # whatever a plugin raises
        arm.found = error
    arm.clock.pause()
    arm.caught += caught
    caught.clear()
    if isinstance(arm.found, Measurement):
        arm.found = warned(arm.found, arm.caught)


def _noted(found: Measurement | Exception | None, note: str) -> Measurement | Exception:
    assert found is not None, "every arm came to its end"
    return replace(found, notes=(*found.notes, note)) if isinstance(found, Measurement) else found
