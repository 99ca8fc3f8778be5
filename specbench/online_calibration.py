"""Online calibration replayed over recorded rounds: how its error moves, for example after a switch of domain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from specbench.engine.scores import OnlineCalibrator, reached
from specbench.errors import ConfigError
from specbench.metrics import _sts
from specbench.metrics._measured import Floats, is_measured, stop_draft
from specbench.metrics._scores import ece
from specbench.metrics.calibration import unselected
from specbench.types import RunTrace


@dataclass(frozen=True, slots=True)
class Window:
    """Mean over positions of the error of the cumulative confidence in a run of rounds, by what predicted it."""

    first_round: int
    rounds: int
    domains: tuple[str, ...]
    raw: float
    frozen: float  # with the temperatures alone
    online: float  # adapted to every earlier round


def replay_online(
    traces: Sequence[RunTrace],
    *,
    temperatures: Sequence[float],
    window: int = 500,
    forget: float = 0.002,
    max_step: float = 0.05,
) -> list[Window]:
    """Error over time of an online calibration that sees the recorded rounds in the order in which they ran.

    Traces follow one another (a switch of domain, for example). A cycle's rounds are predicted before they are learned
    from, and only positions that were verified and reached are learned from; there is no randomness.
    """
    rows = [row for number, trace in enumerate(traces) for row in _replayed(trace, number)]
    if not rows:
        raise ConfigError("the runs hold no confidences: there is nothing to replay")
    predicted = _predict(rows, list(temperatures), forget=forget, max_step=max_step)
    windows: list[Window] = []
    for start in range(0, len(rows), window):
        part = slice(start, start + window)
        chunk = rows[part]
        if len(chunk) < window and windows:
            break  # a short last one would only show its own noise
        errors = [_mean_error([p[kind] for p in predicted[part]], chunk) for kind in range(3)]
        windows.append(Window(start, len(chunk), tuple(sorted({row.domain for row in chunk})), *errors))
    return windows


@dataclass(frozen=True, slots=True)
class _Replayed:
    cycle: tuple[int, int]  # trace and step
    domain: str
    log_odds: Floats  # [drafted]
    usable: int  # positions before an accepted stop token, that token included
    accepted: int


def _replayed(trace: RunTrace, number: int) -> Iterator[_Replayed]:
    requests = {request.id: request for request in trace.requests if is_measured(request)}
    rounds = [entry for entry in unselected(trace.rounds) if entry.request in requests]
    for entry in sorted(rounds, key=lambda entry: entry.step):
        assert entry.confidence is not None
        yield _Replayed(
            (number, entry.step),
            requests[entry.request].domain,
            _sts.logits(np.array(entry.confidence, dtype=np.float64)),
            stop_draft(entry) or entry.drafted,
            entry.accepted,
        )


def _predict(
    rows: Sequence[_Replayed], temperatures: list[float], *, forget: float, max_step: float
) -> list[tuple[Floats, Floats, Floats]]:
    """Cumulative forecasts of every round: raw, with the temperatures, and adapted online."""
    gamma = max(len(row.log_odds) for row in rows)
    scale = np.array([*temperatures, *[1.0] * gamma][:gamma])
    online = OnlineCalibrator(gamma, torch.device("cpu"), forget=forget, max_step=max_step)
    found: list[tuple[Floats, Floats, Floats]] = []
    for cycle in _cycles(rows):
        z = torch.zeros(len(cycle), gamma, dtype=torch.float64)
        for i, row in enumerate(cycle):
            z[i, : len(row.log_odds)] = torch.from_numpy(row.log_odds / scale[: len(row.log_odds)])
        adapted = torch.sigmoid(online.log_odds(z)).numpy()
        for i, row in enumerate(cycle):
            width = len(row.log_odds)
            plain = [_sts.scaled(row.log_odds, 1.0), _sts.scaled(row.log_odds, scale[:width]), adapted[i, :width]]
            found.append((np.cumprod(plain[0]), np.cumprod(plain[1]), np.cumprod(plain[2])))
        usable = torch.tensor([row.usable for row in cycle])
        accepted = torch.tensor([row.accepted for row in cycle])
        shown = reached(usable, accepted, torch.ones(len(cycle), gamma, dtype=torch.bool))
        online.observe(z, shown=shown, accepted=accepted)
    return found


def _cycles(rows: Sequence[_Replayed]) -> Iterator[list[_Replayed]]:
    batch: list[_Replayed] = []
    for row in rows:
        if batch and row.cycle != batch[-1].cycle:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def _mean_error(forecasts: Sequence[Floats], rows: Sequence[_Replayed]) -> float:
    """Mean over positions of the expected calibration error."""
    errors = []
    for k in range(max(len(row.log_odds) for row in rows)):
        inside = [i for i, row in enumerate(rows) if row.usable > k]
        if inside:
            hits = np.array([rows[i].accepted > k for i in inside], dtype=bool)
            error = ece(np.array([forecasts[i][k] for i in inside]), hits)
            assert error is not None
            errors.append(error)
    return float(np.mean(errors))
