"""What a run served by an OpenAI-compatible server leaves beside its requests: the server's words and its counters."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServedTrace:
    """What a server's reply and the client's own counting say of one request; None where the server does not tell.

    A server shows no rounds. ``chunk_tokens`` belong to the request's ``token_times_s``: stream chunks, never taken for
    steps. ``steps`` are all decode steps where the server counts them, ``draft_steps`` those that verified a draft,
    listed by ``step_accepted`` and ``step_drafted``; drafts accepted behind the end of the text count as accepted.
    """

    request: str
    ids_from: str  # "server": it returned token ids; "text": its text was tokenised here
    chunk_tokens: tuple[int, ...]
    attempts: int  # how often the request was sent
    http_status: int | None  # of the last attempt
    finish: str | None  # the server's word for why it ended
    prompt_tokens: int | None = None  # as the server counts them
    cached_tokens: int | None = None  # of the prompt, taken from the server's prefix cache
    queue_s: float | None = None  # in the server's own queue
    steps: int | None = None
    draft_steps: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    accepted_histogram: tuple[int, ...] | None = None  # draft steps by accepted drafts 0, 1, ...
    step_accepted: tuple[int, ...] | None = None
    step_drafted: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class ServerCounts:
    """Differences of a server's own counters over the measured part of a run; None where it has no such counter."""

    generated: int | None = None  # output tokens, the prefill's included
    steps: int | None = None  # all decode steps, or verify steps where each decode step is one
    draft_steps: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    accepted_at: tuple[int, ...] | None = None  # steps that accepted at least 1, 2, ... drafts


@dataclass(frozen=True, slots=True)
class ServerTrace:
    """Who served a run: the engine as far as it is known, and what its counters say of the measured part."""

    engine: str  # "vllm", "sglang", "tensorrt-llm", "llama.cpp" or "unknown"
    version: str | None
    dtype: str  # as the client was told, or "unknown"
    counts: ServerCounts | None = None
