"""Recommendations: the choice, its rival, what is said of both, and what was not weighed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support_records import KEY, make_record
from support_site import BUSY

from specbench.errors import RecordError, UnknownNameError
from specbench.records import store
from specbench.records.schema import Record
from specbench.report.recommend import recommend
from specbench.sla import Ceiling, Sla

LEVEL = Sla(20.0, (Ceiling("ttft", 99, 0.5),))


def setting(
    method: str, throughput: float | None, *, speed: float = 30.0, ttft: float = 0.1, users: int = 8, seed: int = 0,
    outcome: str | None = "pass", key: dict[str, Any] | None = None, length: int = 3, **more: Any,
) -> Record:  # fmt: skip
    rows: list[dict[str, Any]] = [
        {"metric": "tokens_per_s_user", "value": speed, "unit": "tokens/s", "n": 9, "n_of": "requests",
         "scope": {"stat": "mean"}, "low": speed - 2, "high": speed + 2, "interval": "bootstrap over prompts"},
        {"metric": "ttft", "value": ttft, "unit": "s", "n": 9, "n_of": "requests", "scope": {"stat": "p99"}},
    ]  # fmt: skip
    if throughput is not None:
        row = {"metric": "steady_tokens_per_s", "value": throughput, "unit": "tokens/s", "n": 999, "n_of": "tokens"}
        rows.append(row)
    plain = method == "vanilla"
    verdict = None if plain or outcome is None else {
        "outcome": outcome, "rule": "greedy", "reason": "compared", "requests_compared": 9, "rounds_with_drafts": 99,
    }  # fmt: skip
    spec = {"temperature": 0.0, "concurrency": users, "seed": seed, "policy": more.pop("policy", "fixed")}
    fields = {"drafter": None, "verdict": verdict, "estimates": rows, "spec": spec | more.pop("spec", {}), **more}
    timing = {**KEY["timing"], "row_limit": users}
    return make_record(
        method=method,
        draft_length=0 if plain else length,
        key={**KEY, "load": f"closed:{users}", "timing": timing, **(key or {})},
        **fields,
    )


def text(found: Any) -> str:
    return " | ".join(found.reasons)


def test_the_most_throughput_that_holds_the_level_with_its_runner_up() -> None:
    records = [
        setting("vanilla", 100.0, users=4),
        setting("ngram", 150.0, users=8),
        setting("ngram", 190.0, users=16, speed=19.0),  # below the floor
        setting("dspark", 140.0, users=8),
        setting("dspark", 170.0, users=8, policy="load-aware:lag=2"),
        setting("mtp", 400.0, users=32, ttft=0.9),  # above the ceiling
    ]
    found = recommend(records, LEVEL)
    assert found.chosen is not None
    assert (found.chosen.label, found.chosen.load) == ("dspark:3 load-aware:lag=2", "closed:8")
    assert found.runner_up is not None
    assert (found.runner_up.label, found.runner_up.throughput.value) == ("ngram:3", 150.0)
    assert found.lead is not None
    assert found.lead.value == pytest.approx(170 / 150)
    assert found.lead.low is None
    assert "of the 4 of 6 settings" in text(found)
    assert "whether they are apart is not known, with 1 and 1 runs (1 more paired are needed)" in text(found)
    assert "1.70 times the throughput of plain decoding at closed:4" in text(found)
    assert [c.holds for c in found.candidates] == [True] * 4 + [False] * 2


@pytest.mark.parametrize(("theirs", "word"), [((150.0, 151.0, 149.0), "apart"), ((169.0, 172.0, 170.5), "not apart")])
def test_repeats_say_whether_the_two_are_apart(theirs: tuple[float, ...], word: str) -> None:
    records = [setting("dspark", 170.0 + seed, seed=seed) for seed in range(3)]
    records += [setting("ngram", rate, seed=seed) for seed, rate in enumerate(theirs)]
    found = recommend(records, LEVEL)
    assert found.lead is not None
    assert found.lead.n == 3
    assert found.lead.low is not None
    assert f"from run to run, {word}" in text(found)
    assert "plain decoding was not among the records" in text(found)


def test_nothing_attains_it_and_the_nearest_is_named() -> None:
    found = recommend([setting("ngram", 150.0, speed=15.0), setting("dspark", 90.0, speed=18.0)], LEVEL)
    assert found.chosen is None
    assert found.runner_up is None
    assert found.reasons[0] == "no setting of 2 attains >= 20 tok/s/user, ttft p99 <= 0.5 s"
    assert found.reasons[1] == "nearest: dspark:3 at closed:8: tok/s/user 18, asked 20"


def test_what_may_not_be_weighed_is_named() -> None:
    other = {"target_weights": "9" * 64}
    records = [
        setting("ngram", 150.0),
        setting("vanilla", 100.0),
        setting("dspark", 400.0, outcome="fail"),
        setting("mtp", 400.0, outcome=None),
        setting("eagle3", None),
        setting("dflash", 300.0, status="failed"),
        setting("dflash", 300.0, spec={"causal": False}),
        setting("dspark-rnn", 900.0, key=other),
        setting("mtp", 900.0, provenance={"git_sha": "f" * 40, "git_dirty": False, **BUSY}),
    ]
    found = recommend(records, LEVEL)
    assert found.chosen is not None
    assert found.chosen.label == "ngram:3"
    said = "\n".join(found.left_out)
    for part in ("verdict is fail", "verdict is absent", "no steady throughput", "it is failed", "not causal",
                 "its times are not ranked",
                 "1 runs (dspark-rnn:3) are not comparable with the 2 weighed: target weights"):  # fmt: skip
        assert part in said


def test_simulated_records_are_weighed_and_said_to_be_predictions() -> None:
    marked = {"spec": {"backend": "simulated"}, "outcome": None}
    found = recommend([setting("ngram", 150.0, **marked), setting("vanilla", 120.0, **marked)], LEVEL)
    assert "predicted by a simulation, not measured" in text(found)


def test_a_limit_within_the_interval_is_said() -> None:
    assert "within noise: the interval of tok/s/user" in text(recommend([setting("ngram", 99.0, speed=21.0)], LEVEL))


def test_a_load_can_be_named() -> None:
    records = [setting("ngram", 150.0, users=8), setting("ngram", 90.0, users=4)]
    found = recommend(records, LEVEL, load="closed:4")
    assert found.chosen is not None
    assert found.chosen.load == "closed:4"
    with pytest.raises(UnknownNameError, match="unknown load 'closed:16'; did you mean"):
        recommend(records, LEVEL, load="closed:16")
    with pytest.raises(RecordError, match=r"none of 1 records can be weighed; run .* verdict is fail"):
        recommend([setting("ngram", 150.0, outcome="fail")], LEVEL)


def test_the_command(specbench: Any, tmp_path: Path) -> None:
    for record in (setting("ngram", 150.0), setting("vanilla", 100.0)):
        store.write(tmp_path, record)
    code, out, err = specbench("recommend", tmp_path, "--floor", 20, "--ttft-p99", 0.5)
    assert (code, err) == (0, "")
    assert "run ngram:3 at closed:8: 150.0 tokens/s" in out
    assert specbench("recommend", tmp_path, "--floor", 90)[0] == 1
    code, out, err = specbench("recommend", tmp_path)
    assert code == 2
    assert err.startswith("error: no service level is named; give --floor")
