"""Each alarm rings for its planted fault and stays silent on healthy runs."""

from __future__ import annotations

import random

from support_traces import Round, example_trace, make_request, make_trace, plain_trace, simulate_trace

from specbench.metrics.alarms import PLUGIN, distinct_share, find_alarms, prompt_alarms
from specbench.types import RunTrace, Status


def names(trace: RunTrace) -> set[str]:
    return {alarm.name for alarm in find_alarms(trace)}


def test_a_healthy_run_raises_none() -> None:
    trace = simulate_trace(0.8, gamma=5, rounds=2000)
    assert find_alarms(trace) == []
    assert find_alarms(plain_trace(trace)) == []
    assert find_alarms(example_trace()) == []


def test_one_sentence_500_times_is_low_diversity() -> None:
    requests = [make_request([Round(i % 4)], id=f"r{i}", prompt_hash="same", first_step=1 + i) for i in range(500)]
    (alarm,) = find_alarms(make_trace(requests))
    assert alarm.name == "low-diversity-prompts"
    assert "1 distinct prompts among 500" in alarm.message
    assert [e.value for e in PLUGIN.compute(make_trace(requests)) if e.metric == "unique_prompt_share"] == [1 / 500]


def test_a_prompt_that_repeats_one_sentence_500_times_is_low_diversity() -> None:
    sentence = [5, 9, 2, 7, 7, 1, 30, 4, 8, 11]
    (alarm,) = prompt_alarms({"loop": sentence * 500, "short": sentence})
    assert "'loop'" in alarm.message
    generator = random.Random(0)
    varied = {f"p{i}": [generator.randrange(50_000) for _ in range(300)] for i in range(20)}
    assert prompt_alarms(varied) == []
    assert [a.name for a in prompt_alarms(dict.fromkeys("abcdef", sentence))] == ["low-diversity-prompts"]


def test_few_prompts_with_distinct_text_are_not_flagged() -> None:
    requests = [make_request([Round(1)], id=f"r{i}", first_step=1 + i) for i in range(3)]
    assert names(make_trace(requests)) == set()


def test_looping_output_is_flagged() -> None:
    loop = [3, 4, 5, 6] * 25
    requests = [
        make_request([Round(3)] * 24 + [Round(2, verified=2)], id=f"r{i}", tokens=loop, first_step=1 + 25 * i)
        for i in range(4)
    ]
    assert names(make_trace(requests)) == {"looping-output"}
    assert distinct_share([1, 2, 3]) is None


def drifting(lengths: list[int], *, requests: int = 6) -> RunTrace:
    made, step = [], 1
    for number in range(requests):
        made.append(make_request([Round(k) for k in lengths], id=f"r{number}", first_step=step))
        step += len(lengths)
    return make_trace(made)


def test_acceptance_that_falls_with_depth_is_flagged() -> None:
    trace = drifting([3] * 12 + [2] * 12 + [0] * 40, requests=10)
    (alarm,) = find_alarms(trace)
    assert alarm.name == "context-depth"
    assert "4.00 at output depth 0-15" in alarm.message
    curve = [e.value for e in PLUGIN.compute(trace) if e.metric == "accepted_length_by_depth"]
    assert curve == sorted(curve, reverse=True)


def test_steady_acceptance_has_no_depth_alarm() -> None:
    assert names(drifting([3, 0, 1, 2] * 16)) == set()


def test_shrinking_drafts_near_the_limit_are_no_drift() -> None:
    healthy = [Round(3)] * 60 + [Round(0, verified=0)] * 40
    made = [make_request(healthy, id=f"r{i}", first_step=1 + 100 * i) for i in range(4)]
    assert "context-depth" not in names(make_trace(made))


def test_a_position_that_is_always_wrong_is_a_cliff() -> None:
    rounds = [Round(1 if i % 10 else 0) for i in range(200)]
    (alarm,) = find_alarms(make_trace([make_request(rounds)]))
    assert alarm.name == "conditional-cliff"
    assert "from 0.90 at position 1 to 0.00 at 2" in alarm.message


def test_a_drafter_that_proposes_nothing_is_reported() -> None:
    idle = make_trace([make_request([Round(0, verified=0)] * 50)], draft_length=3)
    assert names(idle) == {"zero-draft-rounds"}


def test_failed_requests_make_an_invalid_row() -> None:
    bad = make_request([Round(1)], id="bad", status=Status.FAILED, first_step=2)
    assert names(make_trace([make_request([Round(1)], id="good"), bad])) == {"invalid-row"}
    assert names(make_trace([])) == {"invalid-row"}
