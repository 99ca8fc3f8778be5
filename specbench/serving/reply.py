"""One request's reply, as it comes in: chunks with their times, the text or token ids, and the server's counts."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from specbench.serving.acceptance import Acceptance, read_acceptance

FINISHED = {"stop": "stop", "length": "length", "eos": "stop", "stop_token": "stop"}


class ReplyError(Exception):
    """The reply is no answer; the text says why, in one line."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of the answer, and when it came. ``ids`` None: the server sends no token ids."""

    at_s: float
    text: str
    ids: tuple[int, ...] | None


@dataclass(slots=True)
class Reply:
    """Fed with the events of a stream. Only chunks that hold a part of the answer are kept.

    ``most_events``: beyond so many, with or without a part of the answer, the stream has no end.
    """

    most_events: int | None = None
    events: int = 0
    chunks: list[Chunk] = field(default_factory=list)
    finish: str | None = None
    acceptance: Acceptance | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    queue_s: float | None = None

    def feed(self, data: str, *, now_s: float) -> Chunk | None:
        """One event's data; the chunk, if it holds a part of the answer. Errors: ReplyError."""
        self.events += 1
        if self.most_events is not None and self.events > self.most_events:
            raise ReplyError(f"the server does not end: more than {self.most_events} events for one answer")
        try:
            found = json.loads(data)
        except ValueError as error:
            raise ReplyError(f"the server sent what is no JSON: {data[:80]!r}") from error
        if not isinstance(found, dict):
            raise ReplyError(f"the server sent a {type(found).__name__} instead of an object: {data[:80]!r}")
        if found.get("error"):
            raise ReplyError(f"the server reports in its answer: {error_text(found)}")
        self._counts(found)
        choices = found.get("choices")
        if not isinstance(choices, list) or not choices:
            return None
        if not isinstance(choices[0], dict):
            raise ReplyError(f"the server sent a choice that is no object: {data[:80]!r}")
        return self._choice(choices[0], now_s)

    def _choice(self, choice: dict[str, Any], now_s: float) -> Chunk | None:
        part = choice.get("delta") or choice.get("message") or choice
        texts = [part.get(name) for name in ("reasoning_content", "reasoning", "content", "text")]
        text = "".join(value for value in texts if isinstance(value, str))
        ids = choice.get("token_ids")
        listed = tuple(ids) if isinstance(ids, list) and all(isinstance(token, int) for token in ids) else None
        if isinstance(choice.get("finish_reason"), str):
            self.finish = choice["finish_reason"]
        if not text and not listed:
            return None
        chunk = Chunk(now_s, text, listed)
        self.chunks.append(chunk)
        return chunk

    def _counts(self, found: dict[str, Any]) -> None:
        self.acceptance = read_acceptance(found) or self.acceptance
        usage = found.get("usage")
        if isinstance(usage, dict):
            self.prompt_tokens = _count(usage, "prompt_tokens", self.prompt_tokens)
            self.completion_tokens = _count(usage, "completion_tokens", self.completion_tokens)
            details = usage.get("prompt_tokens_details")
            if isinstance(details, dict):
                self.cached_tokens = _count(details, "cached_tokens", self.cached_tokens)
        metrics = found.get("metrics")
        if isinstance(metrics, dict) and isinstance(metrics.get("queue_time_ms"), int | float):
            self.queue_s = metrics["queue_time_ms"] / 1e3

    def output(self, tokenise: Callable[[str], tuple[list[int], list[int]]]) -> Output:
        """Tokens of the answer and of each chunk.

        ``tokenise`` gives the ids of a text and where each begins in it; it is needed where the server sends no ids.
        The rest that the server counts (an end token, which has no text) is the last chunk's.
        """
        if self.chunks and all(chunk.ids is not None for chunk in self.chunks):
            ids = tuple(token for chunk in self.chunks for token in chunk.ids or ())
            sizes = [len(chunk.ids or ()) for chunk in self.chunks]
            return Output(ids, "server", tuple(sizes), len(ids))
        listed, starts = tokenise("".join(chunk.text for chunk in self.chunks))
        edges = list(accumulate(len(chunk.text) for chunk in self.chunks))
        sizes = [0] * len(self.chunks)
        for start in starts:
            sizes[min(bisect_left(edges, start + 1), len(sizes) - 1)] += 1
        total = len(listed) if self.completion_tokens is None else self.completion_tokens
        if sizes:
            _correct(sizes, total - sum(sizes))
        return Output(tuple(listed), "text", tuple(sizes), total if sizes else 0)


@dataclass(frozen=True, slots=True)
class Output:
    """``total`` tokens as the server counts them, ``sizes`` of the chunks adding up to it, the ids as known here."""

    ids: tuple[int, ...]
    ids_from: str
    sizes: tuple[int, ...]
    total: int


def _correct(sizes: list[int], rest: int) -> None:
    """Spread what the server counts more, or less, over the chunks from the last one backwards."""
    if rest >= 0:
        sizes[-1] += rest
        return
    for i in range(len(sizes) - 1, -1, -1):
        taken = min(sizes[i], -rest)
        sizes[i] -= taken
        rest += taken


def error_text(found: object) -> str:
    """What a server's error says, as one line."""
    error = found.get("error", found) if isinstance(found, dict) else found
    message = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(message).split())[:200]


def _count(fields: dict[str, Any], name: str, before: int | None) -> int | None:
    value = fields.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else before
