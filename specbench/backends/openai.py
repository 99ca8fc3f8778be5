"""Any OpenAI-compatible server as a backend: requests go out when they arrive, their streams are timed on this side.

The server shows no rounds. What it counts of drafts is taken from its own fields and counters, and only from there; a
stream's chunks are kept with their times and are never taken for steps.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

from specbench.api import Clock
from specbench.engine.sequence import hash_ids
from specbench.metrics._served_identities import count_trouble
from specbench.server_trace import ServedTrace, ServerCounts, ServerTrace
from specbench.serving import counters
from specbench.serving.body import BodyMaker
from specbench.serving.calls import api_url, auth_headers
from specbench.serving.endpoint import Endpoint
from specbench.serving.exchange import Exchange, carry_out, open_client
from specbench.serving.reply import FINISHED, Chunk, Output, Reply
from specbench.types import Request, RequestTrace, RunTrace, Sampling, Status, TokenEvent

_NAP_S = 0.005  # how late an arrival may be noticed while nothing comes in
_COUNTERS_LATE_S = 3.0  # a server's counters may lag behind its answers
_CLOSING_S = 10.0
_MOST_EVENTS = 16  # to a token that was asked for: beyond that a stream has no end

Tokenise = Callable[[str], tuple[list[int], list[int]]]


@dataclass(frozen=True, slots=True)
class ServedRun:
    """What a run of a server is, apart from its requests. ``dtype`` as the user or the launcher knows it."""

    endpoint: Endpoint
    body: BodyMaker
    method: str
    draft_length: int
    sampling: Sampling
    concurrency: int
    dtype: str
    tokenise: Tokenise
    timeout_s: float
    tries: int

    def but(self, *, body: BodyMaker) -> ServedRun:
        """The same with other calls."""
        return replace(self, body=body)


@dataclass(slots=True)
class _Row:
    request: Request
    warmup: bool
    arrival_s: float
    exchange: Exchange = field(default_factory=lambda: Exchange(Reply()))
    finish_s: float | None = None
    announced: int = 0  # tokens that events have told of


class OpenAIBackend:
    """A Backend of `specbench.api`. All network traffic runs in a thread of its own, and times are taken there."""

    def __init__(self, run: ServedRun, *, clock: Clock) -> None:
        self._run = run
        self._clock = clock
        self._rows: list[_Row] = []
        self._events: queue.SimpleQueue[TokenEvent] = queue.SimpleQueue()
        self._before: ServerCounts | None = None
        self._measuring = False
        self._url = f"{api_url(run.endpoint.base_url)}/{run.body.path}"
        self._client = open_client(
            auth_headers(run.endpoint.key_variable), timeout_s=run.timeout_s, secure=self._url.startswith("https")
        )
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="openai-backend", daemon=True)
        self._thread.start()
        self.notes: list[str] = []  # what a reader of the record should know, after `close`

    def submit(self, request: Request, *, warmup: bool = False, arrival_s: float | None = None) -> None:
        """Send a request. Before the first measured one the server's counters are read."""
        if not warmup and not self._measuring:
            self._measuring = True
            self._before = self._run.endpoint.counts()
        row = _Row(request, warmup, self._clock.now() if arrival_s is None else arrival_s)
        self._rows.append(row)
        self._loop.call_soon_threadsafe(self._begin, row)

    def poll(self) -> list[TokenEvent]:
        """What has come in; waits a little where nothing has."""
        try:
            events = [self._events.get(timeout=_NAP_S)]
        except queue.Empty:
            return []
        while True:
            try:
                events.append(self._events.get_nowait())
            except queue.Empty:
                return events

    def close(self) -> RunTrace:
        """End all exchanges, read the counters, and hand over what was recorded."""
        wall_s = self._clock.now()
        finished = all(row.finish_s is not None for row in self._rows)
        counts = self._counts() if finished else None
        self._end()
        outputs = [row.exchange.reply.output(self._run.tokenise) for row in self._rows]
        run, endpoint = self._run, self._run.endpoint
        return RunTrace(
            requests=tuple(_request_trace(row, output) for row, output in zip(self._rows, outputs)),
            rounds=(),
            steps=(),
            method=run.method,
            draft_length=run.draft_length,
            sampling=run.sampling,
            concurrency=run.concurrency,
            wall_s=wall_s,
            served=tuple(self._served(row, output) for row, output in zip(self._rows, outputs)),
            server=ServerTrace(endpoint.engine, endpoint.version, run.dtype, counts),
        )

    # -------------------------------------------------------------------------------------- the network's thread

    def _begin(self, row: _Row) -> None:
        task = self._loop.create_task(self._serve(row))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, row: _Row) -> None:
        run = self._run
        row.exchange.reply.most_events = _MOST_EVENTS * (row.request.max_new_tokens + 1)

        def on_chunk(chunk: Chunk) -> None:
            row.announced += len(chunk.ids or ())
            self._events.put(TokenEvent(row.request.id, chunk.ids or (), finished=False))

        try:
            body = run.body.make(row.request, warmup=row.warmup)
            await carry_out(
                self._client,
                self._url,
                body,
                into=row.exchange,
                now=self._clock.now,
                on_chunk=on_chunk,
                timeout_s=run.timeout_s,
                tries=run.tries,
            )
            ids = row.exchange.reply.output(run.tokenise).ids
        except Exception as error:  # whatever a library raises ends its own request only
            row.exchange.error, ids = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}", ()
        row.finish_s = self._clock.now()
        rest = ids[row.announced :]
        self._events.put(TokenEvent(row.request.id, rest, finished=True, error=row.exchange.error))

    def _end(self) -> None:
        """Cancel what is under way and let the thread go; a server that keeps a connection cannot hold it up."""

        async def finish() -> None:
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._client.aclose()

        self._await(finish())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSING_S)
        if not self._thread.is_alive():
            self._loop.close()

    def _await(self, work: Coroutine[Any, Any, None]) -> None:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            future.result(_CLOSING_S)
        except TimeoutError:
            future.cancel()

    # ------------------------------------------------------------------------------------------------- its counts

    def _counts(self) -> ServerCounts | None:
        """The counters' differences over the measured part, once they hold all our tokens or time is up."""
        if self._before is None or not self._measuring:
            return None
        own = sum(row.exchange.reply.output(self._run.tokenise).total for row in self._rows if not row.warmup)
        end_s = time.monotonic() + _COUNTERS_LATE_S
        while True:
            found = counters.difference(self._before, self._run.endpoint.counts())
            if found is None or found.generated is None or found.generated >= own or time.monotonic() > end_s:
                return found
            time.sleep(0.1)

    def _served(self, row: _Row, output: Output) -> ServedTrace:
        reply, exchange = row.exchange.reply, row.exchange
        entry = ServedTrace(
            request=row.request.id,
            ids_from=output.ids_from,
            chunk_tokens=output.sizes,
            attempts=exchange.attempts,
            http_status=exchange.http_status,
            finish=reply.finish,
            prompt_tokens=reply.prompt_tokens,
            cached_tokens=reply.cached_tokens,
            queue_s=reply.queue_s,
        )
        found = reply.acceptance
        if found is None:
            return entry
        counted = replace(
            entry,
            steps=found.steps,
            draft_steps=found.draft_steps,
            drafted=found.drafted,
            accepted=found.accepted,
            accepted_histogram=found.histogram,
            step_accepted=found.step_accepted,
            step_drafted=found.step_drafted,
        )
        trouble = count_trouble(counted)
        if trouble is None:
            return counted
        self.notes.append(
            f"the server's counts contradict each other and were not used: {trouble[0]}, seen {trouble[1]}"
        )
        return entry


def _request_trace(row: _Row, output: Output) -> RequestTrace:
    request, exchange = row.request, row.exchange
    times = tuple(chunk.at_s for chunk in exchange.reply.chunks)
    if row.finish_s is None:
        status = Status.INTERRUPTED
    else:
        status = Status.OK if exchange.error is None else Status.FAILED
    return RequestTrace(
        id=request.id,
        number=request.number,
        task=request.task,
        domain=request.domain,
        prompt_tokens=len(request.prompt_ids),
        prompt_hash=hash_ids(request.prompt_ids),
        max_new_tokens=request.max_new_tokens,
        seed=request.seed,
        status=status,
        error=exchange.error,
        warmup=row.warmup,
        arrival_s=row.arrival_s,
        admitted_s=None if exchange.sent_s is None else max(exchange.sent_s, row.arrival_s),
        first_token_s=times[0] if times else None,
        finish_s=row.finish_s,
        token_times_s=times,
        first_token=min(output.total, 1),
        first_token_gap=None,
        output_ids=output.ids,
        stop_reason=FINISHED.get(exchange.reply.finish or ""),
        stop_ids=() if request.ignore_eos else tuple(sorted(request.stop_ids)),
        tokens=output.total,
    )


PLUGIN = OpenAIBackend
