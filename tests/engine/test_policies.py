"""Verification policies: what they decide, what they may not look at, and how they fare on a scripted staircase."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support_planning import closed_loop, load, make_policy, make_rows, proposal, staircase
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from specbench.engine.cost_table import CostTable, PromptCost, RowCost, WidthCost
from specbench.errors import ConfigError, UnknownNameError
from specbench.types import Verdict

APPENDIX = CostTable(tokens=(1, 2, 3), steps_per_s=(1.0, 0.5, 0.45), max_tokens=3)


def plan_once(policy: Any, confidence: Tensor, counts: Tensor | None = None, *, step: int = 0, **rows: Any) -> Any:
    count = confidence.shape[0]
    state = make_rows(count, **rows)
    now = load(step, running=count)
    policy.draft_limits(state, load=now)
    full = torch.full((count,), confidence.shape[1]) if counts is None else counts
    return policy.plan(state, proposal=proposal(confidence, full), load=now)


# --------------------------------------------------------------------------------------------------- decisions


def test_threshold_keeps_the_prefix_before_the_first_doubt() -> None:
    policy = make_policy("threshold:0.5,explore=0", 4)
    confidence = torch.tensor([[0.9, 0.5, 0.4, 0.9], [0.4, 0.9, 0.9, 0.9], [0.9, 0.9, 0.9, 0.9]])
    plan = plan_once(policy, confidence, torch.tensor([4, 4, 3]))
    assert plan.lengths.tolist() == [2, 0, 3]
    assert list(plan.states()) == ["threshold=0.5"] * 3


def test_appendix_a_decisions() -> None:
    for second in (0.9, 0.0):
        confidence = torch.tensor([[0.8, second]])
        stopping = plan_once(make_policy("algorithm1:explore=0", 2, cost=APPENDIX), confidence)
        assert stopping.lengths.tolist() == [0]
        assert list(stopping.states()) == ["capacity=0 theta=1"]
        looking_back = make_policy("load-aware:lag=0,explore=0", 2, cost=APPENDIX)
        assert not looking_back.causal
        plan = plan_once(looking_back, confidence)
        assert plan.lengths.tolist() == [2 if second else 0]
    assert list(plan.states()) == ["lag=0 capacity=0 theta=1"]


def test_load_aware_uses_the_scores_of_lag_cycles_ago_and_starts_full() -> None:
    policy = make_policy("load-aware:lag=2,explore=0", 2, cost=APPENDIX)
    high, low = torch.tensor([[0.8, 0.9]]), torch.tensor([[0.1, 0.1]])
    seen = []
    for step, scores in enumerate([low, high, low, low, high]):
        seen.append(int(plan_once(policy, scores, step=step, anchors=[3 + step]).lengths[0]))
    assert seen == [2, 2, 0, 2, 0]  # full, full, then what steps 0, 1, 2 showed
    fresh = plan_once(policy, low, step=5, numbers=[77])
    assert fresh.lengths.tolist() == [2]  # another request in the slot starts at full length
    late = plan_once(policy, low, step=9, numbers=[77])
    assert late.lengths.tolist() == [2]  # nothing is known of two cycles ago


def test_load_aware_ranks_by_fresh_scores_under_an_old_capacity() -> None:
    flat = CostTable(tokens=(1, 6, 7), steps_per_s=(1.0, 1.0, 0.1), max_tokens=20)
    policy = make_policy("load-aware:lag=1,explore=0", 3, cost=flat)
    plan_once(policy, torch.full((2, 3), 0.9), step=0)
    plan = plan_once(policy, torch.tensor([[0.9, 0.2, 0.9], [0.8, 0.8, 0.8]]), step=1)
    assert plan.lengths.tolist() == [1, 3]
    assert all(state.startswith("lag=1 capacity=4 theta=") for state in plan.states())


def drafting_shares(policy: Any, rows: int, *, truths: list[tuple[float, int]]) -> tuple[list[float], list[str]]:
    """Share of rows that draft by cycle, and the first row's reasons; ``truths``: confidence = truth, and cycles."""
    shares, reasons, step = [], [], 0
    for truth, cycles in truths:
        for _ in range(cycles):
            state = make_rows(rows, anchors=[13 * r + step for r in range(rows)])
            now = load(step, running=rows)
            limits = policy.draft_limits(state, load=now)
            width = int(limits.max())
            plan = policy.plan(state, proposal=proposal(torch.full((rows, width), truth), limits), load=now)
            accepted = plan.lengths if truth > 0.5 else torch.zeros_like(plan.lengths)
            policy.observe(state, plan=plan, verdict=Verdict(accepted, accepted))
            shares.append(int((limits > 0).sum()) / rows)
            reasons.append(plan.states()[0])
            step += 1
    return shares, reasons


