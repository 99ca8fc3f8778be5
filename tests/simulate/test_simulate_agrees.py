"""A simulation from a run of one user tells to rounding what the real engine does under other loads in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from support_drafters import SilentDrafter
from support_engine import outputs, prompts, request, serve
from support_records import KEY, make_record
from support_targets import tiny_model
from support_virtual import TABLE, PlacedDrafter, priced_run, timing

from specbench.backends.scripted import Script, ScriptedBackend
from specbench.engine.clock import VirtualClock
from specbench.engine.cost_table import CostTable, Origin, PromptCost, RowCost
from specbench.engine.target import Target
from specbench.metrics._identities import check_identities
from specbench.metrics.throughput import steady_window
from specbench.records import keys
from specbench.simulate import Simulated, SimulationSpec, simulate, source_of
from specbench.types import Prompt, Request, RunTrace
from specbench.workloads.driver import drive
from specbench.workloads.patterns import open_load

LENGTH = 3


@pytest.fixture(scope="module")
def target() -> Target:
    return Target(tiny_model())


@pytest.fixture(scope="module")
def talks() -> list[list[Request]]:
    """Seven conversations, two of them of two turns, of unequal lengths."""
    made = []
    for number, ids in enumerate(prompts(9, high=12)):
        name = f"toy/{number // 2 if number < 4 else number}/{number % 2 if number < 4 else 0}"
        made.append(request(number, ids, id=name, max_new_tokens=12 + 2 * number))
    return [[made[0], made[1]], [made[2], made[3]], *([one] for one in made[4:])]


@pytest.fixture(scope="module")
def texts(target: Target, talks: Any) -> dict[int, tuple[int, ...]]:
    """What the target says, by the request's number."""
    everything = [one for turns in talks for one in turns]
    said = outputs(serve(target, SilentDrafter(), everything, rows=9))
    return {one.number: (*one.prompt_ids, *said[one.id]) for one in everything}


@pytest.fixture(scope="module")
def run(target: Target, texts: Any) -> Callable[..., RunTrace]:
    """The real engine in virtual time."""
    return partial(priced_run, target, PlacedDrafter(texts), k=LENGTH)


def predicted(recorded: RunTrace, **asked: Any) -> list[Simulated]:
    spec = SimulationSpec(**{"table": TABLE, **asked})
    record = make_record(method="placed", draft_length=LENGTH, spec={"prefill_chunk": 512, "concurrency": 1})
    return list(simulate([source_of(record, recorded, spec)], spec))


def assert_same(found: RunTrace, real: RunTrace) -> None:
    ours, theirs = timing(found), timing(real)
    assert set(ours) == set(theirs)
    for name, times in theirs.items():
        assert ours[name] == pytest.approx(times, abs=1e-9), name
    rounds = [{(r.request, r.round): (r.drafted, r.accepted, r.committed, r.discarded) for r in t.rounds}
              for t in (found, real)]  # fmt: skip
    assert rounds[0] == rounds[1]
    assert [(s.decode_rows, s.decode_tokens, s.prefill_tokens) for s in found.steps] == [
        (s.decode_rows, s.decode_tokens, s.prefill_tokens) for s in real.steps
    ]


@pytest.fixture(scope="module")
def recorded(run: Any, talks: Any) -> RunTrace:
    found: RunTrace = run(talks, rows=1, overhead_s=0.0004)
    assert sum(r.accepted for r in found.rounds) > 20
    assert {r.drafted for r in found.rounds} == {0, 1, 2, 3}
    return found


@pytest.mark.parametrize("rows", [1, 4])
def test_users_of_a_closed_loop(run: Any, talks: Any, recorded: RunTrace, rows: int) -> None:
    plain, drafting = predicted(recorded, concurrency=(rows,), requests=len(recorded.requests))
    real = run(talks, rows=rows, overhead_s=0.0004)
    assert_same(drafting.trace, real)
    window, ours = steady_window(real), steady_window(drafting.trace)
    assert window is not None
    assert ours is not None
    assert ours.tokens_per_s == pytest.approx(window.tokens_per_s, rel=1e-9)
    assert plain.record.method == "vanilla"
    assert all(r.drafted == 0 for r in plain.trace.rounds)
    gain = drafting.record.find("speed_up")
    assert gain is not None
    assert gain.n == len(recorded.requests)


