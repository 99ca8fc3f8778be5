"""Frontiers from hand-made records: dominated points stay, interpolation by hand, gains, break-even, refusals."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from support_records import KEY, make_record

from specbench.errors import RecordError
from specbench.records import schema
from specbench.records.schema import EstimateRow, Record
from specbench.report.curves import (
    Curve,
    break_even,
    dominated,
    gain_at_speed,
    gain_at_throughput,
    interpolate,
    speed_at,
    throughput_at,
)
from specbench.report.frontier import frontier, frontier_table, percent_gain
from specbench.report.series import families


def row(metric: str, value: float, unit: str, **scope: str) -> EstimateRow:
    return EstimateRow(metric=metric, value=value, unit=unit, n=9, n_of="requests", scope=scope)


def cell(
    method: str, users: int, speed: float, throughput: float, *, seed: int = 0, round_s: float = 0.1, tau: float = 1.0,
    key: dict[str, Any] | None = None, **fields: Any,
) -> Record:  # fmt: skip
    key = deepcopy(key or KEY)
    key["load"], key["timing"]["row_limit"] = f"closed:{users}", users
    spec = {"concurrency": users, "workload": "closed", "temperature": 0.0, "seed": seed, "policy": "fixed"}
    estimates = [
        row("tokens_per_s_user", speed, "tokens/s", stat="mean").model_copy(
            update={"low": speed - 1, "high": speed + 1, "interval": "bootstrap over prompts"}
        ),
        row("steady_tokens_per_s", throughput, "tokens/s"),
        row("T_round", round_s, "s", steps="decode", stat="mean"),
        row("tau", tau, "tokens per round"),
        row("mean_batch_rows", users, "rows"),
    ]
    length = 0 if method == "vanilla" else 3
    verdict = {"outcome": "pass", "rule": "greedy", "reason": "compared", "requests_compared": 9,
               "rounds_with_drafts": 99}  # fmt: skip
    drafter: dict[str, Any] = {"verdict": verdict} if length else {"drafter": None}
    made_by = {"git_sha": "f" * 40, "git_dirty": False}
    more = {**drafter, "estimates": estimates, "provenance": made_by, **fields}
    return make_record(method=method, draft_length=length, key=key, spec=spec, **more)


VANILLA = [(4, 40.0, 150.0, 0.025), (8, 30.0, 230.0, 0.034), (16, 20.0, 300.0, 0.05)]
DRAFTING = [(4, 70.0, 270.0, 0.045), (8, 40.0, 310.0, 0.075), (16, 22.0, 340.0, 0.14), (32, 9.0, 280.0, 0.3)]


def cells(*, seeds: int = 1, jitter: float = 0.0) -> list[Record]:
    found = []
    for seed in range(seeds):
        scale = 1 + jitter * (seed - (seeds - 1) / 2)
        for method, points, tau in (("vanilla", VANILLA, 1.0), ("toy", DRAFTING, 2.5)):
            for users, speed, rate, round_s in points:
                found.append(cell(method, users, speed * scale, rate * scale, seed=seed, round_s=round_s, tau=tau))
    return found


def curve(label: str, *, seeds: int = 1, jitter: float = 0.0) -> Curve:
    found = frontier(cells(seeds=seeds, jitter=jitter)).find(label)
    assert found is not None
    return found


def test_points_lie_in_the_order_of_load_and_dominated_ones_are_kept() -> None:
    ours = curve("toy:3")
    assert [p.load for p in ours.points] == ["closed:4", "closed:8", "closed:16", "closed:32"]
    assert [p.dominated for p in ours.points] == [False, False, False, True]
    assert [p.speed.value for p in ours.frontier] == [22.0, 40.0, 70.0]
    assert (ours.speeds, ours.throughputs) == ((22.0, 70.0), (270.0, 340.0))
    (first, *_) = ours.points
    assert first.speed.interval == "bootstrap over prompts"
    assert first.throughput.low is None


def test_interpolation_by_hand() -> None:
    base, ours = curve("vanilla"), curve("toy:3")
    at = throughput_at(base, 35.0)
    assert at is not None
    assert at.value == pytest.approx(190.0)
    assert throughput_at(base, 41.0) is None  # nothing is extrapolated
    assert throughput_at(base, 19.9) is None
    speed = speed_at(ours, 290.0)
    assert speed is not None
    assert speed.value == pytest.approx(55.0)
    assert speed_at(ours, 260.0) is None


def test_gains_by_hand() -> None:
    base, ours = curve("vanilla"), curve("toy:3")
    gain = gain_at_speed(ours, base, 30.0)
    assert gain is not None
    assert gain.value == pytest.approx((310 + 30 * 10 / 18) / 230)
    assert percent_gain(gain) == "+42 %"
    faster = gain_at_throughput(ours, base, 290.0)
    assert faster is not None
    assert faster.value == pytest.approx(55.0 / (20 + 10 * 10 / 70))
    assert gain_at_speed(ours, base, 60.0) is None
    assert percent_gain(None) == "-"


def test_a_nearly_empty_baseline_gives_no_ratio() -> None:
    base, ours = curve("vanilla"), curve("toy:3")
    assert gain_at_speed(ours, base, 40.0, few=3) is not None
    assert gain_at_speed(ours, base, 40.0, few=4) is None  # the baseline reaches 40 with four users
    assert gain_at_speed(ours, base, 38.0, few=4) is not None


def test_repeats_give_intervals_from_run_to_run() -> None:
    base, ours = curve("vanilla", seeds=3, jitter=0.02), curve("toy:3", seeds=3, jitter=0.02)
    point = ours.points[1]
    assert (point.speed.n, point.speed.interval) == (3, "run to run")
    assert point.speed.value == pytest.approx(40.0)
    gain = gain_at_speed(ours, base, 30.0)
    assert gain is not None
    assert (gain.n, gain.n_of, gain.interval) == (3, "runs", "run to run")
    assert gain.low is not None
    assert gain.high is not None
    assert gain.low < gain.value < gain.high
    assert percent_gain(gain).startswith("+42 % [+")


def test_break_even_tau_is_round_time_over_the_plain_step() -> None:
    base, ours = curve("vanilla", seeds=2), curve("toy:3", seeds=2)
    even = break_even(ours.points[1], base.points[1])
    assert even is not None
    assert even.value == pytest.approx(0.075 / 0.034)
    assert even.low == pytest.approx(even.value)
    assert even.n == 2


def test_the_table_says_all_of_it() -> None:
    console = Console(width=150)
    lost = cell("toy", 64, 1.0, 1.0, estimates=[])
    with console.capture() as text:
        console.print(frontier_table(frontier([*cells(), lost])))
    shown = text.get()
    assert "closed:32 *" in shown
    assert "2.21" in shown  # breaks even at 0.075 / 0.034
    assert f"run {lost.run_id} (toy:3, closed:64) has no steady throughput and no tok/s/user" in shown


def test_contestants_with_one_name_are_told_apart() -> None:
    other = {"name": "toy", "sha256": "8" * 64, "source": "folder"}
    found = frontier([cell("toy", 4, 40.0, 100.0), cell("toy", 4, 44.0, 100.0, drafter=other)])
    assert len({c.label for c in found.curves}) == 2
    assert any("88888888" in c.label for c in found.curves)


def test_runs_that_cannot_be_ranked_are_points_and_said() -> None:
    load = {"load": {"others_cores": 1.0, "busy": "so they are"}, "cpu": {"logical_cores": 2}}
    busy = cell("toy", 64, 3.0, 250.0, provenance={"git_sha": "f" * 40, "git_dirty": False, **load})
    unsure = cell("toy", 128, 2.0, 240.0, verdict=None)
    found = frontier([*cells(), busy, unsure])
    why = "other processes used 1.0 of 2 processors: its times are not ranked"
    assert sorted(found.notes) == sorted([
        f"run {busy.run_id} (toy:3) cannot be ranked: {why}",
        f"run {unsure.run_id} (toy:3) cannot be ranked: the losslessness verdict is absent",
    ])  # fmt: skip
    curve = found.find("toy:3")
    assert curve is not None
    assert [point.size for point in curve.points][-2:] == [64, 128]
    assert frontier(cells()).notes == ()


def test_a_heavier_load_may_ask_more_prompts_of_the_same_tasks() -> None:
    def at(users: int, count: int, tasks: list[str]) -> Record:
        key = deepcopy(KEY)
        key["prompt_set"] = {"ids": f"{count:064}", "order": f"{count:064}", "count": count}
        key["rendering"] |= {"dataset": f"{count:064}", "turns": count}
        made = cell("toy", users, 40.0 - users, 100.0 + users, key=key)
        spec = {**made.spec, "tasks": tasks, "num_prompts": count, "max_context": 90 + count}
        document = made.model_dump(mode="json", exclude={"run_id"}) | {"spec": spec}
        return schema.build(**document)

    found = frontier([at(4, 18, ["a"]), at(16, 96, ["a"])])
    assert [[point.load for point in curve.points] for curve in found.curves] == [["closed:4", "closed:16"]]
    with pytest.raises(RecordError, match=r"cannot share a frontier: tasks: "):
        frontier([at(4, 18, ["a"]), at(16, 96, ["b"])])
    with pytest.raises(RecordError, match=r"cannot share a frontier: .*prompt.*18 against 96"):
        frontier([at(4, 18, ["a"]), at(4, 96, ["a"]), at(16, 96, ["a"])])
    assert len(families([at(4, 18, ["a"]), at(4, 96, ["a"])])) == 2, "at one load all are asked the same"
    (family,) = families([at(4, 18, ["a"]), at(16, 96, ["a"])])
    assert family.facts["prompts"] == "18 of a; 96 of a"
    assert len(families([at(4, 18, ["a"]), at(16, 18, ["b"])])) == 2


def test_other_targets_rules_temperatures_and_machines_are_refused() -> None:
    for path, value, words in (
        ("target_weights", "7" * 64, "target weights"),
        ("acceptance_rule", "typical", "acceptance rule"),
        ("dtype", "bfloat16", "dtype"),
    ):
        with pytest.raises(RecordError, match=words):
            frontier([cell("toy", 4, 1.0, 1.0), cell("toy", 8, 1.0, 1.0, key={**KEY, path: value})])
    machine = {**KEY, "timing": {**KEY["timing"], "hardware": "another"}}
    with pytest.raises(RecordError, match="hardware: a processor against another"):
        frontier([cell("toy", 4, 1.0, 1.0), cell("toy", 8, 1.0, 1.0, key=machine)])
    assert frontier([]).curves == ()


@settings(max_examples=60)
@given(st.lists(st.tuples(*[st.integers(1, 20).map(float)] * 3), min_size=1, max_size=8), st.floats(0.5, 21))
def test_the_frontier_is_never_beaten_and_never_leaves_its_range(places: list[Any], at: float) -> None:
    kept = [p for p, beaten in zip(places, dominated(places)) if not beaten]
    assert kept
    for axis in (0, 1):
        found = interpolate(places, at, axis=axis)
        inside = min(p[axis] for p in kept) <= at <= max(p[axis] for p in kept)
        assert (found is not None) == inside
        if found is not None:
            assert found[axis] == pytest.approx(at)
            assert min(p[1 - axis] for p in kept) <= found[1 - axis] <= max(p[1 - axis] for p in kept)
