"""From a measured cell to its record: identities, comparability key, counts, sample texts, failure."""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench import provenance
from specbench.cell import Measurement, PlannedCell
from specbench.config import BASELINE, CellSpec
from specbench.errors import RecordError, SpecbenchError
from specbench.judging import Judgement
from specbench.metrics import METRICS_VERSION
from specbench.metrics._identities import check_identities
from specbench.records import keys, schema, store
from specbench.records.schema import AlarmRow, EstimateRow, Failure, GradedRow, Identity, Record, SampleText
from specbench.report.recompute import verdict_row
from specbench.secrets_in_text import masked
from specbench.served_record import served_facts, served_key
from specbench.session import Session
from specbench.types import Status
from specbench.workloads.patterns import load_label

SAMPLES = 3
ACCEPTANCE_RULE = "exact rejection sampling; the target's argmax at temperature 0"


@dataclass(frozen=True, slots=True)
class Recorder:
    """Builds and writes the records of one run. ``command`` is what the user typed."""

    session: Session
    command: Sequence[str]
    machine: dict[str, Any]  # provenance, the same for all cells of a run

    @classmethod
    def of(cls, session: Session, *, command: Sequence[str]) -> Recorder:
        """Looks at code and machine once."""
        machine = provenance.collect(device=session.device, threads=session.threads)
        return cls(session, command, {**machine, **_kernels(session.device)})

    @property
    def warnings(self) -> list[str]:
        """What a user should hear before the numbers: that others take the machine's cores."""
        busy = self.machine["load"].get("busy")
        return [str(busy)] if busy is not None else []

    def finished(
        self,
        cell: PlannedCell,
        measured: Measurement,
        judged: Judgement,
        *,
        started_s: float,
        baseline: str | None,
        control: str | None = None,
        graded: list[GradedRow] | None = None,
    ) -> tuple[Record, bytes]:
        """The record of a measured cell and its rounds' file. Errors: RecordError when an identity is broken.

        ``control`` is the run that the verdict is from, where it is not the baseline of the speed-ups.
        """
        control = control or baseline
        data, described = store.encode_rounds(measured.trace, check=check_identities)
        found = judged.losslessness
        notes = [*measured.notes, *judged.notes, *self.warnings]
        if control is None and self.session.spec.baseline and cell.spec.method != BASELINE:
            notes.append(f"{BASELINE} gave no result on these prompts: there is neither a speed-up nor a verdict")
        record = schema.build(
            **self._common(cell, started_s=started_s, measured=measured),
            status=str(measured.trace.status),
            estimates=[EstimateRow.of(estimate) for estimate in judged.estimates],
            verdict=None if found is None else verdict_row(found, control=control),
            alarms=[AlarmRow(name=alarm.name, message=alarm.message) for alarm in judged.alarms],
            samples=self._samples(measured),
            counts=_counts(measured),
            notes=notes,
            rounds=described,
            baseline=baseline,
            telemetry=measured.telemetry,
            draft_vocabulary=measured.vocabulary,
            graded=graded,
        )
        return record, data

    def failed(
        self, cell: PlannedCell, error: Exception, *, started_s: float, measured: Measurement | None = None
    ) -> tuple[Record, bytes | None]:
        """The record of a cell that has no result; its rounds where it was measured before it failed."""
        data, described = None, None
        if measured is not None:
            with suppress(RecordError):  # an inconsistent trace is not written
                data, described = store.encode_rounds(measured.trace, check=check_identities)
        record = schema.build(
            **self._common(cell, started_s=started_s, measured=measured),
            status=str(Status.FAILED),
            notes=[*self.session.notes, *self.warnings],
            rounds=described,
            telemetry=measured.telemetry if measured is not None else None,
            error=Failure(kind=type(error).__name__, message=one_line(error), where=_where(error)),
        )
        return record, data

    def write(self, record: Record, data: bytes | None = None) -> Path:
        """Write the record, and its rounds beside it. Errors: RecordError."""
        return store.write(self.session.spec.out, record, rounds_data=data)

    def _common(self, cell: PlannedCell, *, started_s: float, measured: Measurement | None) -> dict[str, Any]:
        session, spec = self.session, cell.spec
        key = keys.build_key(_comparability(session, cell, self.machine))
        checkpoint = cell.checkpoint
        return {
            "cell_key": spec.key(),
            "metrics_version": METRICS_VERSION,
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started_s)),
            "command": list(self.command),
            "method": spec.method,
            "draft_length": spec.draft_length,
            "spec": spec.document(),
            "provenance": {**self.machine, **_causality(spec, self.machine), **_how(cell, measured)},
            "target": Identity(
                name=session.name,
                sha256=session.resolved.weights_sha256,
                source=session.resolved.source,
                details=_details(session),
            ),
            "drafter": None
            if checkpoint is None
            else Identity(
                name=spec.drafter or checkpoint.name,
                sha256=checkpoint.sha256,
                source=checkpoint.source,
                details={} if cell.layers is None else {"layers": cell.layers},
            ),
            "comparability": key.as_dict(),
            "comparability_sha256": key.sha256(),
        }

    def _samples(self, measured: Measurement) -> list[SampleText]:
        """The first answer of each task, a few in all."""
        decode = self.session.prompts.renderer.tokenizer.decode
        firsts = {r.task: r for r in reversed(measured.trace.requests) if not r.warmup and r.status == Status.OK}
        return [
            SampleText(
                request=request.id,
                task=request.task,
                prompt=decode(list(measured.prompt_ids[request.id])),
                text=decode(list(request.output_ids)),
            )
            for request in sorted(firsts.values(), key=lambda request: request.task)[:SAMPLES]
        ]


