"""From conversations to token ids: chat template, thinking switch, hashes, and what fits the context."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from specbench.errors import CapacityError, ConfigError, TaskError
from specbench.types import Prompt, Request, Sampling
from specbench.workloads._draws import Draws

_WARMUP_TEXT = "Name the days of the week, one on each line, and say in a word what you like about each."
_SLACK_TOKENS = 16


def digest(*parts: str | bytes) -> str:
    """SHA-256 over the parts, each preceded by its length so that no two lists of parts collide."""
    state = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return state.hexdigest()


def request_number(*, task: str, prompt: str, turn: int) -> int:
    """The number that keys a request's random draws: 56 bits of a hash, equal in every run and for every method."""
    return int.from_bytes(bytes.fromhex(digest(task, prompt, str(turn)))[:7], "little")


def _ids_bytes(ids: Sequence[int]) -> bytes:
    return b"".join(token.to_bytes(4, "little") for token in ids)


@dataclass(slots=True)
class Renderer:
    """Turns a conversation and the answers so far into the prompt of its next turn.

    ``thinking`` is "default", "on" or "off". ``notes`` collects what a reader of the record should know, each once.
    Errors at birth: ConfigError when thinking is asked for and the template ignores the switch.
    """

    tokenizer: Any
    thinking: str = "default"
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.thinking == "default":
            return
        probe = [{"role": "user", "content": "Hello"}]
        if not self.has_template or self._template(probe, thinking=True) == self._template(probe, thinking=False):
            raise ConfigError(
                f"thinking = {self.thinking} was asked for, but the target's chat template ignores the switch;"
                " leave thinking at its default"
            )

    @property
    def has_template(self) -> bool:
        """Whether the tokenizer carries a chat template."""
        return bool(getattr(self.tokenizer, "chat_template", None))

    def note(self, text: str) -> None:
        """Remember a remark for the record, once."""
        if text not in self.notes:
            self.notes.append(text)

    def _template(self, messages: list[dict[str, str]], *, thinking: bool | None) -> str:
        switch = {} if thinking is None else {"enable_thinking": thinking}
        text: str = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **switch)
        return text

    def chat(self, prompt: Prompt, answers: Sequence[tuple[int, ...]]) -> list[dict[str, str]]:
        """The messages of the next turn, for a server that renders them itself."""
        return self._messages(prompt, [self.text_of(answer) for answer in answers])

    def warmup_chat(self, index: int) -> list[dict[str, str]]:
        """The messages of the warm-up request with this number."""
        return [{"role": "user", "content": _warmup_text(index)}]

    def tokenise(self, text: str) -> tuple[list[int], list[int]]:
        """Token ids of an answer's text, and the character that each begins at."""
        if not getattr(self.tokenizer, "is_fast", False):
            ids = list(self.tokenizer(text, add_special_tokens=False).input_ids)
            return ids, [len(text)] * len(ids)
        found = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return list(found.input_ids), [start for start, _ in found.offset_mapping]

    def _chat(self, messages: list[dict[str, str]]) -> str:
        thinking = None if self.thinking == "default" else self.thinking == "on"
        return self._template(messages, thinking=thinking)

    def encode(self, prompt: Prompt, answers: Sequence[str]) -> tuple[int, ...]:
        """Token ids of the next turn's prompt: system, earlier turns with their answers, and the open user turn."""
        turns = prompt.turns[: len(answers) + 1]
        if not self.has_template:
            self.note("the target's tokenizer has no chat template: turns are joined by blank lines, as plain text")
            texts = [text for pair in zip(turns, [*answers, ""]) for text in pair if text]
            text = "\n\n".join(([prompt.system] if prompt.system else []) + texts)
            return tuple(self.tokenizer(text).input_ids)
        messages = self._messages(prompt, answers)
        try:
            text = self._chat(messages)
        except Exception as error:  # a template may raise whatever its author chose
            text = self._without_system(prompt, messages, error)
        return tuple(self.tokenizer(text, add_special_tokens=False).input_ids)

    def _messages(self, prompt: Prompt, answers: Sequence[str]) -> list[dict[str, str]]:
        messages = [{"role": "system", "content": prompt.system}] if prompt.system else []
        for turn, answer in zip(prompt.turns[: len(answers) + 1], [*answers, None]):
            messages.append({"role": "user", "content": turn})
            if answer is not None:
                messages.append({"role": "assistant", "content": answer})
        return messages

    def _without_system(self, prompt: Prompt, messages: list[dict[str, str]], error: Exception) -> str:
        if not prompt.system:
            raise TaskError(
                f"prompt '{prompt.id}' of task '{prompt.task}': the target's chat template refuses it: {error};"
                " use another task or target"
            ) from error
        self.note("the target's chat template refuses a system message: it leads the first user turn instead")
        first = f"{prompt.system}\n\n{messages[1]['content']}"
        return self._chat([{"role": "user", "content": first}, *messages[2:]])

    def text_of(self, output_ids: Sequence[int]) -> str:
        """An answer as it enters the next turn's prompt: special tokens, the stop token among them, left out."""
        text: str = self.tokenizer.decode(list(output_ids), skip_special_tokens=True)
        return text


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request may ask for."""

    max_new_tokens: int
    max_context: int  # tokens a sequence may hold, output included
    ignore_eos: bool
    stop_ids: frozenset[int]
    sampling: Sampling
    seed: int
    shortest: float = 1.0  # share of ``max_new_tokens`` that a request's own limit is at least

    def limit_of(self, request: str) -> int:
        """Output tokens at most of the request of this name: the same for the same seed."""
        least = max(1, math.ceil(self.max_new_tokens * self.shortest))
        if least >= self.max_new_tokens:
            return self.max_new_tokens
        draws = Draws(self.seed, purpose=f"output limit of {request}")
        return least + int(draws.uniform() * (self.max_new_tokens - least + 1))


@dataclass(slots=True)
class PromptSet:
    """The conversations of a run, rendered by one template. ``tasks`` are (name, version) in the order given."""

    prompts: tuple[Prompt, ...]
    renderer: Renderer
    tasks: tuple[tuple[str, str], ...]
    first_ids: dict[tuple[str, str], tuple[int, ...]] = field(default_factory=dict)
    shortened: set[str] = field(default_factory=set)  # requests that got fewer new tokens than asked for

    def __post_init__(self) -> None:
        if not self.prompts:
            names = ", ".join(name for name, _ in self.tasks)
            raise TaskError(f"there are no prompts in {names}; name a task that has some")
        for prompt in self.prompts:
            key = (prompt.task, prompt.id)
            if key in self.first_ids:
                raise TaskError(f"task '{prompt.task}' holds two prompts with the id '{prompt.id}'; make ids unique")
            self.first_ids[key] = self.renderer.encode(prompt, ())
            if not self.first_ids[key]:
                raise TaskError(f"prompt '{prompt.id}' of task '{prompt.task}' has no tokens; give it some text")

    def context_needed(self, max_new_tokens: int) -> int:
        """Tokens that the longest conversation may come to hold.

        An answer is read back from its text, which may take somewhat more tokens than were generated; a quarter more
        and a few are reserved for it.
        """
        need = 0
        for prompt in self.prompts:
            earlier = len(prompt.turns) - 1
            base = self.first_ids[prompt.task, prompt.id]
            if earlier:
                base = self.renderer.encode(prompt, [""] * earlier)
            again = earlier * (max_new_tokens + max_new_tokens // 4 + _SLACK_TOKENS)
            need = max(need, len(base) + again + max(max_new_tokens, 1))
        return need

    def check_fits(self, *, context_limit: int) -> None:
        """Errors: CapacityError naming the first prompt whose first turn leaves no room in the target's context."""
        for (task, name), ids in self.first_ids.items():
            if len(ids) >= context_limit:
                raise CapacityError(_too_long(task, name, 0, len(ids), context_limit))

    def rendering_hash(self, *, template_sha256: str) -> str:
        """Hash of data, template, thinking mode and turns: what the target was shown, apart from its own answers."""
        parts: list[str | bytes] = [template_sha256, self.renderer.thinking, *(f"{n} {v}" for n, v in self.tasks)]
        for prompt in self.prompts:
            parts += [prompt.task, prompt.id, _ids_bytes(self.first_ids[prompt.task, prompt.id]), *prompt.turns[1:]]
        return digest(*parts)

    def prompt_set_hash(self) -> str:
        """Hash of the prompts' ids, their order and their count."""
        return digest(*(part for prompt in self.prompts for part in (prompt.task, prompt.id)))

    def request(self, prompt: Prompt, answers: Sequence[tuple[int, ...]], *, limits: Limits) -> Request:
        """The next turn of a conversation. Errors: CapacityError when its prompt leaves no room for a token."""
        turn = len(answers)
        ids = self.first_ids[prompt.task, prompt.id]
        if turn:
            ids = self.renderer.encode(prompt, [self.renderer.text_of(answer) for answer in answers])
        room = limits.max_context - len(ids)
        if room < 1:
            raise CapacityError(_too_long(prompt.task, prompt.id, turn, len(ids), limits.max_context))
        name = f"{prompt.task}/{prompt.id}/{turn}"
        limit = limits.limit_of(name)
        if room < limit:
            self.shortened.add(name)
        return Request(
            id=name,
            number=request_number(task=prompt.task, prompt=prompt.id, turn=turn),
            prompt_ids=ids,
            max_new_tokens=min(limit, room),
            sampling=limits.sampling,
            seed=limits.seed,
            stop_ids=limits.stop_ids,
            ignore_eos=limits.ignore_eos,
            task=prompt.task,
            domain=prompt.domain,
        )

    def warmups(self, count: int, *, limits: Limits, max_new_tokens: int = 16) -> list[Request]:
        """Requests that are never measured: a text that no task holds, numbered so that they differ."""
        made = []
        for index in range(count):
            ids = self.renderer.encode(Prompt(f"{index}", "warmup", "warmup", (_warmup_text(index),)), ())
            new = min(max_new_tokens, limits.max_context - 1)
            made.append(
                Request(
                    id=f"warmup/{index}",
                    number=request_number(task="warmup", prompt=str(index), turn=0),
                    prompt_ids=ids[: limits.max_context - new],
                    max_new_tokens=new,
                    sampling=limits.sampling,
                    seed=limits.seed,
                    stop_ids=limits.stop_ids,
                    ignore_eos=True,
                    task="warmup",
                    domain="warmup",
                )
            )
        return made


def _warmup_text(index: int) -> str:
    return f"{index + 1}. {_WARMUP_TEXT}"


def _too_long(task: str, prompt: str, turn: int, tokens: int, limit: int) -> str:
    return (
        f"prompt '{prompt}' of task '{task}' (turn {turn + 1}) has {tokens} tokens and the context holds {limit};"
        " shorten it or choose a target with a longer context"
    )
