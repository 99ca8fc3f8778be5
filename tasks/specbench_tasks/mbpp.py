"""MBPP, sanitized (Austin et al. 2021): 257 one-sentence Python problems of the test split."""

from __future__ import annotations

from specbench.types import Prompt
from specbench_tasks._hub import HubSource, HubTask, Row


def _convert(row: Row) -> Prompt:
    reference = row.pick("task_id", "code", "test_imports", "test_list")
    return row.prompt(row.text("prompt"), id=f"mbpp-{row.values.get('task_id', row.number)}", reference=reference)


PLUGIN = HubTask(
    name="mbpp",
    domain="code",
    source=HubSource(
        "google-research-datasets/mbpp",
        split="test",
        config="sanitized",
        columns=("task_id", "prompt", "code", "test_imports", "test_list"),
    ),
    convert=_convert,
)