def test_drafting_is_skipped_where_it_does_not_pay_and_comes_back() -> None:
    policy = make_policy("load-aware:draft-cost=on,lag=1", 7, cost=staircase(), rows=128)
    shares, reasons = drafting_shares(policy, 128, truths=[(0.02, 300), (0.97, 300)])
    assert shares[0] == 8 / 128  # a first look, of a few rows
    assert sum(shares[3:300]) / 297 < 0.01
    assert any(reason.endswith("drafting=0") for reason in reasons[:300])
    assert sum(share > 0 for share in shares[3:300]) >= 2  # probes
    assert max(shares[3:300]) <= 8 / 128
    assert shares[-1] == 1.0


def test_prompts_change_nothing_about_drafts_where_the_table_prices_them_apart() -> None:
    """As tokens of the rows, prompts would make these look fuller, where this table says that fuller is cheaper."""
    width = WidthCost((1, 8), (1, 2, 4), ((0.0, 0.5, 0.0), (0.0, 0.5, 0.0)))
    prompt = PromptCost((1, 64), (1.0, 1.5))
    price = RowCost((1, 8), (0.01, 0.02), draft_length=1)
    bare = CostTable((1, 64), (1.0, 0.5), 64, lookup="linear", draft={"dspark": price}, row_cost=RowCost((1,), (0.0,)))
    table = replace(bare, width_cost=width, prompt=prompt)

    def choices(riding: int) -> list[int]:
        policy = make_policy("load-aware:draft-cost=on,lag=1,explore=0", 1, cost=table, rows=8)
        shares = []
        for step in range(12):
            state, now = make_rows(8), load(step, prefill=riding)
            limits = policy.draft_limits(state, load=now)
            shares.append(int((limits > 0).sum()))
            if shares[-1]:
                given = proposal(torch.full((8, 1), 0.4), limits)
                plan = policy.plan(state, proposal=given, load=now)
                plan.states()
        return shares

    assert choices(0)[0] == 8
    assert choices(0)[-1] == 0
    assert choices(20) == choices(0)


def test_rows_verify_alike_where_the_table_says_that_unlike_ones_cost_more() -> None:
    price = RowCost((1, 4), (0.01, 0.02), draft_length=3, single=(0.01, 0.01))
    even = CostTable((1, 64), (1.0, 0.4), 64, lookup="linear", draft={"dspark": price})
    scores = torch.tensor([[0.9, 0.8, 0.7], [0.8, 0.1, 0.1], [0.3, 0.1, 0.1], [0.1, 0.1, 0.1]])

    def verified(table: CostTable) -> list[int]:
        policy = make_policy("load-aware:draft-cost=on,lag=1,explore=0", 3, cost=table, rows=4)
        for step in range(12):
            state, now = make_rows(4), load(step)
            limits = policy.draft_limits(state, load=now)
            given = proposal(scores[:, : int(limits.max())], limits)
            plan = policy.plan(state, proposal=given, load=now)
            plan.states()
        return [int(count) for count in plan.lengths]

    assert len(set(verified(even))) > 1
    assert len(set(verified(replace(even, uneven_cost=RowCost((1, 4), (0.0, 0.8)))))) == 1


def test_a_share_of_the_rounds_verifies_everything_by_the_anchors_position() -> None:
    policy = make_policy("threshold:1,explore=0.25", 3)
    anchors = list(range(40, 80))
    plan = plan_once(policy, torch.full((40, 3), 0.5), anchors=anchors)
    marked = [state == "verify-all" for state in plan.states()]
    assert sum(marked) == 10
    assert plan.lengths.tolist() == [3 if m else 0 for m in marked]
    alone = plan_once(policy, torch.full((1, 3), 0.5), anchors=[anchors[marked.index(True)]])
    assert list(alone.states()) == ["verify-all"]