def test_stop_tokens_end_a_request_where_they_did(run: Any, talks: Any, texts: Any) -> None:
    def stop(one: Request) -> Request:
        said = texts[one.number][len(one.prompt_ids) :]
        return replace(one, stop_ids=frozenset({max(said, key=said.index)}))  # the last to come up first

    talks = [[stop(one) for one in turns] for turns in talks]
    recorded = run(talks, rows=1)
    ended = [r for r in recorded.requests if r.stop_reason == "stop"]
    assert len(ended) == len(recorded.requests)
    assert any(r.discarded for r in recorded.rounds)
    found = predicted(recorded, concurrency=(3,), requests=len(recorded.requests), overhead=0.0)[1]
    assert_same(found.trace, run(talks, rows=3))
    assert {r.id: r.stop_reason for r in found.trace.requests} == {r.id: "stop" for r in recorded.requests}


def test_arrivals_of_an_open_loop(run: Any, talks: Any) -> None:
    single = [turns[:1] for turns in talks]
    recorded = run(single, rows=1)
    asked: dict[str, Any] = {"workload": "poisson", "load": {"rate": 8.0}}
    found = predicted(recorded, concurrency=(2,), requests=len(recorded.requests), **asked)[1]
    assert_same(found.trace, run(single, rows=2, **asked))
    assert found.trace.paced


def test_a_fleet_is_as_fast_as_its_replicas_apart(recorded: RunTrace) -> None:
    """Two replicas of two rows: every step is one of a replica's, users wait as if they were on one of its size."""
    both = predicted(recorded, concurrency=(2,), replicas=(1, 2), requests=24)
    one, two = both[1], both[3]
    check_identities(two.trace)
    assert two.trace.concurrency == 4
    assert max(step.decode_rows for step in two.trace.steps) == 2
    rates = [w.tokens_per_s for w in (steady_window(one.trace), steady_window(two.trace)) if w is not None]
    assert rates[1] / rates[0] == pytest.approx(2.0, rel=0.1)
    assert two.record.comparability["load"] == "closed:2 on 2 replicas"
    assert both[2].record.spec["replicas"] == 2


def test_a_scripted_engine() -> None:
    """A backend of another make, with service times by hand: 20 ms to prefill, 5 + 15 ms a round."""
    clock = VirtualClock()
    script = Script(
        draft_length=2, accepted=lambda name, index: (len(name) + index) % 3, prefill_s=0.02, draft_s=0.0, verify_s=0.02
    )
    talks = [request(n, [5] * 7, id=f"toy/{n}/0", max_new_tokens=9 + n, task="toy") for n in range(5)]
    real = drive(
        ScriptedBackend(script, clock=clock),
        conversations=[Prompt(str(n), "toy", "toy", ("",)) for n in range(5)],
        build=lambda prompt, answers: talks[int(prompt.id)],
        arrivals=open_load("closed", concurrency=1, options={}, seed=0),
        clock=clock,
    ).trace
    free = RowCost((1,), (0.0,))
    table = CostTable(tokens=(1, 8), steps_per_s=(50.0, 50.0), max_tokens=64, draft={"scripted": free})
    spec = SimulationSpec(table=table, requests=5)
    record = make_record(method="scripted", draft_length=2, spec={"prefill_chunk": 512})
    found = list(simulate([source_of(record, real, spec)], spec))[1].trace
    assert {r.id: r.token_times_s for r in found.requests} == {
        r.id: pytest.approx(r.token_times_s, abs=1e-9) for r in real.requests
    }


