"""One cell on a server: which server and method, started where that is asked for, and its measurement."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specbench import registry
from specbench.backends.openai import OpenAIBackend, ServedRun
from specbench.config import BASELINE, CellSpec, MethodSpec
from specbench.engine.clock import WallClock
from specbench.errors import ConfigError, TargetError
from specbench.measurement import Measurement, PlannedCell, PlannedServer
from specbench.resolve import ResolvedDrafter, hash_weights, resolve_drafter
from specbench.served_probe import check_speculation
from specbench.server_trace import ServerTrace
from specbench.serving.body import BodyMaker, Message
from specbench.serving.endpoint import Endpoint, answers, connect
from specbench.serving.launching import HOST, LaunchAsk, ServerEngine, engine_version
from specbench.serving.process import free_port, scratch_folder, started
from specbench.session import Session, Step
from specbench.telemetry import open_sampler
from specbench.types import Prompt, Request, RunTrace, Status
from specbench.workloads.driver import DriveProgress, Outcome, drive
from specbench.workloads.patterns import load_options, open_load

_USUAL_LENGTHS = {"ngram": 4, "draft-model": 4, "eagle3": 3, "mtp": 1}
"""Drafts a step where nobody says; engines have no default of their own, and blocks have their checkpoint's length."""

_LEAST_CONTEXT = 128  # tokens: what the warm-up that looks for drafts needs

_COPIED = (
    "num_prompts", "max_new_tokens", "ignore_eos", "thinking", "temperature", "top_p", "top_k", "seed", "workload",
    "concurrency", "warmup", "kv_memory", "prefill_chunk",
)  # fmt: skip


# ---------------------------------------------------------------------------------------------------------- plan


def plan_served(session: Session, method: MethodSpec, *, step: Step) -> PlannedCell:
    """Look at the server, or at the engine that it will be started from, before anything is measured.

    Errors: TargetError where there is none; DrafterError, ConfigError for what the engine lacks.
    """
    spec = session.spec
    length = _length(session, method)
    checkpoint = None
    if spec.server.launch is not None:
        checkpoint = _checkpoint(session, method.name, step=step)
        with step(f"checking {spec.server.launch} for {method.label}"):
            engine, python = _engine(session), _python(session)
            engine.check(_ask(session, method.name, length, checkpoint, port=0, scratch=Path()))
            server = PlannedServer(engine.name, engine_version(engine, python), local=True)
    else:
        with step(f"connecting to the server of {method.label}"):
            endpoint = _connect(session, method.name)
        server = PlannedServer(endpoint.engine, endpoint.version, endpoint.local)
    cell = _describe(session, method.name, length, checkpoint, server)
    return PlannedCell(method, checkpoint, cell, served=server)


def _length(session: Session, method: MethodSpec) -> int:
    asked = session.spec.length_of(method)
    usual = _USUAL_LENGTHS.get(method.name) if session.spec.server.launch is not None else None
    length = asked if asked is not None else usual
    if length is None:
        raise ConfigError(
            f"how many drafts a step {method.name} makes on the server is not known here; write {method.name}:K"
        )
    if length == 0 and method.name != BASELINE:
        raise ConfigError(f"{method.name}:0 drafts nothing, which a server calls {BASELINE}; give it a draft length")
    return length


def _describe(
    session: Session, method: str, length: int, checkpoint: ResolvedDrafter | None, server: PlannedServer
) -> CellSpec:
    spec = session.spec
    template = "the server's" if spec.server.endpoint == "chat" else session.resolved.template_sha256 or "none"
    inputs = {
        "target_weights": session.resolved.weights_sha256,
        "tokenizer": session.resolved.tokenizer_sha256 or "none",
        "template": template,
        "rendering": session.prompts.rendering_hash(template_sha256=template),
        "prompt_set": session.prompts.prompt_set_hash(),
        **{f"task {name}": version for name, version in session.prompts.tasks},
    }
    weights, named = _weights(session), None
    if weights is not None:
        inputs["served_weights"] = hash_weights(weights)
    if checkpoint is not None:
        inputs["drafter"] = checkpoint.sha256
        named = checkpoint.path.name if checkpoint.source == "folder" else checkpoint.name
    return CellSpec(
        method=method,
        draft_length=length,
        policy=f"fixed:{length}",
        drafter=named,
        options=spec.options.get(method, {}),
        target=session.name,
        tasks=tuple(name for name, _ in session.prompts.tasks),
        stop_ids=tuple(sorted(session.limits.stop_ids)),
        device=session.device,
        dtype=session.dtype,
        threads=session.threads,
        max_context=session.limits.max_context,
        load=load_options(spec.workload, spec.load).described(),
        mix={name: spec.mix[asked] for asked, (name, _) in zip(spec.tasks, session.prompts.tasks) if spec.mix},
        backend=spec.backend,
        server={**spec.server.content(), "engine": server.engine, "version": server.version},
        inputs=inputs,
        **{name: getattr(spec, name) for name in _COPIED},
    )


