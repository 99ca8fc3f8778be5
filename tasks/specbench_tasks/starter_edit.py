"""Starter edit prompts: a given text to correct, reformat or summarise, so that the output overlaps the input."""

from __future__ import annotations

from specbench_tasks._starter import StarterTask

PLUGIN = StarterTask(name="starter-edit", domain="edit")