def test_a_step_with_prompts_takes_what_prompts_take(recorded: RunTrace) -> None:
    """Only they: steps that decode alone are priced as without it."""
    table = replace(TABLE, prompt=PromptCost((1, 2), (5.0, 6.0)))
    steps = [step for one in predicted(recorded, concurrency=(2,), table=table) for step in one.trace.steps]
    for step in steps:
        rows = step.decode_rows + step.prefill_rows
        expected = table.step_s(step.decode_tokens, rows=rows, prompt=step.prefill_tokens)
        assert step.verify_s == pytest.approx(expected), step
    assert any(step.prefill_tokens and step.decode_tokens for step in steps)
    assert any(step.decode_tokens and not step.prefill_tokens for step in steps)


def test_a_machine_that_was_slower_while_its_table_was_measured(recorded: RunTrace) -> None:
    """The recorded steps say how fast it was in the run: a table twice as slow predicts the same."""
    slow = replace(
        TABLE,
        steps_per_s=tuple(rate / 2 for rate in TABLE.steps_per_s),
        row_cost=None if TABLE.row_cost is None else replace(
            TABLE.row_cost, seconds=tuple(2 * s for s in TABLE.row_cost.seconds)
        ),
    )  # fmt: skip
    here = replace(slow, origin=Origin(device="a processor"))
    usual = predicted(recorded, concurrency=(4,))
    for ours, theirs in zip(usual, predicted(recorded, concurrency=(4,), table=here)):
        assert_same(theirs.trace, ours.trace)
    # A table that does not say where it is from, or is of another target, asks what it would be like there.
    for place in (Origin(), Origin(device="a processor", weights_sha256="b" * 64)):
        for ours, theirs in zip(usual, predicted(recorded, concurrency=(4,), table=replace(slow, origin=place))):
            assert sum(s.verify_s for s in theirs.trace.steps) == pytest.approx(
                2 * sum(s.verify_s for s in ours.trace.steps), rel=0.02
            )


def test_predictions_are_marked_and_never_rank(recorded: RunTrace) -> None:
    for one in predicted(recorded, concurrency=(2,)):
        assert any("simulated" in reason for reason in keys.obstacles(one.record))
        assert one.record.spec["backend"] == "simulated"
        differ = keys.differences(KEY, one.record.comparability, timings=False)
        assert any(text.startswith("engine") for text in differ)


def test_the_simulated_forward_tells_unlike_rows_from_equal_ones() -> None:
    import torch

    from specbench.engine.clock import VirtualClock
    from specbench.engine.cost_table import RowCost
    from specbench.modeling.layout import BatchLayout, RowSpan
    from specbench.simulation.costs import NO_PRICE, StepCosts
    from specbench.simulation.engine import ReplayModel, _uneven

    def layout(*counts: int) -> BatchLayout:
        spans, at = [], 0
        for row, count in enumerate(counts):
            spans.append(RowSpan(at, count, 20 + count, range(row * 8, row * 8 + 8)))
            at += count
        return BatchLayout.build(spans, torch.device("cpu"))

    assert not _uneven(layout(2, 2, 2), 6)
    assert _uneven(layout(2, 1, 2), 5)
    assert not _uneven(layout(2, 2, 9), 4)  # the last row is a prompt's
    assert not _uneven(layout(1, 1, 80), 2)
    assert _uneven(layout(1, 3, 80), 4)

    table = CostTable((1, 64), (1.0, 1.0), 64, lookup="linear", uneven_cost=RowCost((1, 8), (0.25, 0.25)))
    spent = []
    for counts in ((2, 2, 2), (2, 1, 2)):
        clock, tokens = VirtualClock(), sum(counts)
        model = ReplayModel(StepCosts(table, NO_PRICE), clock)
        model.forward(torch.zeros(tokens), layout=layout(*counts), pool=None, logits_at=None)  # type: ignore[arg-type]
        spent.append(clock.now())
    assert spent == pytest.approx([1.0, 1.25])
