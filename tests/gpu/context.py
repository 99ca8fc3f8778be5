"""What the sections share: sizes, budget, the loaded target, and ceilings and costs that were measured before."""

from __future__ import annotations

import gc
from pathlib import Path

import torch

from specbench.engine.cost_table import CostTable
from specbench.engine.target import Target
from specbench.profile import ProfileSettings, profile_target
from tests.gpu import findings
from tests.gpu.ceilings import Ceilings, measure_ceilings
from tests.gpu.findings import Findings
from tests.gpu.models import random_target
from tests.gpu.scales import Scale, TargetShape
from tests.gpu.timing import Budget

COST_CONTEXT = 512  # cached tokens a row of the cost table, as of the loads that plan by it


class Context:
    """State of the child process. ``state`` is where results are left, ``records`` in it where records go."""

    def __init__(self, scale: Scale, *, state: Path) -> None:
        self.scale, self.state = scale, state
        self.records = state / "records"
        self.budget = Budget(0.0)
        self._name, self._found = "", Findings()
        self._target: tuple[TargetShape, Target] | None = None
        self._ceilings: Ceilings | None = None
        self._costs: dict[tuple[str, int, int], CostTable] = {}

    def begin(self, name: str, found: Findings, *, seconds: float) -> None:
        """A section starts."""
        self._name, self._found, self.budget = name, found, Budget(seconds)

    def flush(self) -> None:
        """Write what the section has found so far."""
        spent = self.budget.seconds - self.budget.left()
        findings.write(self.state, self._name, status="running", seconds=spent, budget_s=self.budget.seconds,
                       found=self._found)  # fmt: skip

    @property
    def device(self) -> torch.device:
        """Where everything runs."""
        return self.scale.device

    def target(self, shape: TargetShape) -> Target:
        """The target of this shape, with random weights; one at a time is held."""
        if self._target is None or self._target[0] != shape:
            self._target = None
            self.free()
            self._target = shape, random_target(shape, device=self.device, dtype=self.scale.dtype)
        return self._target[1]

    def ceilings(self) -> Ceilings:
        """Bandwidth and rates of this device, measured once a process."""
        if self._ceilings is None:
            self._ceilings = measure_ceilings(self.scale, budget=Budget(min(4.0, max(self.budget.left(), 1.0))))
        return self._ceilings

    def cost_table(self, shape: TargetShape, *, draft_length: int, max_rows: int) -> CostTable:
        """What a step of the target costs by tokens and rows, measured once a process by the profile command's code."""
        key = (shape.name, draft_length, max_rows)
        if key not in self._costs:
            context = min(COST_CONTEXT, max(self.scale.contexts))
            settings = ProfileSettings(draft_length, max_rows, context, repeats=3, warmup=1)
            self._costs[key] = profile_target(self.target(shape), settings)
            self.free()
        return self._costs[key]

    def free(self) -> None:
        """Give memory that nothing holds any more back to the device."""
        if self.scale.cuda:
            gc.collect()
            torch.cuda.empty_cache()

    def release(self) -> bool:
        """After a section: memory back, and whether the device still answers."""
        try:
            self.free()
            if self.scale.cuda:
                torch.cuda.synchronize(self.device)
        except RuntimeError:
            return False
        return True
