"""A fitted calibration of a drafter's confidences on disk: ours with all it rests on, and SGLang's."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specbench.errors import ConfigError

FORMAT = "specbench-calibration"
VERSION = 1
FILE_NAME = "calibration.json"
SGLANG_FILE_NAME = "sglang_sts.json"


@dataclass(frozen=True, slots=True)
class Calibration:
    """One temperature a position, what it was fitted on, and its errors on prompts that the fit never saw.

    ``drafter_sha256`` None: another tool's file, which does not say whose confidences it is for.
    """

    temperatures: tuple[float, ...]
    dataset: str = ""
    num_samples: int = 0  # rounds of the fit
    ece_before: tuple[float, ...] = ()  # held-out, by position
    ece_after: tuple[float, ...] = ()
    held_out_samples: int = 0
    method: str | None = None
    drafter_sha256: str | None = None
    target_sha256: str | None = None
    sampling_temperature: float | None = None
    bins: int | None = None

    def sha256(self) -> str:
        """Content hash, for the records of runs that planned with it."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


Temperatures = Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=1)]


class _SGLang(_Strict):
    temperatures: Temperatures
    dataset: str = ""
    num_samples: int = 0
    ece_before: tuple[float, ...] = ()
    ece_after: tuple[float, ...] = ()


class _Document(_SGLang):
    format: Literal["specbench-calibration"]
    version: int
    held_out_samples: int = 0
    method: str | None = None
    drafter_sha256: str | None = None
    target_sha256: str | None = None
    sampling_temperature: float | None = None
    bins: int | None = None


def to_document(calibration: Calibration) -> dict[str, Any]:
    """Our JSON object."""
    whole = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(calibration).items()}
    return {"format": FORMAT, "version": VERSION, **{name: value for name, value in whole.items() if value is not None}}


def to_sglang(calibration: Calibration) -> dict[str, Any]:
    """The JSON object that SGLang reads with --speculative-dspark-confidence-sts-path."""
    return {
        "temperatures": list(calibration.temperatures),
        "dataset": calibration.dataset,
        "num_samples": calibration.num_samples,
        "ece_before": list(calibration.ece_before),
        "ece_after": list(calibration.ece_after),
    }


def read(path: Path) -> Calibration:
    """A calibration from a file of either form. Errors: ConfigError."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the calibration {path}: {error.strerror}; check the path") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON ({error}); make a calibration with 'specbench calibrate'") from error
    ours = isinstance(document, dict) and "format" in document
    try:
        found = (_Document if ours else _SGLang).model_validate(document)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in fault["loc"]) or "the object"
        raise ConfigError(
            f"{path} is no calibration: {place}: {fault['msg']}; make one with 'specbench calibrate'"
        ) from error
    if isinstance(found, _Document) and found.version != VERSION:
        raise ConfigError(f"{path}: calibration version {found.version}, this reads {VERSION}; upgrade specbench-llm")
    return Calibration(**found.model_dump(exclude={"format", "version"}))


def default_path(folder: Path | None, drafter_sha256: str, *, home: Path) -> Path:
    """Where a drafter's calibration lies: beside a checkpoint of the user's own, else in the cache by content."""
    return home / "calibrations" / f"{drafter_sha256[:16]}.json" if folder is None else folder / FILE_NAME


def find(candidates: Sequence[Path]) -> Path | None:
    """The first of the places that holds a file."""
    return next((path for path in candidates if path.is_file()), None)
