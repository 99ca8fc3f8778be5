"""Faults that never show in greedy text: each is planted, and the check that must catch it does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any, ClassVar

import pytest
import torch
from scipy.stats import chi2
from specbench_drafters.draft_model import DraftModelDrafter
from specbench_drafters.vanilla import VanillaDrafter
from support_drafters import TableDrafter
from support_engine import outputs, prompts, request
from support_enumeration import breakpoints
from support_targets import tiny_model
from torch import Tensor

from specbench.engine.engine import Engine
from specbench.engine.policies.fixed import FixedPolicy
from specbench.engine.target import Target
from specbench.kernels.accept import accept_sampled
from specbench.kernels.probs import process_logits
from specbench.kernels.rng import Purpose, uniform
from specbench.kernels.sample import sample
from specbench.metrics._measured import measured
from specbench.metrics.alarms import depth_bins, find_alarms
from specbench.types import DraftLogits, Proposal, Rows, Sampling, VerifyPlan

# ------------------------------------------------------------------------- exact enumeration of the output distribution


def output_distribution(p_logits: Tensor, q_logits: Tensor, draw_draft: Callable[[Tensor], Tensor]) -> Tensor:
    """[V] float64: exact distribution of the first token after one draft, from the rule as it is implemented."""
    width = p_logits.shape[0]
    plain = {
        "temperature": torch.ones(1),
        "top_p": torch.ones(1),
        "top_k": torch.tensor([width]),
        "any_truncated": False,
    }
    target, target_norm = process_logits(p_logits[None], **plain)
    draft, draft_norm = process_logits(q_logits[None], **plain)
    q = breakpoints(draw_draft, 1, width)[0]

    def judge(drafts: Tensor, u_accept: Tensor, u_next: Tensor) -> tuple[Tensor, Tensor]:
        n = drafts.shape[0]
        found = accept_sampled(
            target.expand(2 * n, -1),
            target_norm.expand(2 * n),
            starts=torch.arange(n) * 2,
            lengths=torch.ones(n, dtype=torch.int64),
            drafts=drafts[:, None],
            draft=DraftLogits(draft.expand(n, 1, -1), draft_norm.expand(n, 1)),
            u_accept=u_accept[:, None],
            u_next=u_next,
        )
        return found.accepted, found.next_token

    every = torch.arange(width)
    low, high = torch.zeros(width, dtype=torch.float64), torch.ones(width, dtype=torch.float64)
    for _ in range(60):
        middle = (low + high) / 2
        accepted, _ = judge(every, middle, torch.zeros(width, dtype=torch.float64))
        low, high = torch.where(accepted == 1, middle, low), torch.where(accepted == 1, high, middle)
    chance = (low + high) / 2  # [V] acceptance probability of each draft
    drafts = every.repeat_interleave(width)
    surely = torch.full((width * width,), 1 - 2.0**-53, dtype=torch.float64)
    residual = breakpoints(lambda u: judge(drafts, surely, u)[1], width, width)  # [draft, V]
    return q * chance + ((q * (1 - chance))[:, None] * residual).sum(dim=0)


@pytest.mark.parametrize("seed", range(4))
def test_output_is_exact_to_a_millionth(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    p_logits, q_logits = torch.randn(2, 24, generator=generator) * 2
    norm = torch.logsumexp(q_logits, 0)

    def honest(u: Tensor) -> Tensor:
        return sample(q_logits.expand(len(u), -1), norm.expand(len(u)), u)

    def from_bfloat16(u: Tensor) -> Tensor:
        rounded = torch.softmax(q_logits.bfloat16(), dim=0).float()
        return sample(rounded.log().expand(len(u), -1), torch.zeros(len(u)), u)

    p = torch.softmax(p_logits.double(), dim=0)
    error = (output_distribution(p_logits, q_logits, honest) - p).abs().max()
    planted = (output_distribution(p_logits, q_logits, from_bfloat16) - p).abs().max()
    assert error < 1e-6
    assert planted > 1e-5, "drafts from bfloat16 probabilities, judged in float32, must be caught"


# ------------------------------------------------------------------------------------------------- rollback (T10)


class WrongSecond(DraftModelDrafter):
    """The target as its own drafter, but draft 2 is always made wrong after it was computed with."""

    def propose(self, rows: Rows, *, limits: Tensor, rng: Any) -> Proposal:
        found = super().propose(rows, limits=limits, rng=rng)
        if found.tokens.shape[1] > 1:
            found.tokens[:, 1] = (found.tokens[:, 1] + 1) % 90 + 3
        return found


class OffByOne(DraftModelDrafter):
    """Planted: the rollback stops one position late, so a rejected draft stands where a committed token was."""

    def commit(self, rows: Rows, *, verdict: Any, features: Any) -> None:
        super().commit(rows, verdict=verdict, features=features)
        for slot in rows.slots_host:
            self._cached[slot] -= 1
            self._history[slot, self._cached[slot]] = 3


class WrongSecondOffByOne(WrongSecond, OffByOne):
    """Both."""


def accepted_after_rollbacks(drafter_type: type[WrongSecond]) -> list[int]:
    target = Target(tiny_model(scale=10.0))
    view = target.view(max_rows=1, max_context=256)
    engine = Engine(
        target, drafter_type(tiny_model(scale=10.0), view, greedy=False), FixedPolicy(3), max_rows=1, max_context=256
    )
    ids = prompts(1, longest=8)[0]
    engine.submit(request(0, ids, max_new_tokens=210))
    while engine.has_work:
        engine.poll()
    trace = engine.close()
    plain = Engine(target, VanillaDrafter(), FixedPolicy(0), max_rows=1, max_context=256)
    plain.submit(request(0, ids, max_new_tokens=210))
    while plain.has_work:
        plain.poll()
    assert outputs(trace) == outputs(plain.close())
    return [r.accepted for r in trace.rounds if r.verified >= 2]


def test_t10_every_rollback_leaves_a_clean_cache() -> None:
    clean = accepted_after_rollbacks(WrongSecond)
    assert len(clean) >= 100
    assert set(clean) == {1}
    drifting = accepted_after_rollbacks(WrongSecondOffByOne)
    assert sum(drifting) / len(drifting) < 0.8, "a rollback that is off by one must show in the accepted length"


@pytest.mark.parametrize("drafter_type", [DraftModelDrafter, OffByOne])
def test_t10_one_position_off_shows_as_drift_with_context_depth(drafter_type: type[DraftModelDrafter]) -> None:
    """The target drafts for itself; the text stays right, only the accepted length by depth tells."""
    target = Target(tiny_model(scale=10.0))
    drafter = drafter_type(tiny_model(scale=10.0), target.view(max_rows=6, max_context=256), greedy=False)
    engine = Engine(target, drafter, FixedPolicy(3), max_rows=6, max_context=256)
    for i, ids in enumerate(prompts(12, longest=8)):
        engine.submit(request(i, ids, max_new_tokens=200))
    while engine.has_work:
        engine.poll()
    trace = engine.close()
    rounds = measured(trace)
    by_depth = [float(rounds.accepted[inside].mean()) + 1 for _, inside in depth_bins(rounds)]
    alarm = [a for a in find_alarms(trace) if a.name == "context-depth"]
    assert len(by_depth) == 5
    if drafter_type is OffByOne:
        assert all(late <= early for early, late in pairwise(by_depth))
        assert by_depth[-1] < 0.75 * by_depth[0]
        assert len(alarm) == 1
        assert "output depth 0-15" in alarm[0].message
    else:
        assert by_depth == [4.0] * 5
        assert not alarm


# ------------------------------------------------------------- random numbers by position alone, under a lagged policy


class LaggedPolicy:
    """Verifies the first draft of a row only if, two rounds ago, the draft of the same position was token 0."""

    causal: ClassVar[bool] = True
    name = "lagged-toy"
    draft_length = 3

    def __init__(self, rows: int) -> None:
        self.seen: list[Tensor] = []
        self.rows = rows

    def draft_limits(self, rows: Rows, *, load: Any) -> Tensor:
        return torch.full_like(rows.lengths, 3)

    def plan(self, rows: Rows, *, proposal: Proposal, load: Any) -> VerifyPlan:
        now = torch.zeros(self.rows, 3, dtype=torch.int64)
        now[rows.slots] = torch.nn.functional.pad(proposal.tokens, (0, 3 - proposal.tokens.shape[1]), value=9)
        self.seen.append(now)
        if len(self.seen) < 3:
            return VerifyPlan(torch.zeros_like(proposal.counts))
        wanted = self.seen[-3][rows.slots, 2] == 0
        return VerifyPlan(torch.minimum(wanted.to(torch.int64), proposal.counts))

    def observe(self, rows: Rows, *, plan: Any, verdict: Any) -> None: ...


class ByPosition:
    """Planted: noise keyed by the drafted position alone; a position that is drafted again sees the same noise."""

    def draft(self, rows: Rows, offsets: int) -> Tensor:
        columns = [
            uniform(rows.seed, rows.number, rows.lengths + 1 + k, offsets=1, purpose=Purpose.DRAFT)
            for k in range(offsets)
        ]
        return torch.cat(columns, dim=1)


def fourth_token(planted: bool, draws: int = 1500) -> Counter[int]:
    target = Target(tiny_model("llama", vocab_size=8, scale=2.0, pad_token_id=None))
    flat = torch.zeros(8, 8)
    flat[:, 0] = 2.0  # the draft does not look at the previous token, so the same noise gives the same draft
    drafter = TableDrafter(flat)
    engine = Engine(target, drafter, LaggedPolicy(draws), max_rows=draws, max_context=16, prefill_budget=10**6)
    if planted:
        honest = drafter.propose
        drafter.propose = lambda rows, *, limits, rng: honest(rows, limits=limits, rng=ByPosition())  # type: ignore[method-assign]
    for n in range(draws):
        engine.submit(request(n, (3, 1, 4, 1, 5), max_new_tokens=5, sampling=Sampling(1.0), seed=11))
    while engine.has_work:
        engine.poll()
    return Counter(r.output_ids[3] for r in engine.close().requests)


def test_noise_keyed_by_position_alone_is_caught_under_a_lagged_policy() -> None:
    model = tiny_model("llama", vocab_size=8, scale=2.0, pad_token_id=None)
    heads: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(4):
        with torch.no_grad():
            logits = model(torch.tensor([[3, 1, 4, 1, 5, *h] for h in heads]), use_cache=False).logits[:, -1]
        rows = torch.softmax(logits.double(), dim=-1)
        heads = {(*h, x): m * float(rows[i, x]) for i, (h, m) in enumerate(heads.items()) for x in range(8)}
    expected = Counter[int]()
    for head, mass in heads.items():
        expected[head[3]] += mass  # type: ignore[assignment]

    def p_value(seen: Counter[int]) -> float:
        n = seen.total()
        statistic = sum((seen[x] - n * expected[x]) ** 2 / (n * expected[x]) for x in range(8))
        return float(chi2.sf(statistic, 7))

    assert p_value(fourth_token(planted=False)) > 1e-4
    assert p_value(fourth_token(planted=True)) < 1e-6
