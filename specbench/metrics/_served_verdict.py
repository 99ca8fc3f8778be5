"""What a verdict on a server rests on: whether it drafted, what was compared, and what a difference can mean."""

from __future__ import annotations

from specbench.metrics._measured import measured
from specbench.types import RunTrace

FULL_PRECISION = "float32"


def served_drafting(method: RunTrace) -> int | None:
    """How many steps verified a draft, at least, over the measured requests; None where the server does not tell."""
    names = {request.id for request in measured(method).requests}
    entries = [entry for entry in method.served if entry.request in names]
    steps = [entry.draft_steps for entry in entries if entry.draft_steps is not None]
    if steps:
        return sum(steps)
    drafted = [entry.drafted for entry in entries if entry.drafted is not None]
    if drafted:  # no step drafts more than the draft length
        return -(-sum(drafted) // max(method.draft_length, 1))
    counts = method.server.counts if method.server is not None else None
    return None if counts is None else counts.draft_steps


def _compared(method: RunTrace, control: RunTrace) -> str:
    kinds = {entry.ids_from for trace in (method, control) for entry in trace.served}
    return "the servers' token ids" if kinds <= {"server"} else "texts, tokenised here"


def served_reason(method: RunTrace, control: RunTrace, *, failed: bool, reason: str) -> tuple[str | None, str]:
    """(another outcome, or None; the reason with what was compared).

    A server gives no logits: at temperature 0 a text that leaves the control's may do so at a tie. In float32 that is
    rare and counts as a failure; in fewer digits the order of additions decides often, and nothing is concluded.
    """
    text = f"{reason}; compared: {_compared(method, control)}"
    if not failed or method.sampling.temperature > 0:
        return None, text
    dtype = method.server.dtype if method.server is not None else FULL_PRECISION
    if dtype == FULL_PRECISION:
        return None, text
    return "inconclusive", f"{text}; the server computes in {dtype} and gives no logits, so that ties cannot be told"
