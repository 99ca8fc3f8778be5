"""One row of a prompt file into a prompt, or the error that says which line is wrong and how."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specbench.errors import TaskError
from specbench.types import Prompt

PROMPT_FIELDS = "turns, conversations, messages, prompt, question, instruction"
DEFAULT_DOMAIN = "custom"

# The question file of Spec-Bench (Xia et al. 2024, repository hemingkx/Spec-Bench) keeps MT-Bench's eight categories
# and reports them as one of its six groups.
SPEC_BENCH_GROUPS = dict.fromkeys(
    ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"), "mt_bench"
)

HUMAN = frozenset({"human", "user"})
MODEL = frozenset({"gpt", "assistant", "chatgpt", "bard", "bing", "model"})


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file, for error messages."""

    source: str
    line: int

    def error(self, seen: str, expected: str) -> TaskError:
        """The error for what was ``seen`` here and what is ``expected``."""
        return TaskError(f"{self.source}:{self.line}: {seen}; expected {expected}")

    @staticmethod
    def quote(value: Any) -> str:
        """A value as short one-line JSON."""
        try:
            text = json.dumps(value)
        except (TypeError, ValueError, RecursionError):
            text = type(value).__name__
        return text if len(text) <= 60 else text[:57] + "..."


def to_prompt(row: Any, *, place: Place, number: int, task: str, domain: str | None) -> Prompt | None:
    """The prompt of a row, or None for a conversation in which no human speaks or says nothing.

    ``number`` counts rows from 1 and names those without an id; ``domain`` is for rows that give none.
    Errors: TaskError with the place.
    """
    if not isinstance(row, Mapping):
        raise place.error(f"{place.quote(row)} is not an object", f"a JSON object with one of {PROMPT_FIELDS}")
    spoken = _conversation(row, place=place)
    system, turns = spoken if spoken is not None else (None, _plain_turns(row, place=place))
    if not turns:
        return None
    own_system = _optional_text(row, "system", place=place)
    reference, extra = row.get("reference"), dict[str, Any]()
    own_domain, category = (_optional_text(row, key, place=place) for key in ("domain", "category"))
    if category is not None and "question_id" in row:
        extra = {"category": category}
        category = SPEC_BENCH_GROUPS.get(category, category)
    if reference is not None:
        extra |= reference if isinstance(reference, Mapping) else {"reference": reference}
    return Prompt(
        id=_id(row, place=place, number=number),
        task=task,
        domain=own_domain or category or domain or DEFAULT_DOMAIN,
        turns=turns,
        system=own_system if own_system is not None else system,
        reference=extra,
    )


def _plain_turns(row: Mapping[str, Any], *, place: Place) -> tuple[str, ...]:
    if row.get("turns") is not None:
        turns = row["turns"]
        if not isinstance(turns, list) or not turns:
            raise place.error(f'"turns" is {place.quote(turns)}', "a non-empty list of strings")
        return tuple(_text(turn, f"turn {i}", place=place) for i, turn in enumerate(turns, start=1))
    for key in ("prompt", "question", "instruction"):
        if row.get(key) is not None:
            text = _text(row[key], f'"{key}"', place=place)
            context = _optional_text(row, "input", place=place) if key == "instruction" else None
            return (text if context is None else f"{text}\n\nInput:\n{context}",)
    fields = ", ".join(sorted(place.quote(key) for key in row)[:8]) or "none"
    raise place.error(f"no prompt in the row (fields: {fields})", f"one of {PROMPT_FIELDS}")


def _conversation(row: Mapping[str, Any], *, place: Place) -> tuple[str | None, tuple[str, ...]] | None:
    """(system, human turns) of a ShareGPT or chat-message row; None when the row is of another kind."""
    if row.get("turns") is not None:
        return None
    for field, who, what in (("conversations", "from", "value"), ("messages", "role", "content")):
        if row.get(field) is None:
            continue
        if not isinstance(row[field], list):
            raise place.error(f'"{field}" is {place.quote(row[field])}', f'a list of objects with "{who}" and "{what}"')
        system: str | None = None
        turns: list[str] = []
        for i, message in enumerate(row[field], start=1):
            if not isinstance(message, Mapping) or who not in message:
                raise place.error(f"message {i} is {place.quote(message)}", f'an object with "{who}" and "{what}"')
            speaker = message[who]
            if not isinstance(speaker, str) or speaker not in HUMAN | MODEL | {"system"}:
                known = ", ".join(sorted(HUMAN | MODEL | {"system"}))
                raise place.error(f"message {i} is from {place.quote(speaker)}", f"one of {known}")
            if speaker == "system":
                system = _optional_text(message, what, place=place)
            elif speaker in HUMAN and message.get(what) == "":
                return None, ()  # ShareGPT holds some: what was said is lost, so the conversation cannot be run
            elif speaker in HUMAN:
                turns.append(_text(message.get(what), f"message {i}", place=place))
        return system, tuple(turns)
    return None


def _id(row: Mapping[str, Any], *, place: Place, number: int) -> str:
    for key in ("id", "question_id"):
        value = row.get(key)
        if value is None:
            continue
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        return _text(value, f'"{key}"', place=place)
    return f"row-{number}"


def _optional_text(row: Mapping[str, Any], key: str, *, place: Place) -> str | None:
    value = row.get(key)
    if value is None or value == "":
        return None
    return _text(value, f'"{key}"', place=place)


def _text(value: Any, what: str, *, place: Place) -> str:
    if not isinstance(value, str) or not value.strip():
        raise place.error(f"{what} is {place.quote(value)}", "a non-empty string")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise place.error(f"{what} holds half of a surrogate pair", "valid Unicode text") from None
    return value