def test_without_confidences_outcomes_teach_position_and_domain() -> None:
    policy = make_policy("threshold:0.5,explore=0", 3)
    rows = make_rows(40, domains=[0, 1] * 20)
    accepted = torch.tensor([3, 1] * 20)
    for step in range(12):
        now = load(step)
        limits = policy.draft_limits(rows, load=now)
        plan = policy.plan(rows, proposal=proposal(None, limits, width=3), load=now)
        policy.observe(rows, plan=plan, verdict=Verdict(torch.minimum(accepted, plan.lengths), accepted))
    expected = policy.scores.estimator.conditional(rows.domain_id, 3)
    assert bool((expected[0] > 0.95).all())
    assert float(expected[1, 0]) > 0.95
    assert float(expected[1, 1]) < 0.5
    assert plan.lengths[:2].tolist() == [3, 1]


def test_positions_after_an_accepted_stop_token_teach_nothing() -> None:
    taught = make_policy("threshold:0.5,explore=0", 3, stop_ids=frozenset({1}))
    rows = make_rows(4)
    plan = taught.plan(rows, proposal=proposal(None, torch.full((4,), 3), width=3), load=load(0))
    before = taught.scores.estimator.conditional(rows.domain_id, 3)[0].tolist()
    taught.observe(rows, plan=plan, verdict=Verdict(torch.full((4,), 3), torch.zeros(4)))
    after = taught.scores.estimator.conditional(rows.domain_id, 3)[0].tolist()
    assert after[0] > before[0]  # the stop token itself was accepted
    assert after[1:] == before[1:]


