"""What a cell's policy is told beside the scores: the cost table of this machine and the drafter's calibration."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from pathlib import Path

from specbench import calibration_file, provenance
from specbench.config import RunSpec
from specbench.engine import cost_table
from specbench.engine.cost_table import CostTable, Origin
from specbench.errors import ConfigError
from specbench.resolve import ResolvedDrafter
from specbench.resolve.cache import home

OFF, AUTO = "off", "auto"
COST_BLIND = frozenset({"fixed"})
"""Policies that neither costs nor confidences can change: what was measured for the others is left alone."""


@dataclass(frozen=True, slots=True)
class PlanningInputs:
    """A cost table and temperatures, and the hashes by which records name them."""

    cost: CostTable | None = None
    temperatures: tuple[float, ...] = ()
    hashes: dict[str, str] = field(default_factory=dict)


def device_name(device: str) -> str:
    """The processor or accelerator that a measured cost belongs to."""
    facts = provenance.gpu_facts(device) if device.startswith("cuda") else provenance.cpu_facts()
    return str(facts.get("name", facts.get("model", device)))


def origin(*, device: str, weights_sha256: str, dtype: str, threads: int) -> Origin:
    """What a cost table must have been measured with to hold here; threads count on a CPU only."""
    import torch

    return Origin(
        device=device_name(device),
        weights_sha256=weights_sha256,
        dtype=dtype,
        threads=None if device.startswith("cuda") else threads,
        torch=torch.__version__,
    )


def table_path(place: Origin) -> Path:
    """Where 'specbench profile' leaves a table, and where runs look for it."""
    assert place.weights_sha256 is not None, "a run knows its target"
    device = "".join(c if c.isalnum() else "-" for c in (place.device or "device").lower()).strip("-")
    threads = "" if place.threads is None else f"-{place.threads}t"
    return home() / "cost-tables" / f"{place.weights_sha256[:16]}-{device}-{place.dtype}{threads}.json"


def gather(spec: RunSpec, *, place: Origin, checkpoint: ResolvedDrafter | None) -> PlanningInputs:
    """Find and check what the run's policy may need; nothing for policies that plan without it.

    Errors: ConfigError for a file that cannot be read or belongs to another device, target or drafter.
    """
    if spec.policy_parts[0] in COST_BLIND:
        return PlanningInputs()
    hashes: dict[str, str] = {}
    table = _table(spec, place)
    if table is not None:
        hashes["cost_table"] = table.sha256()
    calibration = _calibration(spec, checkpoint)
    if calibration is not None:
        hashes["calibration"] = calibration.sha256()
    return PlanningInputs(table, () if calibration is None else calibration.temperatures, hashes)


def _table(spec: RunSpec, place: Origin) -> CostTable | None:
    path = spec.cost_table or table_path(place)
    if spec.cost_table is None and not path.is_file():
        return None
    found = cost_table.read(path)
    found.check_origin(place, force=spec.force_cost_table)
    return found


def calibration_places(checkpoint: ResolvedDrafter) -> list[Path]:
    """Where a drafter's calibration may lie, its own folder first."""
    return [
        calibration_file.default_path(checkpoint.path, checkpoint.sha256, home=home()),
        calibration_file.default_path(None, checkpoint.sha256, home=home()),
    ]


def _calibration(spec: RunSpec, checkpoint: ResolvedDrafter | None) -> calibration_file.Calibration | None:
    if spec.calibration == OFF or (spec.calibration == AUTO and checkpoint is None):
        return None
    if spec.calibration == AUTO:
        assert checkpoint is not None
        path = calibration_file.find(calibration_places(checkpoint))
        if path is None:
            return None
    else:
        path = Path(spec.calibration)
    found = calibration_file.read(path)
    if checkpoint is not None and found.drafter_sha256 not in (None, checkpoint.sha256):
        raise ConfigError(
            f"the calibration {path} is for the drafter {str(found.drafter_sha256)[:12]}, this one is "
            f"{checkpoint.sha256[:12]}; fit it with 'specbench calibrate', or leave it out with --set calibration=off"
        )
    if found.sampling_temperature not in (None, spec.temperature):
        warnings.warn(
            f"the calibration was fitted at temperature {found.sampling_temperature:g}, the run samples at "
            f"{spec.temperature:g}: its errors do not hold here",
            UserWarning,
            stacklevel=2,
        )
    return found
