"""One cell: a contestant planned against a session, and its measurement under the run's load."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch

from specbench import registry
from specbench.backends.engine import Contestant, build_contestant, build_engine
from specbench.checkpoints import packaged_for
from specbench.config import BASELINE, CellSpec, MethodSpec
from specbench.coverage import draft_vocabulary
from specbench.engine.clock import WallClock
from specbench.engine.engine import Engine
from specbench.engine.sizing import out_of_memory
from specbench.measurement import Measurement, PlannedCell
from specbench.memory import PeakMemory
from specbench.planning import PlanningInputs, gather, origin
from specbench.resolve import ResolvedDrafter, find_target, resolve_drafter
from specbench.served_cell import measure_served, plan_served
from specbench.session import Session, Step
from specbench.telemetry import open_sampler
from specbench.types import Prompt, Request, Status
from specbench.workloads.driver import DriveProgress, Outcome, driving, finished
from specbench.workloads.patterns import load_options, open_load

__all__ = ["Measurement", "PlannedCell", "describe_cell", "measure_cell", "plan_cell"]


def plan_cell(session: Session, method: MethodSpec, *, step: Step, keep: bool = False) -> PlannedCell:
    """Find the checkpoint and try to load it, so that a bad one is reported before anything is measured.

    ``keep`` hands what was loaded on to `measure_cell`; else it is loaded again there, and many cells can be planned.

    Errors: DrafterError, CheckpointError, UnknownNameError, ConfigError.
    """
    if session.spec.backend != "engine":
        return plan_served(session, method, step=step)
    found = _find_checkpoint(session, method.name, step=step)
    with step(f"checking {method.label}"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        contestant, planning = _contestant(session, method, found)
    cell = describe_cell(session, contestant, checkpoint=found, hashes=planning.hashes)
    layers: int | None = getattr(contestant.drafter, "num_layers", None)
    if not keep:  # what was warned of is noted when the drafter is loaded again
        return PlannedCell(method, found, cell, layers=layers)
    return PlannedCell(method, found, cell, contestant, _texts(caught), layers)


def describe_cell(
    session: Session, contestant: Contestant, *, checkpoint: ResolvedDrafter | None, hashes: Mapping[str, str]
) -> CellSpec:
    """The resolved specification of a contestant in a session; ``hashes`` name what its policy plans by."""
    spec = session.spec
    inputs = {
        "target_weights": session.resolved.weights_sha256,
        "tokenizer": session.resolved.tokenizer_sha256 or "none",
        "template": session.resolved.template_sha256 or "none",
        "rendering": session.prompts.rendering_hash(template_sha256=session.resolved.template_sha256 or "none"),
        "prompt_set": session.prompts.prompt_set_hash(),
        **{f"task {name}": version for name, version in session.prompts.tasks},
    }
    if checkpoint is not None:
        inputs["drafter"] = checkpoint.sha256
    named = None if checkpoint is None else checkpoint.path.name if checkpoint.source == "folder" else checkpoint.name
    return CellSpec(
        method=contestant.method,
        draft_length=contestant.draft_length,
        policy=contestant.policy.name,
        drafter=named,
        options=spec.options.get(contestant.method, {}),
        target=session.name,
        tasks=tuple(name for name, _ in session.prompts.tasks),
        stop_ids=tuple(sorted(session.limits.stop_ids)),
        device=session.device,
        dtype=session.dtype,
        threads=session.threads,
        max_context=session.limits.max_context,
        graphs=session.graphs,
        device_map="" if spec.device_map == "none" else spec.device_map,
        synthetic=spec.synthetic_for(contestant.draft_length),
        causal=contestant.policy.causal,
        load=load_options(spec.workload, spec.load).described(),
        mix={name: spec.mix[asked] for asked, (name, _) in zip(spec.tasks, session.prompts.tasks) if spec.mix},
        backend="engine",
        inputs=inputs | dict(hashes),
        **{name: getattr(spec, name) for name in _COPIED},
    )


_COPIED = (
    "num_prompts", "max_new_tokens", "ignore_eos", "thinking", "temperature", "top_p", "top_k", "seed", "workload",
    "concurrency", "warmup", "kv_memory", "prefill_chunk",
)  # fmt: skip


def measure_cell(
    session: Session,
    cell: PlannedCell,
    *,
    stop: Callable[[], bool],
    on_progress: Callable[[DriveProgress], None] | None = None,
) -> Measurement:
    """Warm up and run all conversations of the session.

    Errors: CapacityError when the device's memory does not do; whatever the drafter or the engine raises.
    """
    if session.spec.backend != "engine":
        return measure_served(session, cell, stop=stop, on_progress=on_progress)
    try:
        return _measure_engine(session, cell, stop=stop, on_progress=on_progress)
    except torch.OutOfMemoryError as error:
        failure = no_memory(session, error)
    gc.collect()  # only now is nothing of the cell left to hold memory that the next one needs
    if session.device.startswith("cuda"):
        torch.cuda.empty_cache()
    raise failure


def no_memory(session: Session, error: torch.OutOfMemoryError) -> Exception:
    """What is said where a cell of the session did not fit the device."""
    spec, context = session.spec, session.limits.max_context
    return out_of_memory(error, rows=spec.concurrency, context=context, kv_memory=spec.kv_memory)


def _measure_engine(
    session: Session,
    cell: PlannedCell,
    *,
    stop: Callable[[], bool],
    on_progress: Callable[[DriveProgress], None] | None,
) -> Measurement:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        measured = finished(measuring(session, cell, clock=WallClock(), stop=stop, on_progress=on_progress))
    return warned(measured, caught)


def measuring(
    session: Session,
    cell: PlannedCell,
    *,
    clock: WallClock,
    stop: Callable[[], bool],
    on_progress: Callable[[DriveProgress], None] | None,
    alone: bool = True,
) -> Generator[int, None, Measurement]:
    """A measurement, a step of the engine at a time: yields the output tokens so far.

    Whoever goes through it catches the warnings, for `warned`. Without ``alone`` other engines run between the steps:
    peaks of memory and what the device's driver tells would be theirs too, and are not taken.
    """
    memory = PeakMemory(session.device)
    if alone:
        memory.start()
    sent: dict[str, tuple[int, ...]] = {}

    def build(prompt: Prompt, answers: Sequence[tuple[int, ...]]) -> Request:
        request = session.prompts.request(prompt, answers, limits=session.limits)
        sent[request.id] = request.prompt_ids
        return request

    spec = session.spec
    session.prompts.shortened.clear()
    contestant = cell.contestant or _contestant(session, cell.method, cell.checkpoint)[0]
    engine = build_engine(
        session.target,
        contestant,
        max_rows=spec.concurrency,
        max_context=session.limits.max_context,
        kv_memory_bytes=spec.kv_memory,
        prefill_budget=spec.prefill_chunk,
        clock=clock,
        synthetic=cell.spec.synthetic,
        graphs=session.graphs,
    )
    arrivals = open_load(
        spec.workload, concurrency=spec.concurrency, options=spec.load, seed=spec.seed, planned=cell.spec.load
    )
    with (open_sampler(session.device, clock=clock) if alone else None) or nullcontext() as sampler:
        outcome = yield from driving(
            engine,
            conversations=session.prompts.prompts,
            build=build,
            arrivals=arrivals,
            clock=clock,
            warmups=session.prompts.warmups(spec.warmup * spec.concurrency, limits=session.limits),
            on_progress=on_progress,
            stop=stop,
        )
    status = Status.INTERRUPTED if outcome.interrupted else outcome.trace.status
    trace = replace(outcome.trace, status=status)
    return Measurement(
        trace=trace,
        skipped=outcome.skipped,
        prompt_ids=sent,
        memory={**(memory.facts() if alone else {}), **_planned_bytes(session, contestant, engine)},
        notes=_notes(session, outcome, cell.warned),
        telemetry=sampler.summary(trace) if sampler is not None else None,
        vocabulary=draft_vocabulary(contestant.drafter, trace, vocab_size=session.target.vocab_size),
        loop={} if engine.padded is None else engine.padded.facts(),
    )


def warned(measured: Measurement, caught: Sequence[warnings.WarningMessage]) -> Measurement:
    """A measurement with a note of each warning that came while it was made."""
    return replace(measured, notes=tuple(dict.fromkeys([*measured.notes, *_texts(caught)])))


def _texts(caught: Sequence[warnings.WarningMessage]) -> tuple[str, ...]:
    return tuple(str(w.message) for w in caught if w.category is UserWarning)


def _contestant(
    session: Session, method: MethodSpec, checkpoint: ResolvedDrafter | None
) -> tuple[Contestant, PlanningInputs]:
    spec = session.spec
    planning = PlanningInputs()
    if method.name != BASELINE:
        place = origin(
            device=session.device,
            weights_sha256=session.resolved.weights_sha256,
            dtype=session.dtype,
            threads=session.threads,
        )
        planning = gather(spec, place=place, checkpoint=checkpoint)
    contestant = build_contestant(
        method.name,
        target=session.view,
        checkpoint=checkpoint.path if checkpoint else None,
        options=spec.options.get(method.name, {}),
        policy=spec.policy_parts,
        draft_length=spec.length_of(method),
        cost=planning.cost,
        temperatures=planning.temperatures,
    )
    return contestant, planning


def _find_checkpoint(session: Session, method: str, *, step: Step) -> ResolvedDrafter | None:
    """The checkpoint that the user names, else the packaged one for this target, else a published one, else None.

    None is right for methods without weights, and for MTP layers inside the target's own.
    """
    trusted = session.spec.trust_remote_code
    named = session.spec.drafters.get(method)
    if named is not None:
        return resolve_drafter(named, progress=step, trust_remote_code=trusted)
    packaged = packaged_for(target=session.spec.target, method=method)
    if packaged is None:
        return _published(session, method, step=step)
    found = resolve_drafter(str(packaged.path), progress=step)
    return ResolvedDrafter(f"packaged:{packaged.target}/{method}", found.path, "package", found.sha256)


def _published(session: Session, method: str, *, step: Step) -> ResolvedDrafter | None:
    """The public repository known for this target and method, said aloud; None where there is none."""
    known = find_target(session.spec.target)
    entry = registry.load("formats", "published").pick(known.hub if known else session.spec.target, method)
    if entry is None or entry.repository == entry.target:
        return None
    with step(f"no drafter named for {method}: taking the published {entry.repository}"):
        return resolve_drafter(entry.repository, progress=step, trust_remote_code=session.spec.trust_remote_code)


def _planned_bytes(session: Session, contestant: Contestant, engine: Engine) -> dict[str, int]:
    return {
        "weights_bytes": session.target.weight_bytes,
        "weights_packed_bytes": session.target.packed_bytes,
        "kv_bytes": engine.pool.bytes(),
        "drafter_bytes": contestant.drafter.state_bytes(),
        "rss_before_target_bytes": session.rss_before_bytes,
    }


def _notes(session: Session, outcome: Outcome, warned: Sequence[str]) -> tuple[str, ...]:
    """What a reader of the record must know beside its numbers."""
    notes = [*session.notes, *session.prompts.renderer.notes, *warned]
    if session.prompts.shortened:
        notes.append(f"{len(session.prompts.shortened)} requests were given only the room left in the context")
    notes += [f"turn {s.turn + 1} of {s.task}/{s.prompt} was not run: {s.reason}" for s in outcome.skipped]
    return tuple(dict.fromkeys(notes))