def one_line(error: BaseException) -> str:
    """An error's text as one line, its class where it has none; passwords in addresses are masked."""
    return masked(" ".join(str(error).split())) or type(error).__name__


def _where(error: Exception) -> str | None:
    """File, line and function that raised; for an error of the user's that is of no interest."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SpecbenchError) or not frames:
        return None
    last = frames[-1]
    return f"{Path(last.filename).name}:{last.lineno} in {last.name}"


def _kernels(device: str) -> dict[str, str]:
    """What a CUDA device's operations run as; times with other kernels are not comparable."""
    if not device.startswith("cuda"):
        return {}
    import torch

    from specbench.kernels.dispatch import kernels_on

    return {"kernels": str(kernels_on(torch.device(device)))}


def _how(cell: PlannedCell, measured: Measurement | None) -> dict[str, Any]:
    """What the measurement adds to the provenance: memory, padded steps, the server."""
    found: dict[str, Any] = {"memory": measured.memory if measured is not None else {}}
    if measured is not None and measured.loop:
        found["graphs"] = measured.loop
    if cell.served is not None:
        found["server"] = served_facts(cell, measured)
    return found


def _details(session: Session) -> dict[str, Any]:
    """What is known of the target beside its hash: the hub's revision, or that its weights were never seen."""
    if session.resolved.source == "server":
        return {"sha256 is of": "the server's name for it, not of weights"}
    return {"revision": session.resolved.revision} if session.resolved.revision else {}


def _causality(spec: CellSpec, machine: dict[str, Any]) -> dict[str, Any]:
    """What a policy that decides on drafts by looking at them adds to the provenance: such a row never ranks."""
    if spec.causal:
        return {}
    reason = f"the policy '{spec.policy}' is not causal: at temperature its text is biased"
    return {"rankable": False, "not_rankable_because": [*machine.get("not_rankable_because", []), reason]}


def _counts(measured: Measurement) -> dict[str, int]:
    requests = [request for request in measured.trace.requests if not request.warmup]
    counts = {str(status): sum(request.status == status for request in requests) for status in Status}
    counts["skipped"] = len(measured.skipped)
    counts["warmup"] = len(measured.trace.requests) - len(requests)
    return {name: count for name, count in counts.items() if count or name == Status.OK}


def _comparability(session: Session, cell: PlannedCell, machine: dict[str, Any]) -> dict[str, Any]:
    spec, prompts = cell.spec, session.prompts.prompts
    gpu = machine.get("gpu", {})
    key: dict[str, Any] = {
        "target_weights": session.resolved.weights_sha256,
        "rendering": {
            "dataset": keys.dataset_sha256([(f"{p.task}/{p.id}", [p.system, *p.turns]) for p in prompts]),
            "template": session.resolved.template_sha256 or "none",
            "thinking": spec.thinking,
            "turns": sum(len(p.turns) for p in prompts),
        },
        "sampling": {"temperature": spec.temperature, "top_p": spec.top_p, "top_k": spec.top_k},
        "acceptance_rule": ACCEPTANCE_RULE,
        "synthetic_acceptance": spec.synthetic is not None,
        "draft_sampling": str(spec.options.get("draft_sampling", "probabilistic")),
        "prompt_set": keys.prompt_set_key([f"{p.task}/{p.id}" for p in prompts]),
        "max_new_tokens": spec.max_new_tokens,
        "stop_ids": spec.stop_ids,
        "ignore_eos": spec.ignore_eos,
        "dtype": spec.dtype,
        "engine": "specbench",
        "load": load_label(spec.workload, concurrency=spec.concurrency, load=spec.load),
        "metrics_version": METRICS_VERSION,
        "timing": {
            "hardware": str(machine.get("device_name", provenance.UNKNOWN)),
            "kv_budget_bytes": spec.kv_memory,
            "row_limit": spec.concurrency,
            "threads": spec.threads,
            "torch": str(machine.get("packages", {}).get("torch", provenance.UNKNOWN)),
            "driver": gpu.get("driver"),
            "graphs": spec.graphs,
            "kernels": machine.get("kernels"),
        },
    }
    return key if cell.served is None else {**key, **served_key(cell, key)}
