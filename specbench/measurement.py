"""A contestant as it is planned, and what its measurement leaves: what engine and servers have in common."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from specbench.backends.engine import Contestant
from specbench.config import BASELINE, CellSpec, MethodSpec
from specbench.records.schema import DraftVocabulary, Telemetry
from specbench.resolve import ResolvedDrafter
from specbench.types import RunTrace
from specbench.workloads.driver import Skipped


@dataclass(frozen=True, slots=True)
class PlannedServer:
    """The engine as far as it is known, and where it is: on this machine, or elsewhere."""

    engine: str
    version: str | None
    local: bool

    @property
    def label(self) -> str:
        """As rows are compared by it: ``vllm 0.32.0``."""
        return f"{self.engine} {self.version or 'of unknown version'}"


@dataclass(frozen=True, slots=True)
class PlannedCell:
    """A method of the run, its checkpoint on this disk, and the cell's resolved specification.

    ``contestant`` is kept where the cell is measured at once, so that its weights are loaded once; ``warned`` is what
    was said while they were. ``layers`` is the drafter's depth, None where it has none or does not say. ``served`` is
    what is known of the server before it is measured, None for the engine of this project.
    """

    method: MethodSpec
    checkpoint: ResolvedDrafter | None
    spec: CellSpec
    contestant: Contestant | None = None
    warned: tuple[str, ...] = ()
    layers: int | None = None
    served: PlannedServer | None = None

    @property
    def label(self) -> str:
        """``vanilla``, or ``ngram:5``."""
        return self.spec.method if self.spec.method == BASELINE else f"{self.spec.method}:{self.spec.draft_length}"


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one cell left behind. ``prompt_ids`` are the prompts that were sent, by request id.

    ``server`` is what a record says of the server that answered.
    """

    trace: RunTrace
    skipped: tuple[Skipped, ...]
    prompt_ids: dict[str, tuple[int, ...]]
    memory: dict[str, Any]
    notes: tuple[str, ...]
    telemetry: Telemetry | None = None
    vocabulary: DraftVocabulary | None = None
    server: dict[str, Any] = field(default_factory=dict)
    loop: dict[str, Any] = field(default_factory=dict)  # how many steps ran padded, and why the others did not
