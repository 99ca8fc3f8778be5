"""Starter tasks: prompts that were written for this project and travel with the package."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from specbench.types import Prompt
from specbench_tasks._files import parse
from specbench_tasks._prompts import content_hash, sample


@dataclass(frozen=True, slots=True)
class StarterTask:
    """The prompts of ``data/NAME.jsonl`` (hyphens as underscores), read on first use."""

    name: str
    domain: str

    @property
    def version(self) -> str:
        """The set's generation and the hash of its content."""
        return f"1-{content_hash(_load(self.name, self.domain))}"

    def prompts(self, *, limit: int | None = None, seed: int = 0) -> list[Prompt]:
        """At most ``limit`` prompts in file order, a seeded sample if fewer than all. Errors: TaskError."""
        return sample(_load(self.name, self.domain), limit=limit, seed=seed)


@cache
def _load(name: str, domain: str) -> tuple[Prompt, ...]:
    path = files("specbench_tasks") / "data" / f"{name.replace('-', '_')}.jsonl"
    prompts, left_out = parse(path.read_bytes(), source=path.name, task=name, domain=domain)
    assert not left_out
    return tuple(prompts)
