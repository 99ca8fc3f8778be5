"""Policies driven by hand: rows, proposals and outcomes without a model, and a closed loop on a scripted cost table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specbench import registry
from specbench.engine.cost_table import CostTable, read
from specbench.engine.policy import PolicyContext
from specbench.types import Load, Proposal, Rows, Verdict

TABLES = Path(__file__).parent / "data" / "cost_tables"
CPU = torch.device("cpu")


def staircase() -> CostTable:
    """The committed GPU-like staircase with a price of drafting."""
    return read(TABLES / "gpu_staircase.json")


def make_policy(name: str, draft_length: int, *, cost: CostTable | None = None, rows: int = 64, **context: Any) -> Any:
    """A policy by its full text (``load-aware:lag=2``)."""
    head, colon, argument = name.partition(":")
    made = PolicyContext(max_rows=rows, device=CPU, cost=cost, **{"method": "dspark", **context})
    return registry.load("policies", head)(draft_length, argument if colon else None, context=made)


def make_rows(
    count: int,
    *,
    numbers: Sequence[int] | None = None,
    slots: Sequence[int] | None = None,
    anchors: Sequence[int] | None = None,
    domains: Sequence[int] | None = None,
) -> Rows:
    """Rows of a decode step; row i is request i in slot i unless said otherwise."""
    held = list(range(count)) if slots is None else list(slots)
    lengths = [3] * count if anchors is None else list(anchors)
    ones = torch.ones(count)
    return Rows(
        slots=torch.tensor(held),
        lengths=torch.tensor(lengths),
        last_token=torch.zeros(count, dtype=torch.int64),
        domain_id=torch.zeros(count, dtype=torch.int64) if domains is None else torch.tensor(list(domains)),
        temperature=ones,
        top_p=ones,
        top_k=torch.full((count,), 8),
        seed=torch.zeros(count, dtype=torch.int64),
        number=torch.arange(count) if numbers is None else torch.tensor(list(numbers)),
        slots_host=tuple(held),
        lengths_host=tuple(lengths),
        all_greedy=False,
        any_truncated=False,
        numbers_host=tuple(range(count)) if numbers is None else tuple(numbers),
    )


def load(step: int, *, running: int = 1, prefill: int = 0) -> Load:
    """The engine's load at a step."""
    return Load(num_running=running, num_waiting=0, prefill_tokens=prefill, step=step)


def proposal(confidence: Tensor | None, counts: Tensor, *, width: int | None = None) -> Proposal:
    """Drafts of token 1 with these confidences [B, G]."""
    g = (confidence.shape[1] if confidence is not None else 0) if width is None else width
    tokens = torch.ones(counts.shape[0], g, dtype=torch.int64)
    return Proposal(tokens, counts, None, confidence)


@dataclass(frozen=True)
class Served:
    """What a closed loop of ``rows`` users delivered."""

    tokens_per_s: float
    budget: float  # tokens verified a row and cycle, the anchor included
    drafting: float  # share of row rounds with drafts


DIFFICULTY = ((0.96, 0.99), (0.85, 0.95), (0.35, 0.9))  # chance of the first draft, and what each later one keeps


def closed_loop(
    policy: Any, *, rows: int, cycles: int, cost: CostTable, seed: int = 0, drafts: int = 7, honest: bool = True
) -> Served:
    """Users whose next drafts are easy, medium or hopeless, for a while; confidences tell the truth.

    The step takes what the table says for its tokens and its drafting rows. Without ``honest`` the drafter gives no
    confidences.
    """
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.tensor(DIFFICULTY, dtype=torch.float64)
    kind = torch.randint(0, 3, (rows,), generator=generator)
    anchors = [50 + 7 * r for r in range(rows)]
    price = cost.draft["dspark"]
    tokens = seconds = verified = drafting = 0.0
    for step in range(cycles):
        noise = torch.rand(rows, drafts + 1, generator=generator, dtype=torch.float64)
        kind = torch.where(noise[:, drafts] < 0.05, torch.randint(0, 3, (rows,), generator=generator), kind)
        first, keep = kinds[kind].unbind(dim=1)
        truth = first[:, None] * keep[:, None] ** torch.arange(drafts)  # [R, drafts], conditional
        state = make_rows(rows, anchors=anchors, domains=[0] * rows)
        now = load(step, running=rows)
        limits = policy.draft_limits(state, load=now)
        width = int(limits.max())
        made = proposal(truth[:, :width].float() if honest else None, limits, width=width)
        plan = policy.plan(state, proposal=made, load=now)
        accepted = ((noise[:, :width] < truth[:, :width]).long().cumprod(dim=1).sum(dim=1)).minimum(plan.lengths)
        policy.observe(state, plan=plan, verdict=Verdict(accepted, accepted))
        anchors = [a + int(n) + 1 for a, n in zip(anchors, accepted, strict=True)]
        batch = rows + int(plan.lengths.sum())
        drafters = int((limits > 0).sum())
        seconds += float(cost.seconds(batch)) + (float(price.at(drafters)) if drafters else 0.0)
        tokens += rows + int(accepted.sum())
        verified += batch
        drafting += drafters
    return Served(tokens / seconds, verified / (rows * cycles), drafting / (rows * cycles))
