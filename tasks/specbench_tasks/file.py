"""A prompt file as a task: ``PLUGIN(path, domain=None)`` gives the task in a JSONL file."""

from __future__ import annotations

from specbench_tasks._files import load_file

PLUGIN = load_file
