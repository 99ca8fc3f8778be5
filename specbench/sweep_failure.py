"""The row of a cell that could not even be planned: its target, prompts or drafter were not to be had."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specbench.metrics import METRICS_VERSION
from specbench.recording import one_line
from specbench.records import schema
from specbench.records.schema import Failure, Identity, Record
from specbench.session import Session
from specbench.sweep_plan import SweepCell
from specbench.types import Status

UNRESOLVED = "unresolved"


def unplanned(
    cell: SweepCell,
    error: Exception,
    *,
    machine: Mapping[str, Any],
    command: Sequence[str],
    session: Session | None,
    started_s: float,
) -> Record:
    """A failed record with what was asked for; ``session`` None: not even the target was there.

    A target that was not found is hashed by its name, and its source says so. No such row is ever compared.
    """
    spec = _without_folders(cell)
    name = session.name if session is not None else spec["target"]
    if session is not None:
        target = Identity(name=name, sha256=session.resolved.weights_sha256, source=session.resolved.source)
    else:
        details = {"sha256 is of": "the name, not of weights"}
        target = Identity(name=name, sha256=schema.digest(name), source=UNRESOLVED, details=details)
    return schema.build(
        cell_key=cell.key,
        metrics_version=METRICS_VERSION,
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started_s)),
        command=list(command),
        method=cell.method.name,
        draft_length=cell.method.draft_length or 0,
        spec=spec,
        provenance=dict(machine),
        target=target,
        comparability={},
        comparability_sha256=schema.digest({}),
        status=str(Status.FAILED),
        notes=[] if cell.is_control or cell.method.draft_length is not None else ["the draft length was not yet known"],
        error=Failure(kind=type(error).__name__, message=one_line(error)),
    )


def _without_folders(cell: SweepCell) -> dict[str, Any]:
    """The cell's settings; paths of this machine go by their last part."""
    asked = cell.run.model_dump(mode="json", exclude={"out", "methods", "baseline"})
    asked |= {"method": cell.method.name, "draft_length": cell.method.draft_length}
    asked["server"] = cell.run.server.content()
    asked["target"] = _last(asked["target"])
    asked["tasks"] = [_last(name) for name in asked["tasks"]]
    asked["drafters"] = {method: _last(name) for method, name in asked["drafters"].items()}
    asked["mix"] = {_last(name): weight for name, weight in asked["mix"].items()}
    asked["load"] = {name: _last(v) if isinstance(v, str) else v for name, v in asked["load"].items()}
    for name in ("cost_table", "calibration"):
        asked[name] = asked[name] and _last(asked[name])
    return asked


def _last(name: str) -> str:
    path = Path(name).expanduser()
    return path.name if path.is_absolute() or path.exists() else name
