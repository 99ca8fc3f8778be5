"""Calibration of a drafter's confidences: rounds of a fixed policy, a fit on half of the prompts, judged on the other.

Offline fits use only rounds that verified every draft: what a truncating policy verifies was chosen for its confidence.
Prompts are split, never rounds, so that no text is on both sides.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specbench import calibration_file
from specbench.calibration_file import Calibration
from specbench.cell import PlannedCell, measure_cell, plan_cell
from specbench.config import BASELINE, RunSpec
from specbench.errors import ConfigError
from specbench.metrics import _sts
from specbench.metrics._measured import Flags, Floats, Ints, clusters, is_measured, stop_draft
from specbench.metrics._scores import BINS, auroc, brier, ece
from specbench.metrics.calibration import unselected
from specbench.records.store import write_atomic
from specbench.resolve import silent_step
from specbench.resolve.cache import home
from specbench.session import Step, open_session
from specbench.types import RunTrace
from specbench.workloads.driver import DriveProgress


@dataclass(frozen=True, slots=True)
class Samples:
    """Rounds that verified all their drafts: N rounds, G positions."""

    log_odds: Floats  # [N, G]
    accepted: NDArray[np.bool_]  # [N, G], the draft and all before it
    valid: Flags  # [N, G], drafted and not after an accepted stop token
    domain: tuple[str, ...]  # [N]
    cluster: Ints  # [N], rounds of the same prompt or conversation share a number

    def of(self, chosen: Flags) -> Samples:
        """The chosen rounds [N]."""
        domain = tuple(d for d, inside in zip(self.domain, chosen, strict=True) if inside)
        return Samples(self.log_odds[chosen], self.accepted[chosen], self.valid[chosen], domain, self.cluster[chosen])


def collect(trace: RunTrace) -> Samples:
    """The trace's rounds as samples. Errors: ConfigError when none has confidences."""
    requests = [request for request in trace.requests if is_measured(request)]
    number = dict(zip([r.id for r in requests], clusters(requests).tolist(), strict=True))
    domain = {request.id: request.domain for request in requests}
    rounds = [entry for entry in unselected(trace.rounds) if entry.request in number]
    if not rounds:
        raise ConfigError(
            f"method '{trace.method}' gave no confidences: there is nothing to calibrate; policies estimate the "
            "acceptance of such drafters by position and domain while they run"
        )
    n, gamma = len(rounds), trace.draft_length
    log_odds, valid = np.zeros((n, gamma)), np.zeros((n, gamma), dtype=bool)
    accepted = np.zeros((n, gamma), dtype=bool)
    for i, entry in enumerate(rounds):
        assert entry.confidence is not None
        log_odds[i, : entry.drafted] = _sts.logits(np.array(entry.confidence, dtype=np.float64))
        valid[i, : stop_draft(entry) or entry.drafted] = True
        accepted[i, : entry.accepted] = True
    return Samples(
        log_odds,
        accepted,
        valid,
        tuple(domain[entry.request] for entry in rounds),
        np.array([number[entry.request] for entry in rounds], dtype=np.int64),
    )


def split(samples: Samples) -> tuple[Samples, Samples]:
    """Two disjoint halves by prompt, alternating inside each domain. Errors: ConfigError when one would be empty."""
    first: dict[int, bool] = {}
    turn: dict[str, int] = {}
    for domain, cluster in zip(samples.domain, samples.cluster.tolist(), strict=True):
        if cluster not in first:
            first[cluster] = turn.get(domain, 0) % 2 == 0
            turn[domain] = turn.get(domain, 0) + 1
    chosen = np.array([first[cluster] for cluster in samples.cluster.tolist()], dtype=bool)
    if chosen.all():
        raise ConfigError(
            "a calibration needs two prompts of a domain at least: one half fits, the other judges; give more prompts"
        )
    return samples.of(chosen), samples.of(~chosen)


@dataclass(frozen=True, slots=True)
class PositionScores:
    """Errors of the cumulative confidence at one position (1-based); None where there is nothing to tell.

    ``domain`` None stands for all.
    """

    domain: str | None
    k: int
    samples: int
    ece: tuple[float | None, float | None]  # before and after
    brier: tuple[float | None, float | None]
    auroc: tuple[float | None, float | None]


