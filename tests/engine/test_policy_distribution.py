"""Policies may change how fast text comes, never which: appendix A of the DSpark paper, and tests of T18."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import chi2
from support_distribution import marginal, p_value
from support_drafters import StatelessDrafter, TableDrafter
from support_engine import request, serve
from support_planning import make_policy
from support_targets import tiny_model
from test_recipes_sampled import PROMPT, exact, table, toy
from torch import Tensor

from specbench.drafting.sampling import draw
from specbench.engine.cost_table import CostTable
from specbench.engine.target import Target
from specbench.kernels.accept import accept_sampled
from specbench.kernels.plan import admit, best_capacity, early_stop, rank, survival
from specbench.kernels.rng import Purpose, uniform
from specbench.kernels.sample import sample
from specbench.types import DraftLogits, Proposal, Rows, RunTrace, Sampling

CASE = json.loads((Path(__file__).parents[1] / "data/fixtures/verify.json").read_text())["appendix_a"]
SPEED = CostTable((1, 2, 3), tuple(CASE["sps"].values()), 3)
DRAWS = 200_000


# ------------------------------------------------------------------------------------------------- appendix A


def first_tokens(draws: int, *, retrospective: bool) -> Tensor:
    """First committed tokens of ``draws`` independent rounds of one request, planned by early stop or looking back."""
    number, zero = torch.arange(draws), torch.zeros(draws, dtype=torch.int64)
    draft = torch.tensor(CASE["draft"], dtype=torch.float64).log().expand(draws, 2, 2)
    target = torch.tensor(CASE["target"], dtype=torch.float64).log()
    u = uniform(zero, number, zero, offsets=2, purpose=Purpose.DRAFT)
    drafts = torch.stack([sample(draft[:, k], torch.zeros(draws), u[:, k]) for k in range(2)], dim=1)
    rates = torch.tensor(list(CASE["sps"].values()), dtype=torch.float64)
    lengths = []
    for case in ("case_high", "case_low"):  # the second confidence tells the two first drafts apart
        confidence = torch.tensor([[CASE["a1"], CASE[case]["c2"]]], dtype=torch.float64)
        scores = survival(confidence, torch.tensor([2]))
        ranking = rank(scores, torch.tensor([2]))
        choice = best_capacity(scores, rates) if retrospective else early_stop(ranking, rates)
        lengths.append(int(admit(ranking, choice.admitted)[0]))
    verified = torch.tensor(lengths)[drafts[:, 0]]
    starts = torch.arange(draws) * 3
    found = accept_sampled(
        target.expand(draws * 3, 2),
        torch.zeros(draws * 3, dtype=torch.float64),
        starts=starts,
        lengths=verified,
        drafts=drafts,
        draft=DraftLogits(draft, torch.zeros(draws, 2, dtype=torch.float64)),
        u_accept=uniform(zero, number, zero, offsets=2, purpose=Purpose.ACCEPT),
        u_next=uniform(zero, number, zero, offsets=1, purpose=Purpose.NEXT)[:, 0],
    )
    return torch.where(found.accepted > 0, drafts[:, 0], found.next_token)


def two_cell(share: float, expected: float, draws: int) -> float:
    """p of Pearson's chi-squared for a coin."""
    deviation = (share - expected) * draws
    return float(chi2.sf(deviation**2 / (draws * expected * (1 - expected)), 1))


def test_appendix_a_over_200_000_draws() -> None:
    honest = float((first_tokens(DRAWS, retrospective=False) == 0).double().mean())
    assert honest == pytest.approx(CASE["early_stop_output"][0], abs=0.005)
    assert two_cell(honest, CASE["target"][0], DRAWS) > 1e-4
    planted = float((first_tokens(DRAWS, retrospective=True) == 0).double().mean())
    assert planted == pytest.approx(CASE["retrospective_output"][0], abs=0.005)
    assert two_cell(planted, CASE["target"][0], DRAWS) < 1e-12


class AppendixDrafter(StatelessDrafter):
    """Fair coins; the second confidence is high exactly if the first draft is token 0."""

    def propose(self, rows: Rows, *, limits: Tensor, rng: Any) -> Proposal:
        width = int(limits.max())
        logits = torch.zeros(len(rows), width, 2)
        tokens, draft = draw(logits, rows, uniforms=rng.draft(rows, width), id_map=None, greedy=False)
        first = torch.full((len(rows), 1), CASE["a1"])
        second = torch.where(tokens[:, :1] == 0, CASE["case_high"]["c2"], CASE["case_low"]["c2"])
        return Proposal(tokens, limits, draft, torch.cat([first, second], dim=1)[:, :width])


@cache
def flat_target(probabilities: tuple[float, ...]) -> Target:
    """A real model that says the same everywhere: equal embeddings, nothing added by its layers."""
    size = len(probabilities)
    free = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
    model = tiny_model("llama", vocab_size=size, num_hidden_layers=1, **free)
    width = model.config.hidden_size
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "layers" in name and parameter.dim() > 1:
                parameter.zero_()
        model.model.embed_tokens.weight.fill_(1.0)
        model.lm_head.weight.copy_((torch.tensor(probabilities).log() / width)[:, None].expand(size, width))
    return Target(model)


def coin_run(policy: str, *, requests: int = 15) -> RunTrace:
    """One request at a time: long outputs of the (.7, .3) target, drafted by fair coins."""
    made = [request(n, (0, 1), max_new_tokens=40, sampling=Sampling(1.0), seed=3) for n in range(requests)]
    chosen = make_policy(f"{policy},explore=0" if ":" in policy else f"{policy}:explore=0", 2, cost=SPEED, rows=1)
    target = flat_target(tuple(CASE["target"]))
    return serve(target, AppendixDrafter(), made, rows=1, max_context=48, policy=chosen)


