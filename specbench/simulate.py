"""What recorded rounds would give elsewhere: other costs, loads, policies and fleets, in virtual time.

The engine's scheduler and policies are the real ones; acceptance comes from recorded rounds (`specbench.simulation`),
seconds from a cost table. Memory is taken to suffice. What comes out is a prediction: its records are marked and never
rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import torch

from specbench import calibration_file, registry
from specbench.api import VerifyPolicy
from specbench.config import BASELINE
from specbench.engine.clock import VirtualClock
from specbench.engine.cost_table import CostTable
from specbench.engine.policy import PolicyContext
from specbench.errors import ConfigError, RecordError
from specbench.records.schema import Record
from specbench.report.tables import method_label
from specbench.simulation import costs as step_costs
from specbench.simulation.costs import Overhead, StepCosts
from specbench.simulation.engine import ReplayEngine
from specbench.simulation.fleet import Fleet, as_recorded
from specbench.simulation.record import BACKEND, Setting, Source, record_of
from specbench.simulation.replay import Replay, Script, plain, replay_of
from specbench.types import RunTrace
from specbench.workloads.driver import drive
from specbench.workloads.patterns import load_options, open_load

ROUNDS_OF_ROWS = 4  # requests a row where the user asks for no number


@dataclass(frozen=True, slots=True)
class SimulationSpec:
    """What is asked. Every combination of ``concurrency`` (rows a replica), ``replicas`` and policy is simulated.

    In a closed loop there are concurrency * replicas users; a rate is that of the whole fleet. ``requests`` at least
    are sent (None: four for each row and every recorded one), the recorded ones over and over. ``overhead``: seconds of
    a step beside forward and drafting; "recorded" takes the run's own where the table is of the same device.
    ``prefill_chunk`` None is the recorded run's.
    """

    table: CostTable
    concurrency: tuple[int, ...] = (1,)
    replicas: tuple[int, ...] = (1,)
    policies: tuple[str, ...] = ("fixed",)
    draft_length: int | None = None
    workload: str = "closed"
    load: dict[str, Any] = field(default_factory=dict)
    requests: int | None = None
    seed: int = 0
    overhead: float | Literal["recorded"] = "recorded"
    calibration: Path | None = None
    prefill_chunk: int | None = None

    def __post_init__(self) -> None:
        for name in ("concurrency", "replicas"):
            values = getattr(self, name)
            if not values or min(values) < 1 or len(set(values)) < len(values):
                seen = ", ".join(map(str, values)) or "nothing"
                raise ConfigError(f"{name} is a list of different whole numbers from 1 on, not {seen}; correct it")
        if len(set(self.policies)) < len(self.policies):
            raise ConfigError("a policy is listed twice; list it once")
        if self.requests is not None and self.requests < 1:
            raise ConfigError(f"at least one request is simulated, not {self.requests}; raise --requests")
        if self.overhead != "recorded" and not 0 <= self.overhead < float("inf"):
            raise ConfigError(f"the overhead is a time from 0 s on, not {self.overhead}; correct --overhead")


@dataclass(frozen=True, slots=True)
class Simulated:
    """One prediction; ``rounds`` are the bytes of its file, and ``trace`` is as a run's would be."""

    record: Record
    trace: RunTrace
    setting: Setting
    rounds: bytes


# ----------------------------------------------------------------------------------------------------- sources


def choose(records: Sequence[Record]) -> tuple[list[Record], list[str]]:
    """One usable run for each contestant, the one with the fewest rows, and a remark on each that is left out.

    Errors: RecordError when none is usable.
    """
    chosen: dict[tuple[str, int, str | None], Record] = {}
    notes: list[str] = []
    for record in sorted(records, key=lambda r: (int(r.spec.get("concurrency", 1)), r.created, r.run_id)):
        why = _unusable(record)
        key = (record.method, record.draft_length, record.drafter.sha256 if record.drafter else None)
        name = f"run {record.run_id} ({method_label(record)}, {record.comparability.get('load')})"
        if why is None and key in chosen:
            why = f"is not needed, as {chosen[key].run_id} is replayed"
        if why is None:
            chosen[key] = record
        else:
            notes.append(f"left out: {name} {why}")
    if not chosen:
        raise RecordError(f"none of {len(records)} records can be replayed: {notes[0]}; record a run with policy fixed")
    return list(chosen.values()), notes


def _unusable(record: Record) -> str | None:
    if record.status != "ok":
        return f"is {record.status}"
    if record.rounds is None:
        return "left no rounds"
    if record.spec.get("backend", "engine") == BACKEND:
        return "is simulated itself"
    if record.spec.get("backend", "engine") != "engine":
        return f"was served by {record.spec['backend']}, which tells no rounds"
    if str(record.spec.get("policy", "fixed")).partition(":")[0] != "fixed":
        return f"was verified by '{record.spec['policy']}', which shows only a part of what was drafted"
    return None


