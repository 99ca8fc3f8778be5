"""AIME 2025: the 30 problems of both papers, as published by MathArena."""

from __future__ import annotations

from specbench.types import Prompt
from specbench_tasks._hub import HubSource, HubTask, Row
from specbench_tasks._wording import math_question


def _convert(row: Row) -> Prompt:
    return row.prompt(math_question(row.text("problem")), reference=row.pick("answer", "problem_idx"))


PLUGIN = HubTask(
    name="aime25",
    domain="math",
    source=HubSource("MathArena/aime_2025", split="train", columns=("problem", "answer")),
    convert=_convert,
)
