"""Starter math prompts: word problems, small algebra, units, geometry and explained steps."""

from __future__ import annotations

from specbench_tasks._starter import StarterTask

PLUGIN = StarterTask(name="starter-math", domain="math")
