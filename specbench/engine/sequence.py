"""The host's state of one request from submission to its end."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np

from specbench.types import Request, RequestTrace, Status


@dataclass(slots=True)
class Sequence:
    """One request in the engine. ``computed`` tokens of ``prompt + output`` have keys and values in ``pages``.

    Once decoding, the newest output token (the anchor) is the only one not computed.
    """

    request: Request
    limit: int  # output tokens at most: max_new_tokens, or what the context leaves
    warmup: bool
    arrival_s: float
    output: list[int] = field(default_factory=list)
    slot: int | None = None
    pages: list[int] = field(default_factory=list)
    computed: int = 0
    admission: int = 0  # order of the latest admission; the newest is preempted first
    rounds: int = 0
    preemptions: int = 0
    first_token: int = 0
    first_token_gap: float | None = None
    admitted_s: float | None = None
    finish_s: float | None = None
    token_times_s: list[float] = field(default_factory=list)
    stop_reason: str | None = None
    status: str = Status.OK
    error: str | None = None

    @property
    def prefill_length(self) -> int:
        """Tokens that must be computed before decoding: the prompt, and after preemption all but the anchor."""
        return len(self.request.prompt_ids) + max(len(self.output) - 1, 0)

    @property
    def decoding(self) -> bool:
        """The prompt is computed and an anchor exists."""
        return bool(self.output) and self.computed >= self.prefill_length

    @property
    def room(self) -> int:
        """Output tokens still allowed."""
        return self.limit - len(self.output)

    def tokens(self, start: int, stop: int) -> list[int]:
        """Tokens at positions [start, stop) of prompt + output."""
        prompt = self.request.prompt_ids
        head = list(prompt[start:stop])
        return head + self.output[max(start - len(prompt), 0) : max(stop - len(prompt), 0)]

    def trace(self) -> RequestTrace:
        """What the request leaves behind."""
        r = self.request
        return RequestTrace(
            id=r.id,
            number=r.number,
            task=r.task,
            domain=r.domain,
            prompt_tokens=len(r.prompt_ids),
            prompt_hash=hash_ids(r.prompt_ids),
            max_new_tokens=r.max_new_tokens,
            seed=r.seed,
            status=self.status,
            error=self.error,
            warmup=self.warmup,
            arrival_s=self.arrival_s,
            admitted_s=self.admitted_s,
            first_token_s=self.token_times_s[0] if self.token_times_s else None,
            finish_s=self.finish_s,
            token_times_s=tuple(self.token_times_s),
            first_token=self.first_token,
            first_token_gap=self.first_token_gap,
            output_ids=tuple(self.output),
            stop_reason=self.stop_reason,
            preemptions=self.preemptions,
            stop_ids=() if r.ignore_eos else tuple(sorted(r.stop_ids)),
        )


def hash_ids(ids: tuple[int, ...]) -> str:
    """Short content hash of token ids."""
    return hashlib.sha256(np.asarray(ids, dtype="<i8").tobytes()).hexdigest()[:16]
