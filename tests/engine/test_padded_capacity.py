"""Padded steps run a forward of the size that the policy's capacity needs, and change nothing by it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support_checkpoints import VOCAB
from support_contestants import Stable, own_cases
from support_engine import request
from support_padded import SIZES, Setting, both, difference, engine_of, run
from support_planning import load, make_policy, make_rows, proposal, staircase
from support_syncs import counted
from support_tape import Taped

from specbench.engine import lagged, padded
from specbench.engine.cost_table import CostTable
from specbench.engine.engine import Engine
from specbench.engine.graphs import GraphSettings, verify_sizes
from specbench.engine.policies.load_aware import LoadAwarePolicy
from specbench.kernels.plan import best_capacity
from specbench.types import Request, Sampling

CASE = next(case for case in own_cases() if str(case) == "dspark:own-vanilla")
BUSY = CostTable(tokens=(1, 6, 7), steps_per_s=(1.0, 1.0, 0.01), max_tokens=64)
"""A machine that holds six tokens: three rows verify three drafts together, two rows four."""
LOADED = Setting("load-aware:lag=1,explore=0", rows=3, cost=BUSY)
THREE = replace(SIZES, rows=(3,))


@pytest.fixture(scope="module")
def stable(tmp_path_factory: pytest.TempPathFactory) -> Stable:
    return Stable(tmp_path_factory.mktemp("contestants"))


def ask(*lengths: int, temperature: float = 0.0) -> list[Request]:
    sampling = Sampling(temperature)
    return [
        request(n, [(7 * i + n) % VOCAB for i in range(length)], max_new_tokens=12, sampling=sampling)
        for n, length in enumerate(lengths)
    ]


@pytest.fixture
def forwards(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How many forwards of padded steps ran on how many tokens."""
    seen: Counter[int] = Counter()
    honest = padded.lay_out

    def watched(shape: Any, **given: Any) -> Any:
        seen[shape.tokens] += 1
        return honest(shape, **given)

    monkeypatch.setattr(padded, "lay_out", watched)
    return seen


# ------------------------------------------------------------------------------------------ what runs on fewer tokens


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_capacity_of_earlier_cycles_makes_forwards_smaller(
    temperature: float, stable: Stable, forwards: Counter[int]
) -> None:
    requests = ask(17, 9, 3, 12, temperature=temperature)
    plain, made, engine = both(stable, CASE, requests, LOADED, graphs=THREE)
    assert difference(plain, made) is None
    loop = engine.padded
    assert loop is not None
    full = 3 * (engine.policy.draft_length + 1)
    assert loop.verify_sizes[3][0] == 6
    assert forwards[6] > 0
    assert max(forwards) < full, "no step needed the full size"
    assert loop.padded_steps == forwards.total()
    assert loop.padded_tokens == sum(size * count for size, count in forwards.items())
    assert loop.padded_tokens < 0.6 * full * loop.padded_steps
    assert loop.facts()["padding_share"] == pytest.approx(1 - loop.tokens / loop.padded_tokens)


@pytest.mark.parametrize("policy", ["fixed", "threshold:0.5", "load-aware:lag=1,draft-cost=on"])
def test_other_policies_have_one_size(policy: str, stable: Stable, forwards: Counter[int]) -> None:
    engine = engine_of(stable, CASE, replace(LOADED, policy=policy, cost=None), graphs=THREE)
    run(engine, ask(5), LOADED)
    assert set(forwards) == {3 * (engine.policy.draft_length + 1)}


def test_rounds_that_verify_everything_get_the_tokens(stable: Stable, forwards: Counter[int]) -> None:
    """They are not bound by the capacity: a step with three of them takes the full size."""
    setting = replace(LOADED, policy="load-aware:lag=1,explore=0.5")
    plain, made, engine = both(stable, CASE, ask(4, 4, 4), setting, graphs=THREE)
    assert difference(plain, made) is None
    assert any(r.policy_state == "verify-all" for r in made.rounds)
    assert 6 in forwards
    assert max(forwards) == 3 * (engine.policy.draft_length + 1)


def test_every_size_is_captured_and_logits_share_one_place(stable: Stable) -> None:
    requests = ask(9, 5, 4)
    plain = run(engine_of(stable, CASE, LOADED, graphs=None), requests, LOADED)
    engine = engine_of(stable, CASE, LOADED, graphs=replace(THREE, recorder=Taped()))
    assert difference(plain, run(engine, requests, LOADED)) is None
    assert engine.padded is not None
    facts, sizes = engine.padded.facts(), engine.padded.verify_sizes[3]
    assert 1 < len(sizes) <= 4
    assert "not_captured" not in facts
    assert facts["captured_graphs"] == (2 + len(sizes)) * 2
    made = engine.padded.stages._made.items()
    places = {key: tape.outputs[1].logits for (stage, key), tape in made if stage == "verify"}
    assert len(places) == len(sizes) * 2
    assert len({logits.data_ptr() for logits in places.values()}) == 1


def test_one_look_a_cycle_also_where_the_capacity_is_that_of_told_scores(stable: Stable) -> None:
    engine = engine_of(stable, CASE, LOADED, graphs=THREE)
    for asked in ask(5, 6, temperature=1.0):
        engine.submit(asked)
    engine.poll()
    assert engine.padded is not None
    for _ in range(4):
        with counted() as looks:
            engine.poll()
        assert dict(looks) == {"tolist": 1}
    assert engine.padded.padded_steps == 4


