"""vLLM in an environment of its own, which `make test-engines` makes and names by SPECBENCH_ENGINE_PYTHON."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from specbench.resolve import resolve_target, silent_step


@pytest.fixture(scope="session")
def engine_python() -> str:
    found = os.environ.get("SPECBENCH_ENGINE_PYTHON")
    if not found:
        pytest.skip("SPECBENCH_ENGINE_PYTHON names no interpreter with vLLM; run `make test-engines`")
    return found


@pytest.fixture(scope="session")
def target() -> Path:
    return resolve_target("smollm2-135m", progress=silent_step).path


@pytest.fixture(scope="session")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Questions that begin their answers alike, so that a distribution shows in few of them."""
    path = tmp_path_factory.mktemp("prompts") / "sums.jsonl"
    lines = [json.dumps({"id": str(i), "prompt": f"What is {i} plus {i + 1}?"}) for i in range(64)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "texts.jsonl"
    asked = [
        "Count from 1 to 30, one number a line.", "Repeat the word 'banana' twelve times.",
        "Write a Python function that adds two numbers.", "Name the months of the year, then name them again.",
    ]  # fmt: skip
    path.write_text("".join(json.dumps({"id": f"t{i}", "prompt": text}) + "\n" for i, text in enumerate(asked)))
    return path
