"""LiveCodeBench (Jain et al. 2024), code generation, release 6: 1055 contest problems.

Problems with starter code ask for a class, the others for a program from standard input to standard output. The
hidden tests are gigabytes and stay out of the reference; ``question_id`` finds them.
"""

from __future__ import annotations

from specbench.types import Prompt
from specbench_tasks._hub import HubSource, HubTask, Row

_ROLE = (
    "You are an expert Python programmer. You will be given a question (problem specification) and will generate a "
    "correct Python program that matches the specification and passes all tests. You will NOT return anything except "
    "for the program"
)


def _convert(row: Row) -> Prompt:
    starter = row.optional_text("starter_code")
    shape, code = "Write your code in the following format", "# YOUR CODE HERE"
    if starter is not None:
        shape, code = "Use the following code structure", starter
    text = (
        f"{_ROLE}\n\n### Question:\n{row.text('question_content')}\n\n### Format: {shape}:\n```python\n{code}\n```\n\n"
        "### Answer: (use the provided format with backticks)"
    )
    return row.prompt(text, id=row.text("question_id"), reference=row.pick("question_id", "starter_code"))


PLUGIN = HubTask(
    name="livecodebench",
    domain="code",
    source=HubSource(
        "livecodebench/code_generation_lite",
        split="test",
        files=("test.jsonl", *(f"test{n}.jsonl" for n in range(2, 7))),
        columns=("question_id", "question_content", "starter_code"),
    ),
    convert=_convert,
)
