"""MT-Bench (Zheng et al. 2023): 80 conversations of two turns in eight categories."""

from __future__ import annotations

from specbench.types import Prompt
from specbench_tasks._hub import HubSource, HubTask, Row


def _convert(row: Row) -> Prompt:
    number = row.values.get("prompt_id")
    return row.prompt(
        *row.texts("prompt"),
        id=None if number is None else str(number),
        reference=row.pick("category", "reference"),
    )


PLUGIN = HubTask(
    name="mt-bench",
    domain="chat",
    source=HubSource("HuggingFaceH4/mt_bench_prompts", split="train", columns=("prompt", "prompt_id", "category")),
    convert=_convert,
)