def score(samples: Samples, temperatures: Sequence[float]) -> list[PositionScores]:
    """Scores before and after the temperatures: all domains together, then each."""
    width = samples.log_odds.shape[1]
    forecasts = [
        _sts.survival(samples.log_odds, np.array(values)) for values in ([1.0] * width, list(temperatures[:width]))
    ]
    names: list[str | None] = [None, *sorted(set(samples.domain))]
    if len(names) == 2:
        names = [None]
    found = []
    for name in names:
        inside = np.array([name is None or d == name for d in samples.domain], dtype=bool)
        for k in range(width):
            use = inside & samples.valid[:, k]
            if not use.any():
                continue
            hit = samples.accepted[use, k]
            before, after = (forecast[use, k] for forecast in forecasts)
            found.append(
                PositionScores(
                    name,
                    k + 1,
                    int(use.sum()),
                    (ece(before, hit), ece(after, hit)),
                    (brier(before, hit), brier(after, hit)),
                    (auroc(before, hit), auroc(after, hit)),
                )
            )
    return found


@dataclass(frozen=True, slots=True)
class CalibrationResult:
    """The fit, its scores on held-out prompts, and the files that were written."""

    calibration: Calibration
    scores: tuple[PositionScores, ...]
    trace: RunTrace
    paths: tuple[Path, ...]


def fit_trace(
    trace: RunTrace, *, dataset: str, drafter_sha256: str | None = None, target_sha256: str | None = None
) -> tuple[Calibration, list[PositionScores]]:
    """Fit on one half of the trace's prompts and judge on the other.

    Errors: ConfigError without confidences or with too few prompts.
    """
    fitting, held_out = split(collect(trace))
    fitted = _sts.fit(fitting.log_odds, fitting.accepted, valid=fitting.valid)
    scores = score(held_out, fitted.temperatures)
    overall = [row for row in scores if row.domain is None]
    calibration = Calibration(
        temperatures=fitted.temperatures,
        dataset=dataset,
        num_samples=len(fitting.domain),
        ece_before=tuple(e for row in overall if (e := row.ece[0]) is not None),
        ece_after=tuple(e for row in overall if (e := row.ece[1]) is not None),
        held_out_samples=len(held_out.domain),
        sampling_temperature=trace.sampling.temperature,
        bins=BINS,
        method=trace.method,
        drafter_sha256=drafter_sha256,
        target_sha256=target_sha256,
    )
    return calibration, scores


def calibrate(
    spec: RunSpec,
    *,
    out: Path | None = None,
    on_progress: Callable[[DriveProgress], None] | None = None,
    step: Step = silent_step,
) -> CalibrationResult:
    """Measure fixed-length rounds of the run's one method, fit, judge, and write the files.

    ``out`` None writes beside the checkpoint where that is a folder of the user's own, else into the cache, where runs
    find it either way. Errors: ConfigError when it is not one method with a checkpoint, or gives no confidences.
    """
    methods = [method for method in spec.methods if method.name != BASELINE]
    if len(methods) != 1:
        raise ConfigError("a calibration is of one drafter; give one --method")
    fixed = spec.model_copy(update={"policy": "fixed", "baseline": False, "calibration": "off"})
    session = open_session(fixed, step=step)
    cell = plan_cell(session, methods[0], step=step)
    measured = measure_cell(session, cell, stop=lambda: False, on_progress=on_progress)
    calibration, scores = fit_trace(
        measured.trace,
        dataset=",".join(cell.spec.tasks),
        drafter_sha256=cell.checkpoint.sha256 if cell.checkpoint is not None else None,
        target_sha256=session.resolved.weights_sha256,
    )
    paths = write(calibration, out or _place(cell))
    return CalibrationResult(calibration, tuple(scores), measured.trace, paths)


def _place(cell: PlannedCell) -> Path:
    checkpoint = cell.checkpoint
    if checkpoint is None:
        raise ConfigError(f"method '{cell.spec.method}' has no checkpoint to lie beside; name a file with --out")
    own = checkpoint.path if checkpoint.source == "folder" else None
    return calibration_file.default_path(own, checkpoint.sha256, home=home())


def write(calibration: Calibration, path: Path) -> tuple[Path, Path]:
    """Write our file and, beside it, SGLang's. Errors: RecordError when the folder cannot be written."""
    sglang = path.with_name(
        calibration_file.SGLANG_FILE_NAME
        if path.name == calibration_file.FILE_NAME
        else f"{path.stem}.{calibration_file.SGLANG_FILE_NAME}"
    )
    for place, document in (
        (path, calibration_file.to_document(calibration)),
        (sglang, calibration_file.to_sglang(calibration)),
    ):
        write_atomic(place, (json.dumps(document, indent=1) + "\n").encode())
    return path, sglang
