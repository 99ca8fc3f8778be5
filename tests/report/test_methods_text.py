"""The methods paragraph: everything in it comes from the records, and what they do not hold is not said."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
from support_records import KEY, make_record, save_run
from support_traces import plain_trace, simulate_trace

from specbench.records.schema import EstimateRow, Record
from specbench.report.latex import escape_paragraphs
from specbench.report.methods import methods_text

PROVENANCE: dict[str, Any] = {
    "git_sha": "e" * 40,
    "git_dirty": False,
    "device_name": "NVIDIA H999",
    "python": "3.11.9",
    "packages": {"specbench-llm": "0.1.0", "torch": "2.13.0", "transformers": "5.24.0"},
    "gpu": {"driver": "570.1", "power_limit_w": 700},
}
SPEC = {"temperature": 0.0, "concurrency": 4, "threads": 2, "seed": 11, "policy": "fixed:3", "tasks": ["starter-math"]}
TELEMETRY = {
    "source": "nvml", "device": "NVIDIA H999", "period_s": 0.1, "start_s": 1.0, "end_s": 2.0, "samples": 9,
    "tokens": 100, "energy_j": 50.0, "energy_from": "counter",
}  # fmt: skip

ENERGY = EstimateRow(metric="joules_per_token", value=0.5, unit="J/token", n=100, n_of="output tokens")


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    folder, trace = tmp_path_factory.mktemp("runs"), simulate_trace(0.7, gamma=3, rounds=40)
    plain = plain_trace(trace)
    more: dict[str, Any] = {"provenance": PROVENANCE, "spec": SPEC, "counts": {"ok": 10, "warmup": 4}}
    control = save_run(folder, plain, drafter=None, **more)
    revised = {"name": "tiny", "sha256": "a" * 64, "source": "hub", "details": {"revision": "abc123"}}
    return [control, save_run(folder, trace, baseline=(control, plain), target=revised, **more)]


def test_it_says_what_was_measured_how_and_on_what(records: list[Record]) -> None:
    text = methods_text(records)
    tau, speed = records[1].find("tau"), records[1].find("speed_up")
    assert tau is not None
    assert speed is not None
    for piece in (
        f"tiny (weights sha256 {'a' * 64})",
        "revision abc123",
        "NVIDIA H999; torch threads: 2; driver 570.1; power limit 700 W",
        "10 of starter-math, 10 user turns",
        "at most 64 tokens a turn; requests measured: 10, after 4 for warm-up",
        "Sampling: greedy; acceptance: rejection; draft sampling: same as target; seed 11.",
        "Load: closed:1, batches of at most 4.",
        f"specbench-llm 0.1.0, commit {'e' * 40}, metrics version",
        "Python 3.11.9, torch 2.13.0, transformers 5.24.0, measured 2026-01-02.",
        "vanilla: plain decoding; tau 1.00",
        f"at most 3 drafts a round, drafter toy (weights sha256 {'9' * 64}), policy fixed:3",
        f"tau {tau.value:.2f} [{tau.low:.2f},{tau.high:.2f}] (n = {tau.n} rounds)",
        f"speed-up over plain decoding (run {records[0].run_id}) {speed.value:.2f} ",
        f"losslessness pass (greedy: {records[1].verdict.reason if records[1].verdict else ''}",
        f"judged against run {records[0].run_id}",
        "Brackets are 95 % intervals: bootstrap over prompts, paired bootstrap over prompts.",
        f"Runs: {records[0].run_id} (vanilla), {records[1].run_id} (toy:3).",
    ):
        assert piece in text, piece
    assert text.count("\n") == 1


def _numbers_of(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [n for part in value.values() for n in _numbers_of(part)]
    if isinstance(value, list):
        return [n for part in value for n in _numbers_of(part)]
    return [float(value)] if isinstance(value, int | float) and not isinstance(value, bool) else []


def test_every_number_is_one_of_the_records(records: list[Record]) -> None:
    documents = [json.loads(record.model_dump_json()) for record in records]
    known = {f"{n:.2f}" for document in documents for n in _numbers_of(document)}
    words = " ".join(json.dumps(document) for document in documents)
    said = re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.]*\w)", methods_text(records).replace("95 % intervals", ""))
    assert len(said) > 20
    for number in said:
        assert number in words or f"{float(number):.2f}" in known, number


@pytest.mark.parametrize(
    ("change", "gone"),
    [
        ({"provenance": {}}, ["NVIDIA H999;", "driver 5", "limit 7", "Python", "torch 2", "commit e", "specbench-llm"]),
        ({"spec": {}}, ["seed", "batches", "threads", "policy", "starter-math"]),
        ({"verdict": None}, ["losslessness"]),
        ({"estimates": []}, ["tau", "speed-up", "intervals"]),
        ({"drafter": None}, ["drafter toy"]),
        ({"counts": {}}, ["requests measured", "warm-up"]),
        ({"telemetry": None, "draft_vocabulary": None}, ["nvml", "J a token", "draft vocabulary of"]),
        ({"comparability": {}}, ["Load", "Sampling: greedy", "Prompts", "float32", "engine"]),
    ],
)
def test_what_a_record_does_not_hold_is_not_claimed(
    change: dict[str, Any], gone: list[str], records: list[Record]
) -> None:
    vocabulary = {"size": 5, "target_size": 8, "committed": 40, "inside": 30}
    whole = records[1].model_copy(
        update={
            "estimates": [*records[1].estimates, ENERGY],
            "telemetry": make_record(telemetry=TELEMETRY).telemetry,
            "draft_vocabulary": make_record(draft_vocabulary=vocabulary).draft_vocabulary,
        }
    )
    notes = re.compile(r" toy:3: not ranked: [^.]*\.")  # they quote what is missing
    before = methods_text([whole])
    assert [word for word in gone if word not in before] == []
    text = notes.sub("", methods_text([whole.model_copy(update=change)]))
    for word in gone:
        assert word not in text, word


def test_groups_are_paragraphs_and_differences_are_listed(records: list[Record]) -> None:
    other = make_record(key=copy.deepcopy(KEY) | {"load": "poisson:rate=2"}, created="2026-04-01T00:00:00Z")
    dirty = {**PROVENANCE, "git_sha": "d" * 40, "git_dirty": True}
    again = make_record(provenance=dirty, spec={**SPEC, "seed": 12}, created="2026-02-01T00:00:00Z")
    text = methods_text([*records, other, again])
    first, second = text.strip().split("\n\n")
    assert "seed 11, 12" in first
    assert f"commit {'e' * 40}, {'d' * 40} with uncommitted changes" in first
    assert "measured 2026-01-02 to 2026-02-01" in first
    assert "poisson:rate=2" in second
    assert escape_paragraphs(text).count("\n\n") == 1


def test_energy_and_coverage_are_told_with_their_source(tmp_path: Path) -> None:
    vocabulary = {"size": 8192, "target_size": 49152, "committed": 1000, "inside": 973}
    text = methods_text([make_record(telemetry=TELEMETRY, estimates=[ENERGY], draft_vocabulary=vocabulary)])
    assert "NVIDIA H999 sampled every 0.1 s through nvml; 0.500 J a token (n = 100 output tokens)" in text
    assert "draft vocabulary of 8,192 of 49,152 tokens, which holds 97.3 % of those committed" in text


def test_failures_synthetic_rows_and_alarms_are_told() -> None:
    failed = make_record(status="failed", error={"kind": "E", "message": "out\nof memory"})
    forced = make_record(key=copy.deepcopy(KEY) | {"synthetic_acceptance": True})
    text = methods_text([failed, forced])
    assert "failed: out of memory." in text
    assert "acceptance was forced, not the drafter's own" in text
    assert "not ranked: acceptance is synthetic" in text
