"""MATH-500: the 500 problems of MATH (Hendrycks et al. 2021) held out by Lightman et al. 2023."""

from __future__ import annotations

from specbench.types import Prompt
from specbench_tasks._hub import HubSource, HubTask, Row
from specbench_tasks._wording import math_question


def _convert(row: Row) -> Prompt:
    reference = row.pick("answer", "subject", "level")
    return row.prompt(math_question(row.text("problem")), id=row.optional_text("unique_id"), reference=reference)


PLUGIN = HubTask(
    name="math500",
    domain="math",
    source=HubSource("HuggingFaceH4/MATH-500", split="test", columns=("problem", "answer", "unique_id")),
    convert=_convert,
)
