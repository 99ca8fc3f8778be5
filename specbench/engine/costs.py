"""Parts of a cost table: seconds by rows, by how full rows are, and by prompt tokens. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RowCost:
    """Seconds by rows, straight lines between the measured points and flat beyond them. ``spread``: see `CostTable`.

    A drafter's price is of ``draft_length`` drafts a row; ``single`` is that of one draft a row.
    """

    rows: tuple[int, ...]
    seconds: tuple[float, ...]
    spread: tuple[float, ...] = ()
    draft_length: int | None = None
    single: tuple[float, ...] = ()

    def at(self, rows: Any, *, drafts: int | None = None) -> Floats:
        """Seconds at ``rows`` (any shape), of ``drafts`` a row: on a straight line where one was measured too."""
        whole = np.asarray(np.interp(rows, self.rows, self.seconds), dtype=np.float64)
        if drafts is None or not self.by_length:
            return whole
        one = np.interp(rows, self.rows, self.single)
        assert self.draft_length is not None, "a price by length says which lengths it was measured at"
        return np.asarray(one + (whole - one) * ((drafts - 1) / (self.draft_length - 1)), dtype=np.float64)

    @property
    def by_length(self) -> bool:
        """It says what fewer drafts a row cost."""
        return bool(self.single) and (self.draft_length or 0) > 1


@dataclass(frozen=True, slots=True)
class WidthCost:
    """Seconds by rows and tokens a row that the cost of the tokens and that of the rows leave out, often below 0.

    Straight lines between the measured points, nothing at one token a row and from the last of ``widths`` on.
    """

    rows: tuple[int, ...]
    widths: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]  # by rows, then by widths; the first and last width's are 0

    def at(self, tokens: Any, *, rows: int) -> Floats:
        """Seconds with ``tokens`` (any shape) in ``rows`` rows."""
        width = np.asarray(tokens, dtype=np.float64) / max(rows, 1)
        columns = [np.interp(width, self.widths, line) for line in self.seconds]
        above = int(np.searchsorted(self.rows, rows))
        if above == 0 or above == len(self.rows):
            return np.asarray(columns[min(above, len(self.rows) - 1)], dtype=np.float64)
        low, high = self.rows[above - 1], self.rows[above]
        share = (rows - low) / (high - low)
        return np.asarray((1 - share) * columns[above - 1] + share * columns[above], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class PromptCost:
    """Seconds of a step that runs ``tokens`` prompt tokens of one new request, whose last alone is given logits.

    Straight lines between the measured points; beyond the last in proportion, so that nothing is free.
    """

    tokens: tuple[int, ...]
    seconds: tuple[float, ...]
    spread: tuple[float, ...] = ()

    def at(self, tokens: int) -> float:
        """Seconds of a chunk of so many tokens."""
        return float(np.interp(tokens, self.tokens, self.seconds)) * max(1.0, tokens / self.tokens[-1])
