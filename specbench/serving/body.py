"""What is sent for a request: the same prompt, length and sampling for every engine, in each one's own words."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from specbench.types import Request

Message = dict[str, str]

_NEUTRAL: dict[str, dict[str, Any]] = {
    "vllm": {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0},
    "sglang": {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0},
    "llama.cpp": {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repeat_penalty": 1.0, "typical_p": 1.0},
}
"""Sampling that changes nothing: what is left out, engines take from their own or the model's defaults."""

_ASKS: dict[str, dict[str, Any]] = {
    "vllm": {"return_token_ids": True},
    "sglang": {"return_spec_tokens_details": True},
    "llama.cpp": {"cache_prompt": False},
}
"""For token ids and counts of drafts in the reply; for a prompt that is computed anew."""

_STOP_BY_ID = frozenset({"vllm", "sglang"})


@dataclass(frozen=True, slots=True)
class BodyMaker:
    """``salt`` sets an arm's random numbers apart from another arm's. ``messages`` are the chats by request id."""

    engine: str
    model: str
    chat: bool
    salt: str
    thinking: bool | None = None
    messages: Mapping[str, Sequence[Message]] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """Below the interface's address."""
        return "chat/completions" if self.chat else "completions"

    def with_chat(self, name: str, text: str) -> BodyMaker:
        """Knowing one more chat: a request of this name that says the text."""
        return replace(self, messages={**self.messages, name: [{"role": "user", "content": text}]})

    def make(self, request: Request, *, warmup: bool) -> dict[str, Any]:
        """The call's body. Keys beyond OpenAI's go to engines that are known to take them, or that are asked to."""
        sampling = request.sampling
        known = self.engine in _NEUTRAL
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": request.max_new_tokens,
            "temperature": sampling.temperature,
            "seed": self._seed(request),
            "stream": True,
            "stream_options": {"include_usage": True},
            **_NEUTRAL.get(self.engine, {}),
            **_ASKS.get(self.engine, {}),
        }
        body |= {"messages": list(self.messages[request.id])} if self.chat else {"prompt": list(request.prompt_ids)}
        if sampling.top_p < 1:
            body["top_p"] = sampling.top_p
        if sampling.top_k is not None:
            body["top_k"] = sampling.top_k
        if request.ignore_eos and (known or not warmup):
            body["ignore_eos"] = True
        elif not request.ignore_eos and request.stop_ids and self.engine in _STOP_BY_ID:
            body["stop_token_ids"] = sorted(request.stop_ids)
        if self.chat and self.thinking is not None:
            body["chat_template_kwargs"] = {"enable_thinking": self.thinking}
        return body

    def _seed(self, request: Request) -> int:
        """31 bits of the arm, the run's seed and the request's number: arms must not draw alike."""
        text = f"{self.salt}/{request.seed}/{request.number}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little") % 2**31
