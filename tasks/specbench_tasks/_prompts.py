"""What every task does with its prompts: a stable sample of them and a hash of their content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from specbench.errors import TaskError
from specbench.types import Prompt


def content_hash(prompts: Sequence[Prompt]) -> str:
    """16 hexadecimal digits over everything in the prompts and their order; the task's name is left out."""
    digest = hashlib.sha256()
    for prompt in prompts:
        fields = [prompt.id, prompt.domain, prompt.system, list(prompt.turns), prompt.reference]
        digest.update(json.dumps(fields, sort_keys=True, default=str).encode("ascii"))
        digest.update(b"\n")
    return digest.hexdigest()[:16]


def sample(prompts: Sequence[Prompt], *, limit: int | None, seed: int) -> list[Prompt]:
    """At most ``limit`` prompts, in the order of the data; None takes all.

    The sample is made of the prompts with the smallest hash of (seed, id). So it depends neither on the order of
    the data nor on Python's random module, and a larger limit only adds to a smaller one.

    Errors: TaskError when ``limit`` is below 1.
    """
    if limit is None:
        return list(prompts)
    if limit < 1:
        raise TaskError(f"number of prompts is {limit}; give at least 1, or none for the whole task")
    if limit >= len(prompts):
        return list(prompts)
    chosen = set(sorted(range(len(prompts)), key=lambda i: _rank(prompts[i].id, seed=seed))[:limit])
    return [prompt for i, prompt in enumerate(prompts) if i in chosen]


def _rank(prompt_id: str, *, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}\n{prompt_id}".encode()).digest()