# ------------------------------------------------------------------------------------------ planted faults


@pytest.mark.parametrize("graphs", [None, THREE], ids=["plain", "padded"])
def test_a_bound_that_is_one_draft_too_small_is_caught(
    graphs: GraphSettings | None, stable: Stable, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine: Engine = engine_of(stable, CASE, LOADED, graphs=graphs)
    honest = LoadAwarePolicy.most_drafts
    monkeypatch.setattr(LoadAwarePolicy, "most_drafts", lambda *given: honest(*given) - 1)
    with pytest.raises(AssertionError, match="3 drafts are verified, the policy said at most 2"):
        run(engine, ask(9, 5, 4), LOADED)


def test_a_forward_too_small_for_its_rows_is_caught(stable: Stable, monkeypatch: pytest.MonkeyPatch) -> None:
    """One token short of what rows and drafts need: it never passes in silence."""
    engine: Engine = engine_of(stable, CASE, LOADED, graphs=THREE)
    assert engine.padded is not None
    engine.padded.verify_sizes[3] = (5, *engine.padded.verify_sizes[3])
    monkeypatch.setattr(padded, "round_up", lambda value, sizes: next(s for s in sizes if value <= s + 1))
    with pytest.raises((AssertionError, IndexError, RuntimeError)):
        run(engine, ask(9, 5, 4), LOADED)


# ------------------------------------------------------------------------------------------ the bound itself


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 5),
    width=st.integers(1, 6),
    seed=st.integers(0, 10**6),
    explore=st.sampled_from((0, 0.3, 1)),
    lag=st.integers(1, 3),
)
def test_no_plan_goes_beyond_its_bound_and_fresh_scores_do_not_move_it(
    rows: int, width: int, seed: int, explore: float, lag: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    speed = [10.0]
    for factor in torch.rand(rows * (width + 1), generator=generator).tolist():
        speed.append(speed[-1] * (0.6 + 0.45 * factor))
    table = CostTable(tuple(range(1, len(speed) + 1)), tuple(speed), len(speed))
    past = torch.rand(lag + 1, rows, width, generator=generator)
    drafted = torch.randint(0, width + 1, (lag, rows), generator=generator)
    told: list[tuple[list[int], int]] = []
    for fresh in (past[lag], torch.rand(rows, width, generator=generator)):
        policy = make_policy(f"load-aware:lag={lag},explore={explore}", width, cost=table)
        for step, scores in enumerate([*past[:lag], fresh]):
            counts = drafted[step] if step < lag else torch.randint(0, width + 1, (rows,), generator=generator)
            state, now = make_rows(rows, anchors=[3 * r + step for r in range(rows)]), load(step, running=rows)
            policy.draft_limits(state, load=now)
            plan = policy.plan(state, proposal=proposal(scores, counts), load=now)
            assert int(plan.lengths.sum()) <= plan.most
            plan.states()
        told.append((plan.lengths.tolist(), plan.most))
    assert told[0][1] == told[1][1]


@settings(max_examples=60, deadline=None)
@given(
    scores=st.lists(st.lists(st.sampled_from((0.0, 0.25, 0.5, 0.7, 1.0)), min_size=3, max_size=3), min_size=1),
    riding=st.integers(0, 40),
)
def test_the_capacity_on_the_host_is_that_of_the_definition(scores: Sequence[Sequence[float]], riding: int) -> None:
    policy = make_policy("load-aware", 3, cost=staircase())
    held = torch.tensor(scores, dtype=torch.float64)
    given_rates = {"riding": riding, "candidates": held.numel()}
    rates = policy._cost.host_rates(len(scores), **given_rates)
    torch.testing.assert_close(torch.from_numpy(rates), policy._cost.rates(len(scores), **given_rates))
    definition = best_capacity(held, torch.from_numpy(rates))
    admitted, theta = lagged.best_capacity(held.numpy(), rates)
    assert admitted == int(definition.admitted)
    assert theta == pytest.approx(float(definition.theta))


def test_scores_are_read_by_the_request_that_wrote_them_and_forgotten() -> None:
    history = lagged.LaggedScores(2, positions=2)
    for step in range(5):
        history.write([7, 1 + step], step, torch.full((2, 2), step / 10, dtype=torch.float64))
        if step != 3:
            history.tell(step, [step / 10] * 4)  # nobody asked for step 3's reasons
        assert len(history._cycles) <= 2
    assert history.read([5, 7, 9], 5).tolist() == [[1, 1], [0.3, 0.3], [1, 1]]
    assert history.read([7, 7], 6)[0].tolist() == [0.4, 0.4]
    assert history.read([7], 4).tolist() == [[1, 1]], "no cycle reads so far back"


def test_sizes_of_verifications() -> None:
    assert verify_sizes(64, drafts=7, least_saved=32) == (128, 192, 320, 512)
    assert verify_sizes(8, drafts=7, least_saved=32) == (24, 64)
    assert verify_sizes(2, drafts=7, least_saved=32) == (16,)
    assert verify_sizes(3, drafts=5, least_saved=1) == (6, 9, 12, 18)
    assert verify_sizes(4, drafts=1, least_saved=1) == (8,)
    assert verify_sizes(4, drafts=0, least_saved=1) == (4,)
