"""The recorder: raw rounds and steps as they happen; nothing is computed here."""

from __future__ import annotations

from typing import Any

from specbench.engine.clock import PhaseTimer
from specbench.engine.sequence import Sequence
from specbench.engine.verify import Judged
from specbench.types import RoundTrace, StepTrace

_PHASES = ("draft", "schedule", "verify", "accept", "other")


class Recorder:
    """Collects rounds and steps. Phase marks are resolved when the run is closed."""

    def __init__(self, timer: PhaseTimer) -> None:
        self._timer = timer
        self.rounds: list[RoundTrace] = []
        self._steps: list[tuple[float, list[tuple[str, Any, Any]], tuple[int, int, int, int]]] = []

    @property
    def step(self) -> int:
        """Number of the step in progress."""
        return len(self._steps)

    def add_step(self, start_s: float, marks: list[tuple[str, Any, Any]], counts: tuple[int, int, int, int]) -> None:
        """``counts``: decode rows, decode tokens, prefill rows, prefill tokens."""
        self._steps.append((start_s, marks, counts))

    def steps(self) -> tuple[StepTrace, ...]:
        """All steps, with phases in seconds."""
        out = []
        for number, (start_s, marks, counts) in enumerate(self._steps):
            seconds = self._timer.seconds(marks)
            assert set(seconds) <= set(_PHASES), seconds
            spent = {f"{p}_s": seconds.get(p, 0.0) for p in _PHASES}
            rows, tokens, prefill_rows, prefill_tokens = counts
            out.append(
                StepTrace(
                    step=number,
                    start_s=start_s,
                    decode_rows=rows,
                    decode_tokens=tokens,
                    prefill_rows=prefill_rows,
                    prefill_tokens=prefill_tokens,
                    **spent,
                )
            )
        return tuple(out)


def cut(tokens: list[int], *, stops: frozenset[int], room: int) -> tuple[list[int], str | None]:
    """Tokens that are committed of a round's candidates, and why the request ends with them (None: it goes on).

    Nothing after a stop token or past ``room`` is committed; the stop token itself is.
    """
    for i, token in enumerate(tokens[:room]):
        if token in stops:
            return tokens[: i + 1], "stop"
    return tokens[:room], "length" if len(tokens) >= room else None


def make_round(
    sequence: Sequence,
    *,
    step: int,
    row: int,
    drafts: list[int],
    planned: int,
    judged: Judged,
    committed: list[int],
    stop_reason: str | None,
    confidence: list[float] | None,
    policy_state: str,
) -> RoundTrace:
    """The round record of metrics.md for one row, before the sequence is advanced."""
    accepted = judged.accepted[row]
    discarded = accepted + 1 - len(committed)
    if len(committed) <= accepted and discarded > 0:
        discarded -= 1  # the target's own token was never due: the cut came before it
    gaps = judged.top2_gap[row] if judged.top2_gap is not None else None
    log_p = judged.log_p_target[row] if judged.log_p_target is not None else None
    log_q = judged.log_p_draft[row] if judged.log_p_draft is not None else None
    return RoundTrace(
        request=sequence.request.id,
        round=sequence.rounds,
        step=step,
        anchor_position=sequence.computed,
        drafted=len(drafts),
        planned=planned,
        verified=planned,
        accepted=accepted,
        committed=len(committed),
        discarded=discarded,
        stop_reason=stop_reason,
        draft_ids=tuple(drafts),
        committed_ids=tuple(committed),
        confidence=None if confidence is None else tuple(confidence[: len(drafts)]),
        top2_gap=None if gaps is None else tuple(gaps[: len(committed)]),
        log_p_target=None if log_p is None else tuple(log_p[:planned]),
        log_p_draft=None if log_q is None else tuple(log_q[:planned]),
        policy_state=policy_state,
    )
