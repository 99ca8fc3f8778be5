"""The outcome of a search for SLA-bound throughput, as it is written beside the records of its probes.

Like a record it is addressed by its content: ``sla_id`` is a hash of everything else in it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specbench.errors import RecordError
from specbench.records.schema import EstimateRow, RunId, digest
from specbench.records.store import write_atomic
from specbench.secrets_in_text import masked_command

SLA_SCHEMA_VERSION = 1
PREFIX = "sla-"

Finite = Annotated[float, Field(allow_inf_nan=False)]
SearchOutcome = Literal["attained", "all pass (bound)", "not attainable", "not measured"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")


class CeilingRow(_Strict):
    """At most ``seconds`` for a percentile over requests."""

    metric: Literal["ttft", "tpot"]
    percent: int
    seconds: Finite


class LevelRow(_Strict):
    """A service level. ``floor`` bounds the mean tok/s/user over requests from below."""

    label: str
    floor: Finite | None
    ceilings: list[CeilingRow] = []


class SpaceRow(_Strict):
    """Where loads were looked for; ``over`` is "concurrency" (users) or "rate" (requests/s)."""

    over: Literal["concurrency", "rate"]
    start: Finite
    low: Finite
    high: Finite
    tolerance: Finite
    beyond: int


class RunRow(_Strict):
    """One run of a probe. Absent figures are null."""

    run_id: RunId
    repeat: int
    seed: int
    requests: int  # measured ones
    throughput: Finite | None  # tokens/s of the steady window
    speed: Finite | None  # tok/s/user, mean over requests
    in_flight: Finite | None
    served: Finite | None  # admission rate over arrival rate
    round_s: Finite | None = None
    tau: Finite | None = None
    verdict: Literal["pass", "fail", "inconclusive"] | None = None
    trouble: str | None = None


class ProbeRow(_Strict):
    """A contestant at a load, over all its runs."""

    method: str
    load: Finite
    runs: list[RunRow]
    estimates: list[EstimateRow]


class JudgedRow(_Strict):
    """A probe under a service level."""

    load: Finite
    passed: bool
    reasons: list[str] = []


class FlagRow(_Strict):
    """What a reader must know before believing a knee."""

    name: str
    message: str


class SearchRow(_Strict):
    """A contestant under a service level. There is a throughput only where a load holds the level."""

    method: str
    level: int  # index into the levels
    outcome: SearchOutcome
    reason: str
    max_pass: Finite | None = None
    first_fail: Finite | None = None
    best: Finite | None = None
    throughput: EstimateRow | None = None
    speed: EstimateRow | None = None
    in_flight: EstimateRow | None = None
    requests: int = 0  # measured at the best load, all runs together
    flags: list[FlagRow] = []
    judged: list[JudgedRow] = []


class GainRow(_Strict):
    """A contestant against the baseline under a service level; where there is no ratio, why not."""

    method: str
    level: int
    throughput: EstimateRow | None = None
    throughput_why: str | None = None
    speed: EstimateRow | None = None
    speed_why: str | None = None


class SlaResult(_Strict):
    """Everything a search was asked and found. ``few``: ratios need more requests in flight than this in both arms."""

    schema_version: Literal[1] = 1
    sla_id: RunId
    created: str
    command: list[str]
    metrics_version: str
    complete: bool  # False: interrupted before every search had ended
    levels: list[LevelRow]
    space: SpaceRow
    repeats: int
    few: Finite
    baseline: str | None
    family: dict[str, Any]  # the comparability key without the load
    probes: list[ProbeRow] = []
    searches: list[SearchRow] = []
    gains: list[GainRow] = []
    notes: list[str] = []


def build(**fields: Any) -> SlaResult:
    """A result with its content address filled in; keys among the command's words are masked.

    Errors: RecordError naming the field that is malformed.
    """
    if isinstance(fields.get("command"), list | tuple):
        fields["command"] = masked_command([str(word) for word in fields["command"]])
    draft = _validate({**fields, "sla_id": "0" * 16}, where="the new result")
    document = json.loads(json.dumps(draft.model_dump(mode="json")))
    return _validate({**document, "sla_id": _address(document)}, where="the new result")


def write(folder: Path, result: SlaResult) -> Path:
    """Write ``sla-ID.json`` into the folder, whole or not at all. Errors: RecordError."""
    path = folder / f"{PREFIX}{result.sla_id}.json"
    text = json.dumps(result.model_dump(mode="json"), indent=1, ensure_ascii=False, allow_nan=False)
    write_atomic(path, (text + "\n").encode())
    return path


def read(path: Path) -> SlaResult:
    """A result from its file. Errors: RecordError when it is missing, half-written, edited or from a newer version."""
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}; check the path") from error
    except ValueError as error:
        raise RecordError(f"{path}: not complete JSON ({error}); it is half-written or no result, delete it") from error
    version = document.get("schema_version") if isinstance(document, dict) else None
    if not isinstance(version, int) or not 1 <= version <= SLA_SCHEMA_VERSION:
        raise RecordError(
            f"{path}: schema version {version!r}, this version reads up to {SLA_SCHEMA_VERSION}; it is no result of "
            "'specbench sla', or a newer one: upgrade specbench-llm"
        )
    result = _validate(document, where=str(path))
    if _address(document) != result.sla_id:
        raise RecordError(f"{path}: it was changed after it was written; restore the original or search again")
    return result


def _address(document: dict[str, Any]) -> str:
    return digest({name: value for name, value in document.items() if name != "sla_id"})[:16]


def _validate(document: dict[str, Any], *, where: str) -> SlaResult:
    try:
        return SlaResult.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise RecordError(f"{where}: field '{field}': {first['msg']}; the result is damaged or incomplete") from error
