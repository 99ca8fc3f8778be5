"""Texts in, texts out: what a grader asks of whatever serves a model, engine or server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from specbench.prompting import Renderer
from specbench.types import Prompt, Sampling


@dataclass(frozen=True, slots=True)
class TextRequest:
    """One generation. ``id`` is unique among those of its task; the answer ends before the first of ``stops``."""

    task: str
    id: str
    prompt: str
    max_new_tokens: int
    sampling: Sampling
    stops: tuple[str, ...] = ()


class TextServer(Protocol):
    """Something that answers texts."""

    @property
    def tokenizer(self) -> Any:
        """Carries the chat template; None where there is none at hand."""
        ...

    def generate(self, requests: Sequence[TextRequest]) -> list[str]:
        """The answers in the order of the requests. Errors: SpecbenchError."""
        ...

    def loglikelihood(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[float, bool]]:
        """Log probability of each continuation after its context, and whether greedy decoding would say it.

        Errors: ConfigError where it cannot be had.
        """
        ...


def cut_at_stops(text: str, stops: Sequence[str]) -> str:
    """The text before the first stop string."""
    places = [at for stop in stops if stop and (at := text.find(stop)) >= 0]
    return text[: min(places)] if places else text


class PlainRenderer(Renderer):
    """Tokenises a prompt as it is written: graders render chats and shots themselves."""

    def encode(self, prompt: Prompt, answers: Sequence[str]) -> tuple[int, ...]:
        """Token ids of the text; a start or end token alone for an empty one."""
        return encode_plain(self.tokenizer, prompt.turns[0])


def encode_plain(tokenizer: Any, text: str) -> tuple[int, ...]:
    """Token ids, with the tokenizer's own start token unless the text brings it; never none."""
    start = tokenizer.bos_token
    special = not (start and text.startswith(start))
    ids = tuple(tokenizer(text, add_special_tokens=special).input_ids)
    if ids:
        return ids
    first = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    return (int(first or 0),)
