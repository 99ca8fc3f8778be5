"""EAGLE-3 in DeepSpec's and SafeAILab's layout against everything that the references recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import torch
from specbench_drafters.eagle3 import Eagle3
from support_drafting import (
    FIXTURES,
    CounterRandom,
    expected,
    fixture_model,
    make_features,
    make_rows,
    make_verdict,
    recorded,
    target_features,
    view_of,
)
from support_engine import request, serve
from support_fixture_runs import engine_drafter, fixture_target, metrics_row, recorded_row, run_again

TARGETS = {"eagle3": "target", "eagle3_safeailab": "eagle3_safeailab/target"}
SLOTS = [5, 0, 3]


@cache
def load(name: str) -> Eagle3:
    return Eagle3.load(FIXTURES / name, target=view_of(fixture_model(TARGETS[name])), options={})


def start_of(cycle: dict[str, Any]) -> int:
    return int(cycle.get("start", cycle.get("sequence_length", 0)))


def step_features(name: str, index: int) -> Any:
    """Features of the three recorded prompts entering cycle ``index``, as one ragged step."""
    parts = []
    for number, run in enumerate(expected(name)["runs"]):
        cycle = run["cycles"][index]
        hidden = recorded(name)[f"p{number}.c{index}.context_features"]
        first = start_of(cycle) - len(hidden)
        ids = run["output_ids"][first : start_of(cycle)]
        assert run["output_ids"][first + 1 : start_of(cycle) + 1] == cycle["context_tokens"]
        parts.append((ids, first, hidden, cycle["anchor_token"]))
    return make_features(parts)


def rows_at(name: str, index: int) -> Any:
    cycles = [run["cycles"][index] for run in expected(name)["runs"]]
    return make_rows(SLOTS, [start_of(c) for c in cycles], [c["anchor_token"] for c in cycles])


@contextmanager
def watching(drafter: Eagle3) -> Iterator[dict[str, list[torch.Tensor]]]:
    """The layer outputs and draft logits of a proposal, [B, width] a step."""
    seen: dict[str, list[torch.Tensor]] = {"states": [], "logits": []}
    finish, logits = drafter.model.finish, drafter.model.logits

    def watch_finish(output: torch.Tensor) -> Any:
        seen["states"].append(output[0])
        return finish(output)

    def watch_logits(normed: torch.Tensor) -> torch.Tensor:
        seen["logits"].append(logits(normed))
        return seen["logits"][-1]

    drafter.model.finish, drafter.model.logits = watch_finish, watch_logits  # type: ignore[method-assign]
    yield seen
    del drafter.model.finish, drafter.model.logits


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", TARGETS)
def test_recorded_tensors_with_three_prompts_in_one_batch(name: str) -> None:
    drafter = load(name)
    runs, tensors = expected(name)["runs"], recorded(name)
    nothing = make_rows(SLOTS, [0, 0, 0], [0, 0, 0])
    drafter.begin(nothing)
    drafter.prefill(nothing, step_features(name, 0))
    for index in range(3):
        rows = rows_at(name, index)
        with watching(drafter) as seen:
            proposal = drafter.propose(rows, limits=torch.tensor([5, 5, 5]), rng=CounterRandom())
        assert proposal.draft is None
        assert proposal.counts.tolist() == [5, 5, 5]
        for number, run in enumerate(runs):
            key = f"p{number}.c{index}"
            assert proposal.tokens[number].tolist() == run["cycles"][index]["draft_tokens"]
            close(torch.stack(seen["logits"])[:, number], tensors[f"{key}.draft_logits"])
            if name == "eagle3":
                states = torch.stack(seen["states"])[:, number]
                close(states[0], tensors[f"{key}.seed_hidden"])
                close(states, tensors[f"{key}.step_hidden"])
        if index < 2:
            cycles = [run["cycles"][index] for run in runs]
            verdict = make_verdict([c["accepted_draft_tokens"] for c in cycles], [c["next_token"] for c in cycles])
            drafter.commit(rows, verdict=verdict, features=step_features(name, index + 1))


@pytest.mark.parametrize("name", TARGETS)
def test_taps_of_our_forward_are_the_recorded_features(name: str) -> None:
    drafter, model = load(name), fixture_model(TARGETS[name])
    for number, prompt in enumerate(expected(name)["prompts"]):
        found = target_features(prompt["input_ids"], drafter.taps.boundaries, model=model)
        close(found, recorded(name)[f"p{number}.c0.context_features"])


def test_recorded_generations_of_deepspec() -> None:
    record = expected("eagle3")
    counted = run_again(engine_drafter(Eagle3, "eagle3"), "eagle3", record["runs"], drafts=5)
    for found, run in zip(counted, record["runs"], strict=True):
        assert list(found.output) == run["output_ids"][run["num_input_tokens"] :]
        assert list(found.acceptance) == run["acceptance_lengths"]
        assert list(found.proposed) == run["proposal_lengths"]
        for seen, cycle in zip(found.rounds, run["cycles"], strict=True):
            assert list(seen.draft_ids) == cycle["draft_tokens"]
            assert seen.anchor_position == cycle["start"]
            assert seen.accepted == cycle["accepted_draft_tokens"]
    assert metrics_row(counted, drafts=5) == pytest.approx(recorded_row(record))
    reached = [sum(a >= k for run in counted for a in run.accepted) for k in range(6)]
    assert reached[:-1] == record["conditional_acceptance"]["reached"]
    assert reached[1:] == record["conditional_acceptance"]["accepted"]


def greedy_extras() -> list[dict[str, Any]]:
    return [run for run in expected("eagle3")["extra_runs"] if run["temperature"] == 0.0]


@pytest.mark.parametrize("number", range(13))
def test_recorded_stops_and_limits_of_deepspec(number: int) -> None:
    """The drafter knows the stop tokens: a drafted one ends the proposal, also when it is then rejected."""
    run = greedy_extras()[number]
    drafter = engine_drafter(Eagle3, "eagle3", stop_ids=run["stop_token_ids"] or ())
    (found,) = run_again(drafter, "eagle3", [run], drafts=5)
    assert list(found.output) == run["output_ids"][-run["num_output_tokens"] :]
    assert list(found.acceptance) == run["acceptance_lengths"]
    assert list(found.proposed) == run["proposal_lengths"]
    assert list(found.accepted) == run["accepted_draft_lengths"]
    if found.rounds:
        assert metrics_row([found], drafts=5) == pytest.approx(recorded_row(run))


def test_every_greedy_extra_run_is_tested() -> None:
    assert len(greedy_extras()) == 13


def test_recorded_generations_of_safeailab() -> None:
    record = expected("eagle3_safeailab")
    target = fixture_target("eagle3_safeailab/target")
    view = target.view(max_rows=4, max_context=200)
    drafter = Eagle3.load(FIXTURES / "eagle3_safeailab", target=view, options={})
    assert drafter.taps.boundaries == (2, 4, 5)
    requests = [
        request(number, record["prompts"][run["prompt"]]["input_ids"], max_new_tokens=run["max_new_tokens"] + 7)
        for number, run in enumerate(record["runs"])
    ]
    trace = serve(target, drafter, requests, k=5)
    for number, run in enumerate(record["runs"]):
        served = next(r for r in trace.requests if r.number == number)
        prompt = len(requests[number].prompt_ids)
        wanted = run["output_ids"][prompt:]
        assert list(served.output_ids[: len(wanted)]) == wanted
        # Its loop leaves the pending token out of the count and runs until more than the limit is out.
        rounds, out = [], 0
        for found in (r for r in trace.rounds if r.request == served.id):
            if out > run["max_new_tokens"]:
                break
            out += found.committed
            rounds.append(found)
        assert out == run["generated_by_loop"]
        assert [r.committed for r in rounds] == run["acceptance_lengths"]
        assert [r.accepted for r in rounds] == run["accepted_draft_lengths"]
        for seen, cycle in zip(rounds, run["cycles"], strict=True):
            assert list(seen.draft_ids) == cycle["draft_tokens"]
            assert seen.anchor_position == cycle["sequence_length"]
