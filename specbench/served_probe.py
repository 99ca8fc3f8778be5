"""Whether a server does what its method says: drafts or none, in a warm-up that any drafter can draft for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specbench.backends.openai import OpenAIBackend, ServedRun
from specbench.engine.clock import WallClock
from specbench.errors import TargetError
from specbench.server_trace import ServedTrace, ServerCounts
from specbench.serving import counters
from specbench.types import Request, Sampling, Status

_TEXT = "one two three four five six seven eight " * 3  # what follows is in it: a lookup finds something to draft
_TOKENS = 16
_COUNTING = frozenset({"vllm", "sglang", "llama.cpp"})
"""Engines that show drafts in their answers or counters: what they do not show does not happen there."""
PROBE = "probe/0"


def check_speculation(run: ServedRun, *, speculates: bool, stop: Callable[[], bool]) -> dict[str, Any]:
    """Ask once, at temperature 0, and look at what was drafted; what a record says of it.

    Errors: TargetError when the server fails, or drafts nothing though its method should, or drafts as plain decoding,
    or ``stop`` says so.
    """
    before = run.endpoint.counts()
    entry = _ask(run, stop)
    counted = counters.difference(before, run.endpoint.counts())
    drafted = _drafted(entry, counted)
    if drafted is None and run.endpoint.engine in _COUNTING:
        drafted = 0
    if drafted is None:
        return {"drafted_in_probe": "not told by the server"}
    if speculates and drafted == 0:
        raise TargetError(
            f"the server ({run.endpoint.engine}) drafted nothing in a warm-up of repeated text: speculation is not on"
            f" there, or it does not count its drafts; start it for {run.method} with its counts"
        )
    if not speculates and drafted > 0:
        raise TargetError(
            f"the server is called {run.method} and drafted {drafted} tokens in a warm-up; name the method that it runs"
        )
    return {"drafted_in_probe": drafted}


def _ask(run: ServedRun, stop: Callable[[], bool]) -> ServedTrace:
    ids, _ = run.tokenise(_TEXT)
    request = Request(
        id=PROBE,
        number=0,
        prompt_ids=tuple(ids),
        max_new_tokens=_TOKENS,
        sampling=Sampling(),
        seed=0,
        stop_ids=frozenset(),
        ignore_eos=True,
        task="probe",
        domain="probe",
    )
    body = run.body.with_chat(PROBE, _TEXT)
    backend = OpenAIBackend(run.but(body=body), clock=WallClock())
    backend.submit(request, warmup=True)
    while not any(event.finished for event in backend.poll()) and not stop():
        pass
    trace = backend.close()
    if trace.requests[0].status != Status.OK:
        raise TargetError(f"the server fails a first request: {trace.requests[0].error}; see its log")
    return trace.served[0]


def _drafted(entry: ServedTrace, counted: ServerCounts | None) -> int | None:
    """Drafts in the warm-up by its own answer, else by the counters; None where neither tells."""
    if entry.drafted or counted is None:
        return entry.drafted
    return counted.drafted if counted.drafted is not None else counted.steps or entry.drafted