def _checkpoint(session: Session, method: str, *, step: Step) -> ResolvedDrafter | None:
    """What the user names; the packaged checkpoints are in this project's own layout, which no engine reads."""
    named = session.spec.drafters.get(method)
    if named is None:
        return None
    if Path(named).expanduser().is_file():  # a GGUF
        path = Path(named).expanduser().absolute()
        return ResolvedDrafter(path.name, path, "folder", hash_weights(path))
    return resolve_drafter(named, progress=step, trust_remote_code=session.spec.trust_remote_code)


def _weights(session: Session) -> Path | None:
    """The file that a launched server reads in place of the target's folder."""
    named = session.spec.server.weights
    return None if named is None else Path(named).expanduser().absolute()


# ------------------------------------------------------------------------------------------------------- servers


def _engine(session: Session) -> ServerEngine:
    name = session.spec.server.launch
    assert name is not None, "the caller asks for a launch"
    found: ServerEngine = registry.load("servers", name)
    return found


def _python(session: Session) -> str:
    return session.spec.server.python or sys.executable


def _ask(
    session: Session, method: str, length: int, checkpoint: ResolvedDrafter | None, *, port: int, scratch: Path
) -> LaunchAsk:
    spec = session.spec
    return LaunchAsk(
        method=method,
        draft_length=length,
        model=session.resolved.path,
        drafter=checkpoint.path if checkpoint is not None else None,
        options=spec.options.get(method, {}),
        port=port,
        device="cpu" if session.device == "cpu" else "cuda",
        dtype=session.dtype,
        threads=session.threads,
        rows=spec.concurrency,
        max_context=max(session.limits.max_context, _LEAST_CONTEXT),
        python=_python(session),
        scratch=scratch,
        weights=_weights(session),
        args=spec.server.args,
    )


def _connect(session: Session, method: str, base_url: str | None = None) -> Endpoint:
    server = session.spec.server
    url = base_url or server.url_for(method)
    if url is None:
        raise ConfigError(f"no server is named for {method}; give --base-url {method}=URL")
    return connect(url, model=server.model, key_variable=server.api_key_env, tries=server.tries)


@dataclass(frozen=True, slots=True)
class _Running:
    """A server that answers, and what a record says of how it was started."""

    endpoint: Endpoint
    facts: dict[str, Any]


@contextmanager
def _server(session: Session, cell: PlannedCell, *, stop: Callable[[], bool]) -> Iterator[_Running]:
    """The server of a cell: looked up, or started and ended."""
    spec, method = session.spec, cell.spec.method
    if spec.server.launch is None:
        yield _Running(_connect(session, method), {"launched": False})
        return
    engine, port = _engine(session), free_port()
    log = spec.out / "server-logs" / f"{spec.server.launch}-{cell.label.replace(':', '-')}-{port}.log"
    with scratch_folder() as scratch:
        ask = _ask(session, method, cell.spec.draft_length, cell.checkpoint, port=port, scratch=scratch)
        launch = engine.launch(ask)
        with started(launch, name=f"{engine.name} for {cell.label}", log=log) as process:
            url = f"http://{HOST}:{port}"
            process.wait_ready(lambda: answers(url), limit_s=spec.server.start_timeout, stop=stop)
            facts = {
                "launched": True,
                "flags": launch.shown(ask),
                "environment": {k: v for k, v in launch.environment.items() if v != str(scratch)},
                "log": f"server-logs/{log.name}",
            }
            try:
                yield _Running(_connect(session, method, url), facts)
            except TargetError as error:
                raise TargetError(f"{error}; the server's log {log} ends: {process.tail()}") from error
            if process.ended is not None and not stop():
                raise TargetError(f"{process.name} ended while it was measured; its log {log} ends: {process.tail()}")


# ------------------------------------------------------------------------------------------------------- measure


def measure_served(
    session: Session,
    cell: PlannedCell,
    *,
    stop: Callable[[], bool],
    on_progress: Callable[[DriveProgress], None] | None = None,
) -> Measurement:
    """Start or find the server, make sure that it drafts as it should, and run all conversations of the session.

    Where ``stop`` says so before anything was asked, an interrupted measurement of nothing. Errors: TargetError where
    the server does not start, ends, or does not do what its method says.
    """
    try:
        return _measure(session, cell, stop=stop, on_progress=on_progress)
    except TargetError:
        if not stop():
            raise
    return _nothing(session, cell)


def _nothing(session: Session, cell: PlannedCell) -> Measurement:
    """A cell that was stopped while its server started, or was looked at."""
    assert cell.served is not None, "the caller asks for a served cell"
    trace = RunTrace(
        requests=(),
        rounds=(),
        steps=(),
        method=cell.spec.method,
        draft_length=cell.spec.draft_length,
        sampling=session.spec.sampling,
        concurrency=session.spec.concurrency,
        wall_s=0.0,
        status=Status.INTERRUPTED,
        server=ServerTrace(cell.served.engine, cell.served.version, session.dtype),
    )
    note = "stopped before the server was asked anything"
    return Measurement(trace=trace, skipped=(), prompt_ids={}, memory={}, notes=(*session.notes, note))


