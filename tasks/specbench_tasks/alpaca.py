"""Alpaca (Taori et al. 2023): 52,002 short instructions, some with an input text."""

from __future__ import annotations

from specbench.types import Prompt
from specbench_tasks._hub import HubSource, HubTask, Row


def _convert(row: Row) -> Prompt:
    context = row.optional_text("input")
    text = row.text("instruction") if context is None else f"{row.text('instruction')}\n\nInput:\n{context}"
    return row.prompt(text, reference=row.pick("output"))


PLUGIN = HubTask(
    name="alpaca",
    domain="chat",
    source=HubSource("tatsu-lab/alpaca", split="train", columns=("instruction", "input", "output")),
    convert=_convert,
)
