"""Cost of planning: share of a decoding cycle that a policy takes, at 64 rows and 7 drafts, in the real engine.

The schedule phase holds everything that a policy adds to a cycle: limits, plan and learning. The drafter is scripted
(random drafts, given confidences), so that the cycle holds the target's forward and next to no drafting: the share is
an upper bound for real drafters.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from specbench import registry
from specbench.engine.cost_table import CostTable, RowCost
from specbench.engine.engine import Engine
from specbench.engine.policy import PolicyContext
from specbench.engine.target import Target
from specbench.resolve import resolve_target
from specbench.session import choose_device, choose_dtype
from specbench.types import Proposal, Request, Rows, Sampling, StepTrace, Taps

ROWS, DRAFTS, CYCLES, WARMUP = 64, 7, 12, 3
POLICIES = (
    "fixed",
    "threshold:0.5",
    "algorithm1",
    "load-aware:lag=2",
    "load-aware:lag=2,online=on",
    "load-aware:lag=2,draft-cost=on",
)


class RandomDrafter:
    """Random drafts with random confidences; holds nothing."""

    taps = Taps()
    trained_length = DRAFTS
    max_context: int | None = None
    options: ClassVar[Mapping[str, str]] = {}

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def propose(self, rows: Rows, *, limits: Tensor, rng: Any) -> Proposal:
        """Uniform drafts; confidences fall with position."""
        u = rng.draft(rows, DRAFTS)  # [B, G]
        tokens = (u * self._vocab_size).to(torch.int64)
        return Proposal(tokens, limits, None, (0.5 + 0.5 * u).to(torch.float32))

    def begin(self, rows: Rows) -> None:
        """Nothing to forget."""

    def prefill(self, rows: Rows, features: Any) -> None:
        """Nothing to read."""

    def commit(self, rows: Rows, *, verdict: Any, features: Any) -> None:
        """Nothing to keep."""

    def release(self, slots: Any) -> None:
        """Nothing to free."""

    def state_bytes(self) -> int:
        """No state."""
        return 0


def cost_by_tokens() -> CostTable:
    """A rising table with a point at every token count, as long as a real one."""
    tokens = tuple(range(1, ROWS * (DRAFTS + 1) + 1))
    rates = tuple(1.0 / (0.05 + 0.002 * m) for m in tokens)
    draft = {"bench": RowCost((1, ROWS), (0.001, 0.01))}
    return CostTable(tokens, rates, tokens[-1], draft=draft)


def cycles(target: Target, policy_text: str) -> list[StepTrace]:
    """Decode cycles of 64 rows under a policy, the warm ones."""
    head, colon, argument = policy_text.partition(":")
    device = target.lm.device
    context = PolicyContext(
        max_rows=ROWS, device=device, method="bench", cost=cost_by_tokens(), temperatures=(1.5,) * DRAFTS
    )
    policy = registry.load("policies", head)(DRAFTS, argument if colon else None, context=context)
    engine = Engine(
        target, RandomDrafter(target.vocab_size), policy, max_rows=ROWS, max_context=192, prefill_budget=ROWS * 8
    )
    for number in range(ROWS):
        engine.submit(
            Request(
                id=f"bench/{number}",
                number=number,
                prompt_ids=tuple(100 + number + i for i in range(8)),
                max_new_tokens=180,
                sampling=Sampling(),
                seed=0,
                stop_ids=frozenset(),
                ignore_eos=True,
                task="bench",
                domain="bench",
            )
        )
    for _ in range(1 + WARMUP + CYCLES):
        engine.poll()
    steps = engine.close().steps
    assert all(step.decode_rows == ROWS for step in steps[1:])
    return list(steps[1 + WARMUP :])


def main(target_name: str = "smollm2-135m") -> None:
    """Print the share of each policy. The target is fetched into the cache if it is not there."""
    device = choose_device("auto")
    dtype = choose_dtype("auto", device=device)
    target = Target.load(resolve_target(target_name).path, dtype=dtype, device=device)
    print(f"planning at {ROWS} rows and {DRAFTS} drafts, {target_name}, {dtype}, {device}")
    for text in POLICIES:
        steps = cycles(target, text)
        schedule = statistics.median(step.schedule_s for step in steps)
        whole = statistics.median(step.total_s for step in steps)
        share = sum(step.schedule_s for step in steps) / sum(step.total_s for step in steps)
        print(f"  {text:<34} {1e3 * schedule:8.3f} ms of {1e3 * whole:9.1f} ms a cycle: {share:7.3%}")


if __name__ == "__main__":
    main()
