"""Playing fields: named sets of prompts, one module a task, and prompt files of one's own."""

from __future__ import annotations

from specbench_tasks._files import FileTask, load_file

__all__ = ["FileTask", "load_file"]
