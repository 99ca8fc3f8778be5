"""The record of one cell, as it is written: JSON that says all that is needed to judge and repeat a run.

A record is addressed by its content: ``run_id`` is a hash of everything else in it, the rounds' file included, so an
edited record no longer answers to its name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, ValidationError, model_serializer
from pydantic_core import PydanticSerializationError

from specbench.errors import NewerSchemaError, RecordError
from specbench.secrets_in_text import masked_command
from specbench.types import Estimate

SCHEMA_VERSION = 2
HISTORY = {
    1: "the first: one JSON document a cell, rounds in a parquet file beside it",
    2: "telemetry, draft_vocabulary and graded, each absent where there is none; records of 1 are read as they are",
}

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
RunId = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class _Strict(BaseModel):
    # NaN stays NaN when dumped, so that hashing can refuse it instead of writing null
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")


class Identity(_Strict):
    """A model by name and by content. ``details`` holds what else is known (revision, layout, parameters)."""

    name: str
    sha256: Sha256
    source: str  # "folder", "hub", "package", ...
    details: dict[str, Any] = {}


class EstimateRow(_Strict):
    """A `types.Estimate` as JSON."""

    metric: str
    value: Finite
    unit: str
    n: Annotated[int, Field(ge=0)]
    n_of: str
    scope: dict[str, str] = {}
    low: Finite | None = None
    high: Finite | None = None
    interval: str | None = None

    @classmethod
    def of(cls, estimate: Estimate) -> EstimateRow:
        """From the estimate that a metric computed."""
        return cls(
            metric=estimate.metric,
            value=estimate.value,
            unit=estimate.unit,
            n=estimate.n,
            n_of=estimate.n_of,
            scope=dict(estimate.scope),
            low=estimate.low,
            high=estimate.high,
            interval=estimate.interval,
        )

    def estimate(self) -> Estimate:
        """Back to the estimate."""
        return Estimate(
            metric=self.metric,
            value=self.value,
            unit=self.unit,
            n=self.n,
            n_of=self.n_of,
            scope=tuple(self.scope.items()),
            low=self.low,
            high=self.high,
            interval=self.interval,
        )


class DifferenceRow(_Strict):
    """Where a text first left plain decoding's; ``position`` counts output tokens from 0."""

    request: str
    position: int
    token: int | None
    control_token: int | None
    gap: float | None
    tie: bool