def _measure(
    session: Session,
    cell: PlannedCell,
    *,
    stop: Callable[[], bool],
    on_progress: Callable[[DriveProgress], None] | None,
) -> Measurement:
    spec = session.spec
    sent: dict[str, tuple[int, ...]] = {}
    chats: dict[str, Sequence[Message]] = {}
    session.prompts.shortened.clear()
    warmups = session.prompts.warmups(spec.warmup * spec.concurrency, limits=session.limits)
    chats.update({request.id: session.prompts.renderer.warmup_chat(i) for i, request in enumerate(warmups)})

    def build(prompt: Prompt, answers: Sequence[tuple[int, ...]]) -> Request:
        request = session.prompts.request(prompt, answers, limits=session.limits)
        sent[request.id] = request.prompt_ids
        chats[request.id] = session.prompts.renderer.chat(prompt, answers)
        return request

    with _server(session, cell, stop=stop) as running:
        endpoint = running.endpoint
        run = _served_run(session, cell, endpoint, chats)
        probe = check_speculation(run, speculates=cell.spec.method != BASELINE, stop=stop)
        clock = WallClock()
        backend = OpenAIBackend(run, clock=clock)
        arrivals = open_load(
            spec.workload, concurrency=spec.concurrency, options=spec.load, seed=spec.seed, planned=cell.spec.load
        )
        sampler = open_sampler(session.device, clock=clock) if endpoint.local else None
        with sampler or nullcontext():
            outcome = drive(
                backend,
                conversations=session.prompts.prompts,
                build=build,
                arrivals=arrivals,
                clock=clock,
                warmups=warmups,
                on_progress=on_progress,
                stop=stop,
            )
    trace = replace(outcome.trace, status=Status.INTERRUPTED if outcome.interrupted else outcome.trace.status)
    return Measurement(
        trace=trace,
        skipped=outcome.skipped,
        prompt_ids=sent,
        memory={},
        notes=_notes(session, outcome, backend.notes, served=len(trace.served)),
        telemetry=sampler.summary(trace) if sampler is not None else None,
        server=_facts(session, running, probe),
    )


def _facts(session: Session, running: _Running, probe: dict[str, Any]) -> dict[str, Any]:
    endpoint = running.endpoint
    return {
        "engine": endpoint.engine,
        "version": endpoint.version,
        "model": endpoint.model,
        "endpoint": session.spec.server.endpoint,
        "on_this_machine": endpoint.local,
        **running.facts,
        **probe,
    }


def _served_run(
    session: Session, cell: PlannedCell, endpoint: Endpoint, chats: dict[str, Sequence[Message]]
) -> ServedRun:
    spec = session.spec
    thinking = None if spec.thinking == "default" else spec.thinking == "on"
    return ServedRun(
        endpoint=endpoint,
        body=BodyMaker(
            engine=endpoint.engine,
            model=endpoint.model,
            chat=spec.server.endpoint == "chat",
            salt=cell.label,
            thinking=thinking,
            messages=chats,
        ),
        method=cell.spec.method,
        draft_length=cell.spec.draft_length,
        sampling=spec.sampling,
        concurrency=spec.concurrency,
        dtype=session.dtype,
        tokenise=session.prompts.renderer.tokenise,
        timeout_s=spec.server.timeout,
        tries=spec.server.tries,
    )


def _notes(session: Session, outcome: Outcome, said: Sequence[str], *, served: int) -> tuple[str, ...]:
    notes = [*session.notes, *session.prompts.renderer.notes, *said]
    if session.prompts.shortened:
        notes.append(f"{len(session.prompts.shortened)} requests were given only the room left in the context")
    measured = {r.id: r for r in outcome.trace.requests if not r.warmup}
    entries = [e for e in outcome.trace.served if e.request in measured]
    if entries and all(e.accepted is None and e.steps is None for e in entries):
        notes.append("acceptance: not available, the server tells none of it with its answers")
    other = [e for e in entries if e.prompt_tokens not in (None, measured[e.request].prompt_tokens)]
    if other:
        notes.append(
            f"the server counts {other[0].prompt_tokens} prompt tokens where the target's tokenizer and template give"
            f" {measured[other[0].request].prompt_tokens} ({len(other)} of {len(entries)} requests)"
        )
    cached = sum(e.cached_tokens or 0 for e in entries)
    if cached:
        notes.append(f"the server took {cached} prompt tokens from its prefix cache: times to first token are shorter")
    whole = sum(len(e.chunk_tokens) == 1 and sum(e.chunk_tokens) > 1 for e in entries)
    if whole:
        notes.append(
            f"{whole} answers came in one piece, as of a server that does not stream: their speed is not known"
        )
    again = sum(e.attempts > 1 for e in entries)
    if again:
        notes.append(f"{again} requests were sent more than once; their waiting is in their times")
    notes += [f"turn {s.turn + 1} of {s.task}/{s.prompt} was not run: {s.reason}" for s in outcome.skipped]
    return tuple(dict.fromkeys(notes))
