"""Small real runs for tests: a tiny target and a prompt file, shared by the tests of a session."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support_models import tiny_llama_dir

PROMPTS = (
    ["hello there", "and again"],
    ["abc abc abc abc"],
    ["what is 2+2?"],
    ["name three colours, three shapes, three numbers"],
)


def write_prompts(path: Path, conversations: Sequence[Sequence[str]] = PROMPTS) -> Path:
    """A JSONL task file with these conversations."""
    path.write_text("".join(json.dumps({"turns": list(turns)}) + "\n" for turns in conversations))
    return path


@dataclass(frozen=True)
class TinyRun:
    """A folder with a target and a task file; ``flags`` are those of a run on them."""

    target: Path
    task: Path

    def flags(self, out: Path, **more: Any) -> dict[str, Any]:
        """What `build_run` takes."""
        return {
            "methods": "ngram", "target": str(self.target), "tasks": [str(self.task)], "dtype": "float32",
            "device": "cpu", "threads": 1, "max_new_tokens": 24, "out": out, **more,
        }  # fmt: skip

    def arguments(self, out: Path, *more: str) -> list[str]:
        """The same as a command line after ``specbench``."""
        return [
            "run", "--target", str(self.target), "--task", str(self.task), "--dtype", "float32", "--device", "cpu",
            "--threads", "1", "--max-new-tokens", "24", "--out", str(out), *more,
        ]  # fmt: skip


def tiny_run(folder: Path, **model: Any) -> TinyRun:
    """A tiny target and a task file under ``folder``."""
    return TinyRun(tiny_llama_dir(folder, **model), write_prompts(folder / "prompts.jsonl"))