class NoHostReads(TorchDispatchMode):
    """Fails where a tensor's value is fetched to the host, which waits for the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert "_local_scalar_dense" not in str(func), "a value was fetched to the host"
        assert "nonzero" not in str(func), "a shape depends on values"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "name", ["threshold:0.5", "algorithm1", "load-aware", "load-aware:online=on", "load-aware:draft-cost=on,lag=1"]
)
@pytest.mark.parametrize("confident", [True, False])
def test_nothing_waits_for_the_device(name: str, confident: bool) -> None:
    policy = make_policy(name, 3, cost=staircase(), temperatures=(1.5, 1.5, 1.5), stop_ids=frozenset({4}))
    for step in range(120):
        rows = make_rows(4, anchors=[97 + step, 12, 13, 14])
        now = load(step, running=4)
        made = proposal(torch.full((4, 3), 0.7) if confident else None, torch.full((4,), 3), width=3)
        accepted = torch.tensor([1, 0, 2, 3])
        with NoHostReads():
            policy.draft_limits(rows, load=now)
            plan = policy.plan(rows, proposal=made, load=now)
            policy.observe(rows, plan=plan, verdict=Verdict(torch.minimum(accepted, plan.lengths), accepted))
        if "verify-all" in plan.states():
            return
    raise AssertionError("no round verified everything")


# ------------------------------------------------------------------------------------------------ causality


CAUSAL = ["threshold:0.4", "algorithm1", "load-aware:lag=1", "load-aware:lag=2", "load-aware:lag=2,draft-cost=on"]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_changing_later_drafts_never_changes_the_admission_of_earlier_ones(data: st.DataObject) -> None:
    """Confidences of draft k + 1 and later depend on draft k: whatever they become, the first k stay as they were."""
    name = data.draw(st.sampled_from(CAUSAL))
    rows, width = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    seed = data.draw(st.integers(0, 10**6))
    generator = torch.Generator().manual_seed(seed)
    history = torch.rand(3, rows, width, generator=generator)
    speed = [10.0]
    for _ in range(rows * (width + 1)):
        speed.append(speed[-1] * data.draw(st.sampled_from([1.0, 0.9, 0.6, 1.05])))
    tokens = tuple(range(1, len(speed) + 1))
    table = CostTable(tokens, tuple(speed), tokens[-1], draft=staircase().draft)
    row, k = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, width))
    changed = history[2].clone()
    changed[row, k:] = torch.rand(width - k, generator=generator)
    counts = torch.full((rows,), width)
    fewer = counts.clone()
    fewer[row] = data.draw(st.integers(k, width))
    lengths = []
    for last, drafted in ((history[2], counts), (changed, fewer)):
        policy = make_policy(name, width, cost=table)
        assert policy.causal
        for step in range(2):
            plan_once(policy, history[step], step=step, anchors=[3 + step] * rows)
        plan = plan_once(policy, last, drafted, step=2, anchors=[5] * rows)
        lengths.append(plan.lengths.tolist())
    assert min(lengths[0][row], k) == min(lengths[1][row], k)


# ----------------------------------------------------------------------------------------- a scripted staircase


def test_the_budget_falls_with_load() -> None:
    """T18: the same drafts, more and more users, on the committed staircase."""
    table = staircase()
    confidence = 0.85 - 0.03 * torch.arange(7.0)
    for name in ("algorithm1:explore=0", "load-aware:lag=1,explore=0"):
        budgets = []
        for rows in (1, 4, 16, 32, 64, 128):
            policy = make_policy(name, 7, cost=table, rows=rows)
            for step in range(2):
                plan = plan_once(policy, confidence.expand(rows, 7), step=step)
            budgets.append(1 + float(plan.lengths.sum()) / rows)
        assert budgets[0] == 8
        assert budgets == sorted(budgets, reverse=True)
        assert budgets[-1] <= 4


@pytest.mark.parametrize("name", ["load-aware", "load-aware:draft-cost=on"])
def test_load_aware_is_never_worse_than_the_best_fixed_length_and_better_under_load(name: str) -> None:
    table, better = staircase(), 0
    for rows, cycles in ((2, 150), (16, 60), (32, 60), (64, 60)):
        fixed = [
            closed_loop(make_policy(f"fixed:{k}", 7, cost=table), rows=rows, cycles=cycles, cost=table)
            for k in (0, 1, 3, 5, 7)
        ]
        best = max(served.tokens_per_s for served in fixed)
        found = closed_loop(make_policy(name, 7, cost=table), rows=rows, cycles=cycles, cost=table)
        assert found.tokens_per_s >= 0.98 * best, rows
        better += found.tokens_per_s > 1.03 * best
    assert better >= 2


def test_outcomes_alone_come_close_to_the_best_fixed_length() -> None:
    """A drafter without confidences: all that can be learned is which length suits the load."""
    table = staircase()
    best = max(
        closed_loop(make_policy(f"fixed:{k}", 7, cost=table), rows=64, cycles=120, cost=table).tokens_per_s
        for k in (2, 3, 5, 7)
    )
    found = closed_loop(make_policy("load-aware", 7, cost=table), rows=64, cycles=120, cost=table, honest=False)
    assert found.tokens_per_s > 0.95 * best


# ---------------------------------------------------------------------------------------------------- options


def test_names_hold_every_option_and_read_back() -> None:
    table = staircase()
    for text, full in {
        "threshold:0.5": "threshold:0.5,explore=0.01,online=off,forget=0.002",
        "algorithm1": "algorithm1:explore=0.01,online=off,forget=0.002",
        "load-aware:draft-cost=on,lag=1": "load-aware:lag=1,draft-cost=on,explore=0.01,online=off,forget=0.002",
        "load-aware:online=on": "load-aware:lag=2,draft-cost=off,explore=0.01,online=on,forget=0.002,step=0.05",
    }.items():
        policy = make_policy(text, 3, cost=table)
        assert policy.name == full
        assert make_policy(full, 3, cost=table).name == full


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("threshold", "least confidence"),
        ("threshold:1.5", "from 0 to 1"),
        ("threshold:0.5,0.6", "OPTION=VALUE"),
        ("algorithm1:explore=x", "from 0 to 1"),
        ("load-aware:lag=two", "whole number"),
        ("load-aware:lag=1,lag=2", "twice"),
        ("load-aware:draft-cost=yes", "on or off"),
        ("load-aware:lag=0,draft-cost=on", "lag >= 1"),
        ("load-aware:online=on,step=0", "above 0"),
    ],
)
def test_bad_options_are_refused_in_one_line(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        make_policy(text, 3, cost=staircase())
    assert "\n" not in str(caught.value)


def test_misspelt_options_and_missing_tables_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="draft-cost"):
        make_policy("load-aware:draftcost=on", 3, cost=staircase())
    for name in ("algorithm1", "load-aware"):
        with pytest.raises(ConfigError, match="specbench profile"):
            make_policy(name, 3)
    with pytest.raises(ConfigError, match="price of drafting with 'ngram'"):
        make_policy("load-aware:draft-cost=on", 3, cost=staircase(), method="ngram")
    with pytest.raises(ConfigError, match="covers 2 positions"):
        make_policy("algorithm1", 3, cost=staircase(), temperatures=(1.0, 1.0))