def source_of(record: Record, trace: RunTrace, spec: SimulationSpec) -> Source:
    """A run made ready. Errors: ConfigError when the table lacks the drafter's price; RecordError for the trace."""
    replay, table = replay_of(trace), spec.table
    costs = StepCosts(table, step_costs.draft_price(table, record.method))
    place, said = table.origin, record.comparability.get("timing", {})
    same_device = place.device in (None, said.get("hardware"))
    notes = step_costs.table_remarks(
        [
            ("device", said.get("hardware"), place.device),
            ("target", record.target.sha256, place.weights_sha256),
            ("dtype", record.comparability.get("dtype"), place.dtype),
            ("thread count", said.get("threads"), place.threads),
        ]
    )
    differs = bool(notes)  # another target's or setting's table is a question of its own: it is not drawn to this run
    length = step_costs.fit_draft_price(trace, costs, drawn=same_device and not differs)
    notes += [length] if length is not None else []
    if spec.overhead != "recorded":
        costs.overhead = Overhead(float(spec.overhead))
    elif same_device:
        costs.overhead = step_costs.recorded_overhead(trace, costs)
    else:
        notes.append("a step costs forward and drafting only, as the recorded overhead is another device's; --overhead")
    shares = [step_costs.forward_check(trace, costs, mixed=mixed) if same_device else None for mixed in (False, True)]
    drawn = place.device is not None and not differs
    for kind, share in zip(("steps", "steps with prompts"), shares):
        if share is not None:
            text = f"the table's forward takes {share:.2f} times what the recorded {kind} took, all together"
            notes.append(f"{text}; it is scaled to them" if drawn else text)
    if drawn:
        pure, mixed = shares
        costs.scale = 1.0 if pure is None else 1.0 / pure
        costs.mixed_scale = costs.scale if mixed is None else 1.0 / mixed
    if replay.left_out:
        notes.append(f"{replay.left_out} recorded requests failed or gave no token and are not replayed")
    return Source(record, replay, costs, tuple(notes))


# -------------------------------------------------------------------------------------------------- simulation


def simulate(sources: Sequence[Source], spec: SimulationSpec, *, command: Sequence[str] = ()) -> Iterator[Simulated]:
    """Every prediction, plain decoding of the same requests first at each load.

    Where no run of plain decoding is among the sources, it is replayed from the first one: it needs no acceptance.
    Errors: ConfigError for a policy or draft length that does not fit, before anything is simulated.
    """
    load = load_options(spec.workload, spec.load).described()
    base = next((source for source in sources if source.record.method == BASELINE), None) or _plain(sources[0])
    temperatures: tuple[float, ...] = ()
    if spec.calibration is not None:
        temperatures = calibration_file.read(spec.calibration).temperatures
    arms = [(base, "fixed"), *product([s for s in sources if s is not base], spec.policies)]
    for source, policy in arms:
        _policy(source, spec, policy, temperatures, rows=1)
    for rows, replicas in product(spec.concurrency, spec.replicas):
        control: tuple[Record, RunTrace] | None = None
        for source, policy in arms:
            made = [_policy(source, spec, policy, temperatures, rows=rows) for _ in range(replicas)]
            trace, skipped = _run(source, spec, made, rows=rows)
            setting = Setting(
                rows, replicas, spec.workload, load, made[0].name, made[0].draft_length, source.replay.seed
            )
            record, data = record_of(source, setting, trace, control=control, skipped=skipped, command=command)
            control = control or (record, trace)
            yield Simulated(record, trace, setting, data)


def _plain(source: Source) -> Source:
    costs = replace(source.costs, draft=step_costs.NO_PRICE)
    note = f"plain decoding of the requests of run {source.record.run_id}, as no run of it was given"
    return Source(source.record, plain(source.replay), costs, (*source.notes, note))


def _policy(
    source: Source, spec: SimulationSpec, text: str, temperatures: tuple[float, ...], *, rows: int
) -> VerifyPolicy:
    """A fresh policy. Errors: ConfigError, UnknownNameError."""
    replay = source.replay
    name, colon, argument = text.partition(":")
    length = replay.draft_length if spec.draft_length is None else min(spec.draft_length, replay.draft_length)
    context = PolicyContext(
        max_rows=rows,
        device=torch.device("cpu"),
        method=replay.method,
        cost=source.costs.table,
        temperatures=temperatures,
    )
    found: VerifyPolicy = registry.load("policies", name)(length, argument if colon else None, context=context)
    most = max(found.draft_length, spec.draft_length or 0)
    if replay.draft_length and most > replay.draft_length:
        raise ConfigError(
            f"the run of '{replay.method}' recorded {replay.draft_length} drafts a round, {most} cannot be replayed "
            "from it; record a run with more, or simulate fewer"
        )
    return found


def _run(source: Source, spec: SimulationSpec, policies: Sequence[VerifyPolicy], *, rows: int) -> tuple[RunTrace, int]:
    """The trace, and how many turns the load pattern had no arrival for."""
    replay: Replay = source.replay
    total = rows * len(policies)
    script = Script.of(replay, requests=spec.requests or max(replay.requests, ROUNDS_OF_ROWS * total))
    by_number, clock = script.by_number(), VirtualClock()
    chunk = spec.prefill_chunk or int(source.record.spec.get("prefill_chunk", 512))
    engines = [
        ReplayEngine(
            by_number,
            source.costs,
            policy,
            max_rows=rows,
            max_context=replay.longest,
            prefill_budget=chunk,
            draft_length=replay.draft_length,
            method=replay.method,
        )
        for policy in policies
    ]
    outcome = drive(
        Fleet(engines, clock),
        conversations=script.prompts(),
        build=script.request,
        arrivals=open_load(spec.workload, concurrency=total, options=spec.load, seed=spec.seed),
        clock=clock,
    )
    return as_recorded(outcome.trace, by_number, sampling=replay.sampling), len(outcome.skipped)
