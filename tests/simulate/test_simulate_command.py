"""The command line of simulations, what policies make of a replay, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support_confidence import confident_trace
from support_records import make_record
from support_traces import Round, make_request, make_trace
from support_virtual import TABLE

from specbench.engine.cost_table import CostTable, Origin, RowCost, to_document
from specbench.errors import ConfigError, RecordError
from specbench.metrics._identities import check_identities
from specbench.records import store
from specbench.simulate import SimulationSpec, choose, simulate, source_of
from specbench.simulation.replay import Cursor, ReplayRound, Script, replay_of
from specbench.types import RunTrace

FLAT = CostTable(
    tokens=(1, 8, 64), steps_per_s=(100.0, 90.0, 20.0), max_tokens=64, lookup="linear",
    draft={"toy": RowCost((1,), (0.002,), draft_length=3)},
)  # fmt: skip


def recorded() -> RunTrace:
    """Six requests of ten rounds, whose drafter knows how sure it may be; outputs may be a little longer."""
    return confident_trace((1.0, 1.0, 1.0), prompts=6, rounds=10)


def saved(folder: Path, trace: RunTrace, **fields: Any) -> Any:
    data, described = store.encode_rounds(trace, check=check_identities)
    record = make_record(method="toy", draft_length=trace.draft_length, rounds=described, **fields)
    store.write(folder, record, rounds_data=data)
    return record


def test_the_command_predicts_writes_and_marks(specbench: Any, tmp_path: Path) -> None:
    saved(tmp_path / "runs", recorded())
    table = tmp_path / "table.json"
    table.write_text(json.dumps(to_document(FLAT)))
    out = tmp_path / "out"
    code, said, err = specbench(
        "simulate", tmp_path / "runs", "--cost-table", table, "-c", 2, "--replicas", "1,2", "--requests", 12,
        "--policy", "fixed:2", "--policy", "threshold:0.5", "--overhead", 0.001, "--out", out,
    )  # fmt: skip
    assert code == 0, err
    assert "predicted, not measured" in said
    assert "closed:2 on 2 replicas" in said
    records = store.load_all(out)
    assert len(records) == 2 * 3  # plain decoding and two policies at each load
    assert all(any("simulated" in text for text in r.provenance["not_rankable_because"]) for r in records)
    lengths = {r.spec["policy"]: r.find("verification_budget") for r in records if r.method == "toy"}
    fixed, threshold = lengths["fixed:2"], next(row for name, row in lengths.items() if name.startswith("threshold"))
    assert fixed is not None
    assert threshold is not None
    assert threshold.value < fixed.value + 1
    code, said, _ = specbench("recommend", out, "--floor", 1)
    assert code == 0
    assert "predicted by a simulation" in said


def test_records_without_their_rounds_are_left_out_with_a_note(specbench: Any, tmp_path: Path) -> None:
    saved(tmp_path / "runs", recorded())
    gone = saved(tmp_path / "runs", recorded(), created="2027-01-01T00:00:00Z")
    store.rounds_path(tmp_path / "runs", gone.run_id).unlink()
    table = tmp_path / "table.json"
    table.write_text(json.dumps(to_document(FLAT)))
    flags = ["--cost-table", table, "-c", 2, "--requests", 12, "--overhead", 0.001]
    code, said, err = specbench("simulate", tmp_path / "runs", *flags)
    assert code == 0, err
    assert f"the rounds of run {gone.run_id} (toy) are not beside it" in err
    assert "predicted, not measured" in said
    code, _, err = specbench("simulate", gone.run_id, "--in", tmp_path / "runs", *flags)
    assert code == 2
    assert "left out or moved" in err


def test_a_policy_that_plans_by_cost_meets_the_table() -> None:
    trace = recorded()
    spec = SimulationSpec(table=FLAT, concurrency=(8,), policies=("fixed", "load-aware"), requests=16, overhead=0.0)
    record = make_record(method="toy", draft_length=3)
    _, fixed, aware = simulate([source_of(record, trace, spec)], spec)
    assert aware.record.spec["policy"].startswith("load-aware:")
    states = {entry.policy_state for entry in aware.trace.rounds}
    assert any("capacity=" in state for state in states)
    assert sum(e.verified for e in aware.trace.rounds) < sum(e.verified for e in fixed.trace.rounds)


def test_a_cursor_passes_over_rounds_that_the_end_cut() -> None:
    whole, cut = ReplayRound(3, 2, (0.9, 0.8, 0.7), False), ReplayRound(1, 1, (0.6,), True)
    cursor = Cursor([whole, cut, ReplayRound(3, 0, None, False)])
    assert cursor.take(2) == ReplayRound(2, 2, (0.9, 0.8), False)
    assert cursor.take(3) == ReplayRound(3, 0, None, False)
    assert cursor.take(3) == whole
    assert cursor.take(1) == cut  # where there is room for no more it is as good as any
    assert Cursor([]).take(3) is None
    assert Cursor([cut]).take(3) == cut


def test_copies_have_ids_of_their_own_and_start_elsewhere() -> None:
    script = Script.of(replay_of(recorded()), requests=15)
    found = script.by_number()
    assert len(found) == 15
    assert len({one.id for one in found.values()}) == 15
    assert {one.offset > 0 for one in found.values() if "#" in one.id} == {True}


def test_what_cannot_be_replayed_is_named() -> None:
    records = [
        make_record(method="toy", status="failed"),
        make_record(method="toy", spec={"policy": "threshold:0.5"}),
        make_record(method="toy"),
    ]
    with pytest.raises(RecordError, match=r"none of 3 records can be replayed: left out: run .*; record a run with"):
        choose(records)
    partly = make_trace([make_request([Round(1, verified=1, drafted=3)])], draft_length=3)
    with pytest.raises(RecordError, match="verified 1 of 3 drafts; a simulation replays runs of the policy 'fixed'"):
        replay_of(partly)


def test_bad_settings_are_one_line(specbench: Any, tmp_path: Path) -> None:
    saved(tmp_path / "runs", recorded())
    table = tmp_path / "table.json"
    table.write_text(json.dumps(to_document(FLAT)))
    for arguments, said in (
        (["-c", "0"], "--concurrency takes whole numbers from 1 on"),
        (["-c", "1,1"], "concurrency is a list of different whole numbers"),
        (["-k", "7"], "recorded 3 drafts a round, 7 cannot be replayed"),
        (["--policy", "fixed:9"], "recorded 3 drafts a round, 9 cannot be replayed"),
        (["--policy", "thresold:0.5"], "unknown policy 'thresold'; did you mean threshold"),
        (["--workload", "poisson"], "load.rate is missing"),
        (["--set", "rate=2"], "is not load.OPTION=VALUE"),
        (["--overhead", "much"], "--overhead is 'recorded' or seconds"),
        (["--requests", "0"], "at least one request is simulated"),
    ):
        code, _, err = specbench("simulate", tmp_path / "runs", "--cost-table", table, *arguments)
        assert code == 2, arguments
        assert said in err, err
    with pytest.raises(ConfigError, match="knows the price of drafting with placed, not with 'toy'"):
        source_of(make_record(method="toy"), recorded(), SimulationSpec(table=TABLE))


def test_another_device_is_said_and_its_overhead_not_taken() -> None:
    from dataclasses import replace

    table = replace(FLAT, origin=Origin(device="an accelerator", dtype="bfloat16"))
    source = source_of(make_record(method="toy", draft_length=3), recorded(), SimulationSpec(table=table))
    said = " ".join(source.notes)
    assert "another device (an accelerator) than the recorded run (a processor)" in said
    assert "another dtype" in said
    assert "recorded overhead is another device's" in said
    assert source.costs.overhead.at(8) == 0
    own = source_of(make_record(method="toy", draft_length=3), recorded(), SimulationSpec(table=FLAT))
    assert own.costs.overhead.at(1) > 0


def test_a_price_of_another_draft_length_is_drawn_to_the_recorded_rounds() -> None:
    from dataclasses import replace

    trace, record = recorded(), make_record(method="toy", draft_length=3)
    longer = replace(FLAT, draft={"toy": RowCost((1, 8), (0.07, 0.07), draft_length=7)})
    source = source_of(record, trace, SimulationSpec(table=longer))
    took = {step.draft_s for step in trace.steps if step.decode_rows}
    assert len(took) == 1
    assert source.costs.draft_s(1) == pytest.approx(took.pop())
    text = "prices 7 drafts a row, the recorded rounds have 3"
    assert any(f"{text}; its price is multiplied by" in note for note in source.notes)
    same = source_of(record, trace, SimulationSpec(table=replace(longer, draft={"toy": RowCost((1,), (0.07,), (), 3)})))
    assert same.costs.draft_s(1) == 0.07
    other = replace(longer, origin=Origin(device="an accelerator"))
    apart = source_of(record, trace, SimulationSpec(table=other))
    assert apart.costs.draft_s(1) == 0.07
    assert any(note.endswith(text) for note in apart.notes)


def test_steps_with_prompts_are_scaled_apart_from_steps_that_only_decode() -> None:
    from dataclasses import replace

    from specbench.metrics._emissions import pure_decode
    from specbench.simulation.costs import NO_PRICE, StepCosts, forward_check

    trace = recorded()
    table = replace(FLAT, origin=Origin(device="a processor"))
    free = StepCosts(table, NO_PRICE)
    steps = {False: [s for s in trace.steps if pure_decode(s) and s.decode_rows and s.verify_s > 0],
             True: [s for s in trace.steps if s.prefill_tokens and s.verify_s > 0]}  # fmt: skip
    costs = source_of(make_record(method="toy", draft_length=3), trace, SimulationSpec(table=table)).costs
    for mixed, found in steps.items():
        assert found
        asked = [(s.decode_tokens, s.decode_rows, s.prefill_tokens) for s in found]
        ours = sum(free.forward_s(tokens, rows, prompt=prompt) for tokens, rows, prompt in asked)
        took = sum(s.verify_s for s in found)
        assert forward_check(trace, free, mixed=mixed) == pytest.approx(ours / took)
        scaled = sum(costs.forward_s(tokens, rows, prompt=prompt) for tokens, rows, prompt in asked)
        assert scaled == pytest.approx(took)
    assert costs.scale != costs.mixed_scale
