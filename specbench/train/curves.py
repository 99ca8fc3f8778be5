"""Held-out curves of a plan's trainings in one table, and what more of the same would be expected to give."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from specbench.train.checkpoint import read_curve

THIRDS = 3
_FIRST = ("drafter", "stage", "lr", "seed", "step", "predictions")


@dataclass(frozen=True, slots=True)
class Point:
    """An evaluation: after ``predictions`` in all, with what `heldout.csv` says of it (text as in the file)."""

    step: int
    predictions: int
    values: dict[str, str]

    @property
    def tau(self) -> float | None:
        """Held-out accepted length, bonus included; None where nothing could be judged."""
        text = self.values.get("tau", "")
        return float(text) if text else None


def read_points(folder: Path) -> list[Point]:
    """The evaluations of a training's folder, in order. Empty where there are none."""
    trained = {int(row["step"]): int(float(row["predictions"] or 0)) for row in read_curve(folder / "curve.csv")}
    found, at, total = [], 0, 0
    for row in read_curve(folder / "heldout.csv"):
        step = int(row["step"])
        total += sum(trained.get(number, 0) for number in range(at + 1, step + 1))
        at = step
        found.append(Point(step, total, {name: text for name, text in row.items() if name != "step"}))
    return found


@dataclass(frozen=True, slots=True)
class Fit:
    """Least squares of held-out tau on the logarithm of predictions, through the ends of a training's thirds.

    The rate falls along a training, so a third is not a training of a third of the length: the slope is an estimate.
    """

    thirds: tuple[float, ...]
    slope: float  # of tau for each doubling

    def after(self, times: float) -> float:
        """Expected tau of ``times`` as many predictions."""
        return self.thirds[-1] + self.slope * math.log2(times)


def fit_thirds(points: Sequence[Point]) -> Fit | None:
    """None where a training has no evaluation near the end of each third."""
    judged = [(p.predictions, p.tau) for p in points if p.tau is not None and p.predictions]
    if len(judged) < THIRDS:
        return None
    end = judged[-1][0]
    chosen = [min(judged, key=lambda p: abs(p[0] - end * part / THIRDS)) for part in range(1, THIRDS + 1)]
    if len({count for count, _ in chosen}) < THIRDS:
        return None
    x = [math.log2(count) for count, _ in chosen]
    y = [tau for _, tau in chosen]
    mean_x, mean_y = sum(x) / THIRDS, sum(y) / THIRDS
    slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y)) / sum((a - mean_x) ** 2 for a in x)
    return Fit(tuple(y), slope)


def table(trainings: Iterator[tuple[dict[str, object], Sequence[Point]]]) -> str:
    """CSV of every evaluation of every training; a training's name columns come first."""
    rows = [
        {**names, "step": p.step, "predictions": p.predictions, **p.values}
        for names, points in trainings
        for p in points
    ]
    columns = list(dict.fromkeys([*_FIRST, *(name for row in rows for name in row)]))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
