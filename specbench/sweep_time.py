"""How long the cells of a sweep will take: from the finished ones like them, else from a prior that is stated."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from specbench.config import RunSpec
from specbench.errors import ConfigError
from specbench.records.schema import Record
from specbench.sweep_folder import place
from specbench.sweep_plan import SweepCell

PRIOR_TOKENS_PER_S = 20.0
PRIOR_CELL_S = 2.0
PRIOR_PROMPTS = 200  # of a task that is taken whole: how many it has is known once its data is there

_LIKENESS = (
    ("target", "method", "policy", "workload", "concurrency", "task"),
    ("target", "method", "concurrency"),
    ("target", "method"),
    ("target",),
    (),
)
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def budget_tokens(run: RunSpec) -> int:
    """Output tokens that a cell may be asked for, later turns of a conversation not counted."""
    return len(run.tasks) * (run.num_prompts or PRIOR_PROMPTS) * max(run.max_new_tokens, 1)


@dataclass(frozen=True, slots=True)
class TimeEstimates:
    """Seconds a token of the budget by what cells have in common; ``cells`` finished ones are behind it."""

    cells: int
    rates: Mapping[tuple[str | None, ...], float]

    @classmethod
    def of(cls, finished: Iterable[tuple[SweepCell, Record]]) -> TimeEstimates:
        """From the seconds that each finished cell took in all, as its record says."""
        seen: dict[tuple[str | None, ...], list[float]] = {}
        count = 0
        for cell, record in finished:
            spent = (place(record) or {}).get("total_s")
            if not isinstance(spent, int | float):
                continue
            count += 1
            for axes in _LIKENESS:
                seen.setdefault(_features(cell, axes), []).append(float(spent) / budget_tokens(cell.run))
        return cls(count, {features: median(values) for features, values in seen.items()})

    def seconds(self, cell: SweepCell) -> float:
        """Expected seconds of one cell, set-up included: from the finished cells that are most like it."""
        tokens = budget_tokens(cell.run)
        for axes in _LIKENESS:
            rate = self.rates.get(_features(cell, axes))
            if rate is not None:
                return rate * tokens
        return PRIOR_CELL_S + tokens / (PRIOR_TOKENS_PER_S * cell.run.concurrency)

    def total(self, cells: Sequence[SweepCell]) -> float:
        """Expected seconds of all of them, one after the other."""
        return sum(self.seconds(cell) for cell in cells)

    @property
    def basis(self) -> str:
        """What the estimate rests on, in words."""
        if self.cells:
            return f"from {self.cells} finished cell{'s' if self.cells > 1 else ''}"
        return f"assuming {PRIOR_TOKENS_PER_S:g} tokens a second and user, as nothing is finished yet"


def _features(cell: SweepCell, axes: tuple[str, ...]) -> tuple[str | None, ...]:
    return (*axes, *(cell.settings.get(axis) for axis in axes))


def in_words(seconds: float) -> str:
    """``45 s``, ``12 min``, ``3.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def parse_duration(text: str) -> float:
    """Seconds of ``90s``, ``30m``, ``2h``, ``1h30m``; a bare number is seconds. Errors: ConfigError."""
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd]?)", text.strip())
    spelt = "".join(number + unit for number, unit in parts)
    units = [unit for _, unit in parts]
    if not parts or spelt != text.strip() or (len(parts) > 1 and ("" in units or len(set(units)) < len(units))):
        raise ConfigError(f"'{text}' is no length of time; write for example 90s, 30m or 1h30m")
    seconds = sum(float(number) * _UNITS[unit or "s"] for number, unit in parts)
    if seconds <= 0:
        raise ConfigError(f"a time limit of '{text}' leaves no time; give more than 0 s")
    return seconds
