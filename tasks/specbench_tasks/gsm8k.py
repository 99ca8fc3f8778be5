"""GSM8K: grade-school word problems (Cobbe et al. 2021), test split."""

from __future__ import annotations

from specbench.types import Prompt
from specbench_tasks._hub import HubSource, HubTask, Row
from specbench_tasks._wording import math_question


def _convert(row: Row) -> Prompt:
    return row.prompt(math_question(row.text("question")), reference=row.pick("answer"))


PLUGIN = HubTask(
    name="gsm8k",
    domain="math",
    source=HubSource("openai/gsm8k", split="test", config="main", columns=("question", "answer")),
    convert=_convert,
)
