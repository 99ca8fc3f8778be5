"""DSpark and DeepSpec's DFlash against everything that the reference recorded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from specbench_drafters.dflash import PLUGIN as DFLASH
from specbench_drafters.dspark import PLUGIN as DSPARK
from support_drafting import (
    FIXTURES,
    CounterRandom,
    expected,
    fixture_view,
    make_features,
    make_rows,
    make_verdict,
    recorded,
)
from support_fixture_runs import Threshold, engine_drafter, metrics_row, recorded_row, run_again

DSPARKS = ["dspark_markov", "dspark_gated", "dspark_rnn"]
ALL = [*DSPARKS, "dflash", "zlab_dflash"]
SLOTS = [5, 0, 3]


def plugin(name: str) -> Any:
    return DSPARK if name in DSPARKS else DFLASH


def step_features(name: str, cycle: int) -> Any:
    """Features of the three recorded prompts entering ``cycle``, as one ragged step."""
    parts = []
    for index, run in enumerate(expected(name)["runs"]):
        now = run["cycles"][cycle]
        positions = now["context_positions"]
        ids = [run["output_ids"][p] for p in positions]
        hidden = recorded(name)[f"p{index}.c{cycle}.context_features"]
        parts.append((ids, positions[0], hidden, run["output_ids"][now["start"]]))
    return make_features(parts)


def rows_at(name: str, cycle: int) -> Any:
    runs = expected(name)["runs"]
    starts = [run["cycles"][cycle]["start"] for run in runs]
    return make_rows(SLOTS, starts, [run["output_ids"][s] for run, s in zip(runs, starts)])


@pytest.mark.parametrize("name", ALL)
def test_recorded_tensors_with_three_prompts_in_one_batch(name: str) -> None:
    drafter = plugin(name).load(FIXTURES / name, target=fixture_view(), options={})
    runs, tensors = expected(name)["runs"], recorded(name)
    drafter.begin(make_rows(SLOTS, [0, 0, 0], [0, 0, 0]))
    drafter.prefill(make_rows(SLOTS, [0, 0, 0], [0, 0, 0]), step_features(name, 0))
    for cycle in range(3):
        rows = rows_at(name, cycle)
        hidden = drafter.state.block(rows)
        base = drafter.model.logits(drafter.model.predictions(hidden, drafts=5))
        proposal = drafter.propose(rows, limits=torch.tensor([5, 5, 5]), rng=CounterRandom())
        assert proposal.draft is None
        assert proposal.counts.tolist() == [5, 5, 5]
        for index, run in enumerate(runs):
            key, now = f"p{index}.c{cycle}", run["cycles"][cycle]
            close(hidden[index], tensors[f"{key}.block_hidden"])
            close(base[index], tensors[f"{key}.draft_logits" if name == "zlab_dflash" else f"{key}.base_logits"])
            assert proposal.tokens[index].tolist() == now.get("full_draft", now["draft_tokens"])
            if name in DSPARKS:
                previous = torch.cat((rows.last_token[index : index + 1], proposal.tokens[index, :-1]))
                bias = drafter.model.markov_head.forced(hidden[index], previous)
                close(base[index] + bias, tensors[f"{key}.corrected_logits"])
                assert proposal.confidence is not None
                close(torch.logit(proposal.confidence[index].double()).float(), tensors[f"{key}.confidence_logits"])
            else:
                assert proposal.confidence is None
        if cycle < 2:
            accepted = [run["cycles"][cycle]["accepted_draft_tokens"] for run in runs]
            verdict = make_verdict(accepted, [run["cycles"][cycle]["next_token"] for run in runs])
            drafter.commit(rows, verdict=verdict, features=step_features(name, cycle + 1))


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ALL)
def test_recorded_generations(name: str) -> None:
    record = expected(name)
    counted = run_again(engine_drafter(plugin(name), name), name, record["runs"], drafts=5)
    for found, run in zip(counted, record["runs"]):
        assert list(found.output) == run["output_ids"][run["num_input_tokens"] :]
        assert list(found.output) == run["target_greedy_ids"][run["num_input_tokens"] :]
        assert list(found.acceptance) == run["acceptance_lengths"]
        for seen, cycle in zip(found.rounds, run["cycles"], strict=True):
            assert list(seen.draft_ids) == cycle["draft_tokens"]
            assert seen.anchor_position == cycle["start"]
            assert seen.accepted == cycle["accepted_draft_tokens"]
            if name in DSPARKS:
                assert seen.confidence is not None
                logits = torch.logit(torch.tensor(seen.confidence, dtype=torch.float64))
                assert logits.tolist() == pytest.approx(cycle["confidence_logits"], abs=1e-4)
    if name == "zlab_dflash":
        lengths = [a for run in counted for a in run.acceptance]
        assert sum(lengths) / len(lengths) == pytest.approx(record["mean_acceptance_length_over_cycles"])
        means = [sum(run.acceptance) / len(run.acceptance) for run in counted]
        assert sum(means) / 3 == pytest.approx(record["mean_of_per_prompt_means"])
        return
    assert metrics_row(counted, drafts=5) == pytest.approx(recorded_row(record))
    reached = [sum(a >= k for run in counted for a in run.accepted) for k in range(6)]
    assert reached[:-1] == record["conditional_acceptance"]["reached"]
    assert reached[1:] == record["conditional_acceptance"]["accepted"]


def greedy_extras(name: str, *, thresholds: bool) -> list[dict[str, Any]]:
    """Recorded greedy runs with stop tokens and length limits, or with confidence thresholds."""
    runs = [r for r in expected(name)["extra_runs"] if r["temperature"] == 0.0]
    return [r for r in runs if bool(r.get("confidence_threshold")) == thresholds]


@pytest.mark.parametrize("name", ALL)
def test_recorded_stops_and_limits(name: str) -> None:
    # z-lab's loop does not look at its first token and runs a cycle after a stop there; ours ends.
    runs = [r for r in greedy_extras(name, thresholds=False) if not r["note"].endswith("one cycle still runs")]
    assert len(runs) >= 4
    for found, run in zip(run_again(engine_drafter(plugin(name), name), name, runs, drafts=5), runs):
        assert list(found.output) == run["output_ids"][-run["num_output_tokens"] :], run["note"]
        if name == "zlab_dflash":
            # It counts a cycle's whole acceptance even when a stop token cut the output inside it.
            cut = [a for a, r in zip(run["acceptance_lengths"], found.rounds) if r.stop_reason != "stop"]
            assert [r.committed for r in found.rounds if r.stop_reason != "stop"] == cut
            assert len(found.rounds) == len(run["acceptance_lengths"])
            continue
        assert list(found.acceptance) == run["acceptance_lengths"], run["note"]
        assert list(found.proposed) == run["proposal_lengths"], run["note"]
        assert list(found.accepted) == run["accepted_draft_lengths"], run["note"]
        if found.rounds:
            assert metrics_row([found], drafts=5) == pytest.approx(recorded_row(run)), run["note"]


@pytest.mark.parametrize("name", DSPARKS)
def test_recorded_confidence_thresholds(name: str) -> None:
    runs = greedy_extras(name, thresholds=True)
    assert len(runs) >= 3
    for threshold in sorted({r["confidence_threshold"] for r in runs}):
        these = [r for r in runs if r["confidence_threshold"] == threshold]
        drafter = engine_drafter(DSPARK, name)
        policy = Threshold(5, threshold)
        for found, run in zip(run_again(drafter, name, these, drafts=5, policy=policy), these):
            assert list(found.output) == run["output_ids"][-run["num_output_tokens"] :]
            assert list(found.acceptance) == run["acceptance_lengths"]
            assert list(found.proposed) == run["proposal_lengths"]
            assert metrics_row([found], drafts=5) == pytest.approx(recorded_row(run))