class VerdictRow(_Strict):
    """Losslessness with its evidence. ``control`` is the run that it was judged against."""

    outcome: Literal["pass", "fail", "inconclusive"]
    rule: Literal["greedy", "sampled", "synthetic"]
    reason: str
    requests_compared: int
    rounds_with_drafts: int
    differences: list[DifferenceRow] = []
    noise_floor: float | None = None
    share_compared: float | None = None
    p_value: float | None = None
    power: float | None = None
    samples: list[tuple[int, int, int]] = []
    degrees: list[int] = []  # of freedom of each of these tests; left out where there are none
    control: RunId | None = None

    @model_serializer(mode="wrap")
    def _document(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """What was added later is left out where it is empty, so that an older record is written as it was read."""
        found: dict[str, Any] = plain(self)
        return {name: value for name, value in found.items() if value or name != "degrees"}


class AlarmRow(_Strict):
    """Something a reader must know before believing a number."""

    name: str
    message: str


class SampleText(_Strict):
    """One prompt and what the target answered, for a reader's eye."""

    request: str
    task: str
    prompt: str
    text: str


class RoundsFile(_Strict):
    """The file that every number was computed from; it lies beside the record as RUN_ID.rounds.parquet."""

    sha256: Sha256
    bytes: int
    rounds: int
    requests: int
    steps: int


class Failure(_Strict):
    """Why a cell has no result, or only a part."""

    kind: str  # the error's class
    message: str
    where: str | None = None


class Reading(_Strict):
    """One quantity of the device over its samples: their mean, the least and the most."""

    unit: str
    mean: Finite
    least: Finite
    most: Finite
    samples: Annotated[int, Field(ge=1)]


class Telemetry(_Strict):
    """What the device's driver said during the measured window; what it does not tell is absent and named.

    The window runs from ``start_s`` to ``end_s``, seconds since the run's origin: the measured part of the run, as far
    as it was sampled. ``throttled`` gives the share of samples that showed each reason (idling is none), None where
    the driver tells of no reasons. ``energy_j`` is the device's whole energy in the window, idle time included.
    """

    source: str  # "nvml"
    device: str
    period_s: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    start_s: Finite
    end_s: Finite
    samples: Annotated[int, Field(ge=0)]
    tokens: Annotated[int, Field(ge=0)]  # output tokens that became visible in the window
    readings: dict[str, Reading] = {}
    throttled: dict[str, Annotated[float, Field(ge=0, le=1)]] | None = None
    energy_j: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    energy_from: Literal["counter", "power"] | None = None  # the driver's own counter, or power over the samples
    unsupported: list[str] = []
    lost: str | None = None  # why sampling ended before the run did


class DraftVocabulary(_Strict):
    """How much of the text a drafter with a reduced vocabulary could name: tokens committed in measured rounds."""

    size: Annotated[int, Field(ge=1)]
    target_size: Annotated[int, Field(ge=1)]
    committed: Annotated[int, Field(ge=0)]
    inside: Annotated[int, Field(ge=0)]

    @property
    def share(self) -> float | None:
        """Share of the committed tokens that it can name, None where nothing was committed."""
        return self.inside / self.committed if self.committed else None


class GradedRow(_Strict):
    """What a grader gave each item of a task. ``filter`` names how the answer was read, ``scores`` go by item."""

    task: str
    metric: str
    filter: str
    scores: Annotated[dict[str, Finite], Field(min_length=1)]


ADDED = ("telemetry", "draft_vocabulary", "graded")  # since version 1: left out of the document where there is none


class Record(_Strict):
    """One cell of a run. Everything but ``run_id`` is hashed into it."""

    schema_version: Literal[1, 2] = 2
    run_id: RunId
    cell_key: str  # hash of the resolved spec: repeats of a cell share it
    metrics_version: str
    status: Literal["ok", "failed", "interrupted"]
    created: str  # ISO 8601, UTC
    command: list[str]
    method: str
    draft_length: int
    spec: dict[str, Any]
    provenance: dict[str, Any]
    target: Identity
    drafter: Identity | None = None
    comparability: dict[str, Any]
    comparability_sha256: Sha256
    estimates: list[EstimateRow] = []
    verdict: VerdictRow | None = None
    alarms: list[AlarmRow] = []
    samples: list[SampleText] = []
    counts: dict[str, int] = {}
    notes: list[str] = []
    rounds: RoundsFile | None = None
    baseline: RunId | None = None  # the run that speed-ups were computed against
    error: Failure | None = None
    telemetry: Telemetry | None = None
    draft_vocabulary: DraftVocabulary | None = None
    graded: list[GradedRow] | None = None

    @model_serializer(mode="wrap")
    def _document(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """What was added later is left out where it is None, so that an older record is written as it was read."""
        found: dict[str, Any] = plain(self)
        return {name: value for name, value in found.items() if value is not None or name not in ADDED}

    def find(self, metric: str, **scope: str) -> EstimateRow | None:
        """The estimate with exactly this scope, or None."""
        return next((row for row in self.estimates if row.metric == metric and row.scope == scope), None)


def canonical(value: object) -> bytes:
    """JSON with one spelling for equal values: sorted keys, no spaces, UTF-8. Errors: RecordError for other values."""
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise RecordError(f"a record holds only JSON values, seen {error}; convert it before writing") from error
    return text.encode("utf-8", errors="surrogatepass")


def digest(value: object) -> str:
    """SHA-256 of the canonical JSON, 64 hex digits."""
    return hashlib.sha256(canonical(value)).hexdigest()


def content_id(document: Mapping[str, Any]) -> str:
    """16 hex digits of the hash of a record's document without its ``run_id``."""
    return digest({key: value for key, value in document.items() if key != "run_id"})[:16]


def build(**fields: Any) -> Record:
    """A record with its content address filled in; fields as in `Record`, ``run_id`` excepted.

    Keys and passwords among the command's words are masked.
    Errors: RecordError naming the field when one is missing, unknown or malformed.
    """
    if isinstance(fields.get("command"), list | tuple):
        fields["command"] = masked_command([str(word) for word in fields["command"]])
    draft = _validate({**fields, "run_id": "0" * 16}, where="the new record")
    try:
        plain = draft.model_dump(mode="json")
    except PydanticSerializationError as error:
        raise RecordError(f"a record holds only JSON values, seen {error}; convert it before writing") from error
    canonical(plain)  # refuses what JSON cannot hold
    document = json.loads(json.dumps(plain))  # as a reader will find it: keys as text, tuples as lists
    return _validate({**document, "run_id": content_id(document)}, where="the new record")


def parse(document: object, *, where: str) -> Record:
    """A record from its JSON document, checked against its own address. ``where`` names the file in errors.

    Errors: RecordError for another schema version, missing, unknown or malformed fields, or edited content.
    """
    if not isinstance(document, dict):
        raise RecordError(f"{where}: a record is a JSON object, seen {type(document).__name__}; it is no record")
    version = document.get("schema_version")
    if not isinstance(version, int) or version < 1:
        raise RecordError(f"{where}: no schema version, seen {version!r}; it is no record of this tool")
    if version > SCHEMA_VERSION:
        raise NewerSchemaError(
            f"{where}: written with record schema {version}, this version reads up to {SCHEMA_VERSION}; "
            "upgrade specbench-llm"
        )
    record = _validate(document, where=where)
    found = content_id(document)
    if found != record.run_id:
        raise RecordError(
            f"{where}: content hashes to {found} but the record is named {record.run_id}: it was changed after it was "
            "written; restore the original or run again"
        )
    return record


def _validate(document: Mapping[str, Any], *, where: str) -> Record:
    try:
        return Record.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise RecordError(f"{where}: field '{field}': {first['msg']}; the record is damaged or incomplete") from error
