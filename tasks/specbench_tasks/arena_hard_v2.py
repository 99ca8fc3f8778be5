"""Arena-Hard v2.0 (Li et al. 2024, repository lmarena/arena-hard-auto): 500 hard and 250 creative user prompts."""

from __future__ import annotations

from specbench.types import Prompt
from specbench_tasks._hub import HubSource, HubTask, Row


def _convert(row: Row) -> Prompt:
    return row.prompt(row.text("prompt"), id=row.text("uid"), reference=row.pick("category", "subcategory"))


PLUGIN = HubTask(
    name="arena-hard-v2",
    domain="chat",
    source=HubSource(
        "lmarena-ai/arena-hard-auto",
        split="train",
        files=("data/arena-hard-v2.0/question.jsonl",),
        columns=("uid", "category", "subcategory", "prompt"),
    ),
    convert=_convert,
)