def heads(trace: RunTrace) -> tuple[float, int]:
    """Share of token 0 among the first tokens of rounds with two drafts: independent draws if the policy is exact."""
    firsts = [r.committed_ids[0] for r in trace.rounds if r.drafted == 2]
    return firsts.count(0) / len(firsts), len(firsts)


def test_appendix_a_through_the_engine() -> None:
    stopped = coin_run("algorithm1", requests=8)
    assert all(r.planned == r.verified == 0 for r in stopped.rounds)
    assert {r.policy_state for r in stopped.rounds if r.drafted == 2} == {"capacity=0 theta=1"}
    share, rounds = heads(stopped)
    assert two_cell(share, CASE["target"][0], rounds) > 1e-3


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_a_lagged_capacity_is_exact_and_a_current_one_is_caught(lag: int) -> None:
    """Lag 0 is the planted fault: a capacity from the very scores that it then decides on."""
    trace = coin_run(f"load-aware:lag={lag}")
    verified = Counter(r.verified for r in trace.rounds if r.drafted == 2)
    assert min(verified[0], verified[2]) > 50, "the capacity must follow the confidences"
    share, rounds = heads(trace)
    p = two_cell(share, CASE["target"][0], rounds)
    if lag:
        assert p > 1e-3
    else:
        assert p < 1e-4
        assert share == pytest.approx(CASE["retrospective_output"][0], abs=0.05)


# ---------------------------------------------------------------------------------- load-aware under batching


class ConfidentDrafter(TableDrafter):
    """A table drafter whose confidence depends on the token before the draft, as DSpark's does."""

    trust = torch.tensor([0.95, 0.15, 0.8, 0.3, 0.9, 0.05, 0.6, 0.99])

    def propose(self, rows: Rows, *, limits: Tensor, rng: Any) -> Proposal:
        found = super().propose(rows, limits=limits, rng=rng)
        return Proposal(found.tokens, found.counts, found.draft, self.confidence(rows, found.tokens))

    def confidence(self, rows: Rows, tokens: Tensor) -> Tensor:
        return self.trust[torch.cat([rows.last_token[:, None], tokens[:, :-1]], dim=1)]


class PeekingDrafter(ConfidentDrafter):
    """Planted: its confidence looks at the very draft that it is about."""

    def confidence(self, rows: Rows, tokens: Tensor) -> Tensor:
        return self.trust[tokens]


STAIRS = CostTable((1, 60, 150, 170, 200, 220, 260, 300), (10.0, 8.0, 7.6, 7.8, 6.6, 2.9, 3.0, 2.0), 600)
"""Worth some drafts beside the anchors and prompts of a step, not all, and not monotone."""


def served(drafter: Any, policy: str, draws: int) -> RunTrace:
    """Late joiners and unequal lengths, so that capacity and the rows it is shared by keep changing."""
    requests = [
        request(n, PROMPT, max_new_tokens=4 + n % 3, sampling=Sampling(1.0), domain=f"d{n % 2}") for n in range(draws)
    ]
    chosen = make_policy(policy, 3, cost=STAIRS, rows=100)
    joins = {n: n // 20 for n in range(draws)}
    return serve(toy(), drafter, requests, rows=100, max_context=16, policy=chosen, joins=joins)


def distribution_p(trace: RunTrace) -> float:
    seen = Counter(r.output_ids[1:4] for r in trace.requests)
    return p_value(seen, marginal(exact(Sampling(1.0), 4), 1, 4))


@pytest.mark.parametrize("policy", ["load-aware:lag=1", "load-aware:lag=2", "algorithm1", "threshold:0.5,explore=0.1"])
def test_the_distribution_stays_the_targets_under_batching(policy: str) -> None:
    trace = served(ConfidentDrafter(table()), policy, 2000)
    full = [r for r in trace.rounds if r.drafted == 3]
    assert {r.verified for r in full} == {0, 1, 2, 3}, "the policy must really cut"
    assert distribution_p(trace) > 1e-4


def test_capacity_and_lag_are_written_into_the_rounds() -> None:
    trace = served(ConfidentDrafter(table()), "load-aware:lag=2,explore=0.15", 400)
    states = [dict(part.split("=") for part in r.policy_state.split()) for r in trace.rounds
              if r.policy_state not in ("", "verify-all")]  # fmt: skip
    assert len(states) > 300
    assert {s["lag"] for s in states} == {"2"}
    assert all(float(s["theta"]) > 0 for s in states)
    by_step: dict[int, tuple[int, int]] = {}
    for r in trace.rounds:
        if r.policy_state.startswith("lag"):
            capacity = int(r.policy_state.split("capacity=")[1].split()[0])
            by_step[r.step] = (capacity, by_step.get(r.step, (0, 0))[1] + r.verified)
    assert all(verified <= capacity for capacity, verified in by_step.values())
    everything = [r for r in trace.rounds if r.policy_state == "verify-all"]
    assert everything
    assert all(r.verified == r.drafted for r in everything)


def test_a_confidence_that_peeks_at_its_own_draft_is_caught() -> None:
    assert distribution_p(served(PeekingDrafter(table()), "load-aware:lag=2", 2000)) < 1e-6


def test_rows_without_confidences_are_planned_and_exact() -> None:
    trace = served(TableDrafter(table()), "load-aware:lag=1", 2000)
    assert len({r.verified for r in trace.rounds if r.drafted == 3}) > 1
    assert distribution_p(trace) > 1e-4
