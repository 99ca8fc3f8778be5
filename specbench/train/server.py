"""Answers by any OpenAI-compatible server: token ids go to its completions route, text comes back and is tokenised.

The text of an answer may be tokenised otherwise than it was written; that is the price of an interface of texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Self

from specbench.api import Backend, Clock
from specbench.engine.clock import WallClock
from specbench.errors import TargetError, unknown_name
from specbench.prompting import Renderer
from specbench.served_target import stated_stops
from specbench.serving.calls import auth_headers, call
from specbench.train.answers import AnswerPlan
from specbench.train.spec import PrepareSpec
from specbench.train.target import FoundTarget
from specbench.types import Prompt, Request, RequestTrace, RunTrace, Sampling, Status, TokenEvent

_TIMEOUT_S = 600.0
_NAP_S = 0.2


@dataclass(frozen=True, slots=True)
class ServerWriter:
    """A server of the target with ``rows`` requests in flight."""

    base_url: str
    model: str
    tries: int
    rows: int
    tokenizer: Any
    stop_ids: frozenset[int]
    end_id: int | None  # what stands for the stop in a text that ended by itself
    context_limit: int

    @classmethod
    def connect(cls, spec: PrepareSpec, found: FoundTarget) -> Self:
        """Errors: TargetError when no server answers; UnknownNameError when it does not serve the model."""
        assert spec.base_url is not None, "the caller asks for a server"
        assert spec.server_model is not None, "the spec demands the model's name"
        tokenizer = found.renderer(thinking=spec.thinking).tokenizer
        stops = stated_stops(found.resolved.path)
        end = tokenizer.eos_token_id if tokenizer.eos_token_id in stops else next(iter(stops), None)
        writer = cls(
            base_url=spec.base_url.rstrip("/"),
            model=spec.server_model,
            tries=spec.server_tries,
            rows=spec.rows,
            tokenizer=tokenizer,
            stop_ids=frozenset(stops),
            end_id=end,
            context_limit=spec.max_context,
        )
        writer._check()
        return writer

    def states(self, backend: Backend) -> Mapping[int, Any]:
        """None: a server keeps its states to itself."""
        return {}

    def open(self, *, max_context: int, keep: Sequence[int] | None = None) -> tuple[Backend, Clock]:
        """A fresh connection."""
        assert keep is None, "the spec refuses to keep a server's states"
        clock = WallClock()
        return _Connection(self, clock), clock

    def speed(self, prompts: Sequence[Prompt], renderer: Renderer, *, plan: AnswerPlan) -> float | None:
        """None: a server's speed shows only under its own load."""
        return None

    def client(self) -> Any:
        """An HTTP client for one connection."""
        import httpx2

        limits = httpx2.Limits(max_connections=self.rows)
        return httpx2.Client(timeout=_TIMEOUT_S, headers=auth_headers(), limits=limits)

    def _check(self) -> None:
        with self.client() as client:
            found = call(client, "GET", f"{self.base_url}/models", body=None, tries=1)
        served = [str(entry.get("id")) for entry in found.get("data", []) if isinstance(entry, dict)]
        if served and self.model not in served:
            raise unknown_name("model of the server", self.model, served)

    def body(self, request: Request) -> dict[str, Any]:
        """The completions call for a request. Its random numbers are the server's, from a seed of the request's."""
        sampling = request.sampling
        found: dict[str, Any] = {
            "model": self.model,
            "prompt": list(request.prompt_ids),
            "max_tokens": request.max_new_tokens,
            "temperature": sampling.temperature,
            "seed": (request.number ^ request.seed) % 2**31,
        }
        if sampling.top_p < 1:
            found["top_p"] = sampling.top_p
        if sampling.top_k is not None:
            found["top_k"] = sampling.top_k
        return found

    def tokens(self, choice: dict[str, Any], *, limit: int) -> tuple[tuple[int, ...], str]:
        """Token ids of a reply's choice and why it ended ("stop" or "length")."""
        ids = list(self.tokenizer(str(choice.get("text") or ""), add_special_tokens=False).input_ids)
        stopped = choice.get("finish_reason") == "stop" and len(ids) < limit
        if stopped and self.end_id is not None:
            ids.append(self.end_id)
        return tuple(ids[:limit]), "stop" if stopped else "length"


@dataclass(slots=True)
class _Connection:
    """Requests in flight to a server; a Backend of `specbench.api`."""

    writer: ServerWriter
    clock: WallClock
    _pool: ThreadPoolExecutor = field(init=False)
    _client: Any = field(init=False)
    _pending: dict[Future[RequestTrace], Request] = field(default_factory=dict)
    _done: list[RequestTrace] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._pool = ThreadPoolExecutor(self.writer.rows)
        self._client = self.writer.client()

    def submit(self, request: Request, *, warmup: bool = False, arrival_s: float | None = None) -> None:
        """Send a request."""
        self._pending[self._pool.submit(self._complete, request, warmup)] = request

    def poll(self) -> list[TokenEvent]:
        """Whole answers that came back within a moment. Errors: TargetError when the server refuses or is gone."""
        finished, _ = wait(self._pending, timeout=_NAP_S, return_when=FIRST_COMPLETED)
        events = []
        for future in finished:
            del self._pending[future]
            try:
                trace = future.result()
            except TargetError:
                self._end()
                raise
            self._done.append(trace)
            events.append(TokenEvent(trace.id, trace.output_ids, True))
        return events

    def close(self) -> RunTrace:
        """End the connection; the answers so far."""
        self._end()
        return RunTrace(
            requests=tuple(self._done),
            rounds=(),
            steps=(),
            method="server",
            draft_length=0,
            sampling=Sampling(),
            concurrency=self.writer.rows,
            wall_s=self.clock.now(),
        )

    def _end(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._client.close()

    def _complete(self, request: Request, warmup: bool) -> RequestTrace:
        started = self.clock.now()
        url = f"{self.writer.base_url}/completions"
        reply = call(self._client, "POST", url, body=self.writer.body(request), tries=self.writer.tries)
        choices = reply.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            raise TargetError(f"{url} answers without choices ({str(reply)[:80]}); is it an OpenAI-compatible server?")
        ids, reason = self.writer.tokens(choices[0], limit=request.max_new_tokens)
        now = self.clock.now()
        return RequestTrace(
            id=request.id,
            number=request.number,
            task=request.task,
            domain=request.domain,
            prompt_tokens=len(request.prompt_ids),
            prompt_hash="",
            max_new_tokens=request.max_new_tokens,
            seed=request.seed,
            status=Status.OK,
            error=None,
            warmup=warmup,
            arrival_s=started,
            admitted_s=started,
            first_token_s=now,
            finish_s=now,
            token_times_s=(now,),
            first_token=min(len(ids), 1),
            first_token_gap=None,
            output_ids=ids,
            stop_reason=reason,
        )
