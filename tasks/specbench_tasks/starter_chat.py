"""Starter chat prompts: advice, plans, letters, rewriting, role play and small talk."""

from __future__ import annotations

from specbench_tasks._starter import StarterTask

PLUGIN = StarterTask(name="starter-chat", domain="chat")
