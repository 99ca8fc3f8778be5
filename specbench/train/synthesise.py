"""Prompts that the target writes itself: it continues the chat header of a user's turn (Xu et al. 2024, "Magpie").

Candidate ``number`` has one opener and one stream of random numbers, so it is the same in every run.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.errors import ConfigError, TrainDataError
from specbench.prompting import Renderer, request_number
from specbench.train.manifest import sha256_file, write_durably
from specbench.train.openers import Opener, draw_opener
from specbench.types import Prompt, Request, Sampling

TASK = "synthesised"
_MARK = "THE-USER-SPEAKS-HERE"
_SHORTEST, _LONGEST = 12, 1500  # characters of a usable turn


@dataclass(frozen=True, slots=True)
class Candidate:
    """A user turn to be written."""

    number: int
    domain: str
    opener: Opener

    @property
    def id(self) -> str:
        """Name of the prompt that it may become."""
        return f"{self.domain}-{self.number:07d}"


def candidate(number: int, *, domains: Sequence[str], seed: int) -> Candidate:
    """Candidate ``number``; domains take turns."""
    domain = domains[number % len(domains)]
    return Candidate(number, domain, draw_opener(domain, seed=seed, number=number))


def header_ids(renderer: Renderer, opener: Opener) -> tuple[int, ...]:
    """Tokens of the chat up to where the user's turn begins, and its first words.

    Errors: ConfigError when the target has no chat template, or one that hides where the turn begins.
    """
    if not renderer.has_template:
        raise ConfigError("the target has no chat template, so it cannot write a user's turn; give prompts instead")
    messages = [{"role": "system", "content": opener.system}] if opener.system else []
    messages.append({"role": "user", "content": _MARK})
    try:
        text = renderer.tokenizer.apply_chat_template(messages, tokenize=False)
    except Exception:  # a template may refuse a system message in whatever way its author chose
        text = renderer.tokenizer.apply_chat_template(messages[-1:], tokenize=False)
    before, mark, _ = text.partition(_MARK)
    if not mark:
        raise ConfigError("the target's chat template changes what the user says; give prompts instead")
    return tuple(renderer.tokenizer(before + opener.text, add_special_tokens=False).input_ids)


def turn_request(
    wanted: Candidate,
    renderer: Renderer,
    *,
    sampling: Sampling,
    seed: int,
    max_new_tokens: int,
    stop_ids: frozenset[int],
) -> Request:
    """The generation in which the target finishes the user's turn."""
    return Request(
        id=wanted.id,
        number=request_number(task=TASK, prompt=wanted.id, turn=0),
        prompt_ids=header_ids(renderer, wanted.opener),
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        seed=seed,
        stop_ids=stop_ids,
        ignore_eos=False,
        task=TASK,
        domain=wanted.domain,
    )


def turn_prompt(wanted: Candidate, written: str, *, stopped: bool, refused: Counter[str]) -> Prompt | None:
    """The finished turn as a prompt, or None with the reason counted: cut off, too short, too long, broken text."""
    text = (wanted.opener.text + written).strip()
    reason = None
    if not stopped:
        reason = "turn was cut off"
    elif len(text) < _SHORTEST:
        reason = "turn is too short"
    elif len(text) > _LONGEST:
        reason = "turn is too long"
    elif "�" in text or any(not c.isprintable() and c not in "\n\t" for c in text):
        reason = "turn holds broken text"
    if reason is not None:
        refused[reason] += 1
        return None
    opener = wanted.opener
    turns = (text + opener.ending, *((opener.then,) if opener.then is not None else ()))
    return Prompt(id=wanted.id, task=TASK, domain=wanted.domain, turns=turns)


def write_prompt_shard(path: Path, prompts: Sequence[Prompt], *, refused: Counter[str], last: int) -> dict[str, Any]:
    """Write accepted turns durably; the entry for the manifest. ``last``: candidates looked at so far."""
    lines = [json.dumps({"id": p.id, "domain": p.domain, "turns": list(p.turns)}) + "\n" for p in prompts]
    write_durably(path, "".join(lines).encode())
    return {
        "name": path.name,
        "sha256": sha256_file(path),
        "prompts": len(prompts),
        "candidates": last,
        "refused": dict(sorted(refused.items())),
    }


def read_prompt_shard(path: Path) -> list[Prompt]:
    """The turns of a shard. Errors: TrainDataError."""
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return [Prompt(id=r["id"], task=TASK, domain=r["domain"], turns=tuple(r["turns"])) for r in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TrainDataError(f"{path} cannot be read ({error}); delete its folder and prepare again") from error
