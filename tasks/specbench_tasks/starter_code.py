"""Starter code prompts: short functions, bug fixes, explanations, docstrings, SQL and regular expressions."""

from __future__ import annotations

from specbench_tasks._starter import StarterTask

PLUGIN = StarterTask(name="starter-code", domain="code")
