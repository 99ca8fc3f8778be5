"""Prompt files: JSON lines (or one JSON array) in the shapes that the field uses.

A row is an object with ``turns`` (Spec-Bench's question file among them), ``conversations`` (ShareGPT), ``messages``
or one of ``prompt``, ``question``, ``instruction``; see ``_rows.py``.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.errors import TaskError
from specbench.types import Prompt
from specbench_tasks._prompts import content_hash, sample
from specbench_tasks._rows import PROMPT_FIELDS, Place, to_prompt


@dataclass(frozen=True, slots=True)
class FileTask:
    """A task read from a file. ``left_out`` counts conversations without a usable human turn; ``domain`` is "mixed" if
    the rows disagree; ``version`` is the hash of the content.
    """

    name: str
    domain: str
    version: str
    rows: tuple[Prompt, ...]
    left_out: int = 0

    def prompts(self, *, limit: int | None = None, seed: int = 0) -> list[Prompt]:
        """At most ``limit`` prompts in file order, a seeded sample if fewer than all. Errors: TaskError."""
        return sample(self.rows, limit=limit, seed=seed)


def load_file(path: str | Path, *, domain: str | None = None, name: str | None = None) -> FileTask:
    """The task in a prompt file. ``domain`` is for rows that name none; ``name`` defaults to the file's stem.

    Conversations in which no human speaks, or says nothing, cannot be run: they are counted, left out and warned about.

    Errors: TaskError with file and line when the file cannot be read, is empty or malformed.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise TaskError(f"task file {path} does not exist; give the path of a .jsonl file of prompts") from None
    except IsADirectoryError:
        raise TaskError(f"task file {path} is a folder; give the path of a .jsonl file of prompts") from None
    except (OSError, ValueError) as error:
        raise TaskError(f"task file {path} cannot be read: {error}; give a readable .jsonl file") from None
    task = name if name is not None else path.stem
    rows, left_out = parse(data, source=str(path), task=task, domain=domain)
    if left_out:
        warnings.warn(f"{path}: left out {left_out} conversation(s) without a usable human turn", stacklevel=2)
    domains = {prompt.domain for prompt in rows}
    return FileTask(
        name=task,
        domain=domains.pop() if len(domains) == 1 else "mixed",
        version=content_hash(rows),
        rows=tuple(rows),
        left_out=left_out,
    )


def parse(data: bytes, *, source: str, task: str, domain: str | None = None) -> tuple[list[Prompt], int]:
    """Prompts of a file's bytes, and the number of conversations without a usable human turn.

    Errors: TaskError naming ``source`` and the line.
    """
    prompts: list[Prompt] = []
    first_line: dict[str, int] = {}
    left_out = 0
    for line, row in records(data, source=source):
        place = Place(source, line)
        prompt = to_prompt(row, place=place, number=len(prompts) + left_out + 1, task=task, domain=domain)
        if prompt is None:
            left_out += 1
            continue
        if prompt.id in first_line:
            seen = f"id {json.dumps(prompt.id)} was already on line {first_line[prompt.id]}"
            raise place.error(seen, "ids that are unique in the file")
        first_line[prompt.id] = line
        prompts.append(prompt)
    if not prompts:
        what = "no conversation has a usable human turn" if left_out else "the file holds no rows"
        raise Place(source, 1).error(what, f"one JSON object a line with one of {PROMPT_FIELDS}")
    return prompts, left_out


def records(data: bytes, *, source: str) -> Iterator[tuple[int, Any]]:
    """(line, value) of every JSON value of JSON lines, or of the items of a file that is one JSON array.

    Errors: TaskError naming ``source`` and the line.
    """
    try:
        text = data.removeprefix(b"\xef\xbb\xbf").decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Place(source, line).error(
            f"byte 0x{data[error.start]:02x} is not UTF-8", "a text file in UTF-8"
        ) from None
    if text.lstrip().startswith("["):
        yield from _array_items(text, source=source)
        return
    for line, content in enumerate(text.split("\n"), start=1):  # not splitlines: U+2028 may stand inside a string
        if content.strip():
            place = Place(source, line)
            value, end = _decode(content, len(content) - len(content.lstrip()), place=place)
            if content[end:].strip():
                raise place.error(
                    f"{place.quote(content[end:].strip())} follows the JSON value", "one JSON object a line"
                )
            yield line, value


def _array_items(text: str, *, source: str) -> Iterator[tuple[int, Any]]:
    at, counted, line = text.index("[") + 1, 0, 1
    expected = "]"  # an empty array may close at once; after a comma it may not
    while True:
        at = _skip_space(text, at)
        line, counted = line + text.count("\n", counted, at), at
        place = Place(source, line)
        if expected and text.startswith(expected, at):
            if text[at + 1 :].strip():
                seen = f"{place.quote(text[at + 1 :].strip())} follows the JSON array"
                raise place.error(seen, "either one JSON array or one JSON object a line")
            return
        value, at = _decode(text, at, place=place)
        yield line, value
        at = _skip_space(text, at)
        if text.startswith(",", at):
            at, expected = at + 1, ""
        elif text.startswith("]", at):
            expected = "]"
        else:
            line, counted = line + text.count("\n", counted, at), at
            raise Place(source, line).error("an item of the JSON array does not end", "',' or ']' after it")


def _skip_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _decode(text: str, at: int, *, place: Place) -> tuple[Any, int]:
    try:
        return json.JSONDecoder().raw_decode(text, at)
    except json.JSONDecodeError as error:
        line = place.line + text.count("\n", at, error.pos)
        column = error.pos - text.rfind("\n", 0, error.pos)
        seen = f"not JSON ({error.msg} at column {column})"
        raise Place(place.source, line).error(seen, "one JSON object a line") from None
    except (ValueError, RecursionError) as error:  # a number with thousands of digits; thousands of nested brackets
        reason = "nested too deeply" if isinstance(error, RecursionError) else "a number with too many digits"
        raise place.error(f"JSON that cannot be read ({reason})", "one JSON object a line") from None
