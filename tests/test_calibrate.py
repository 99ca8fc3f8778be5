"""Calibration jobs: simulated confidences with a known fault, and a real drafter from rounds to the files beside it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support_confidence import confident_trace
from support_runs import write_prompts
from support_traces import Round, make_request, make_trace

from specbench import calibration_file
from specbench.calibrate import calibrate, collect, fit_trace, split
from specbench.config import build_run
from specbench.engine.scores import OnlineCalibrator
from specbench.errors import ConfigError
from specbench.metrics.calibration import VERIFY_ALL
from specbench.online_calibration import replay_online
from specbench.types import StopReason

FIXTURES = Path(__file__).parent / "data" / "fixtures"


# ----------------------------------------------------------------------------------------------------- samples


def test_the_halves_share_no_prompt_and_every_domain_is_in_both() -> None:
    samples = collect(confident_trace((1.0, 1.0), prompts=12, rounds=5, domains=("math", "chat", "code")))
    first, second = split(samples)
    assert not set(first.cluster.tolist()) & set(second.cluster.tolist())
    assert set(first.domain) == set(second.domain) == {"math", "chat", "code"}
    assert len(first.domain) == len(second.domain) == 30


def test_rounds_selected_by_confidence_are_left_out() -> None:
    cut = Round(1, verified=1, drafted=3, confidence=(0.9, 0.1, 0.1))
    whole = Round(2, confidence=(0.9, 0.9, 0.9))
    chosen = Round(0, confidence=(0.2, 0.2, 0.2), policy_state=VERIFY_ALL)
    samples = collect(make_trace([make_request([cut, whole, chosen])]))
    assert samples.log_odds.shape == (1, 3)
    assert not samples.accepted.any()


def test_positions_after_an_accepted_stop_do_not_count() -> None:
    stop = Round(3, committed=2, stop=StopReason.STOP_TOKEN, confidence=(0.9, 0.8, 0.7))
    assert collect(make_trace([make_request([stop])])).valid.tolist() == [[True, True, False]]


def test_what_cannot_be_calibrated_is_refused() -> None:
    with pytest.raises(ConfigError, match="gave no confidences"):
        collect(make_trace([make_request([Round(2)])]))
    with pytest.raises(ConfigError, match="two prompts"):
        split(collect(confident_trace((1.0,), prompts=1, rounds=5)))


def test_planted_over_confidence_is_found_and_mended_on_held_out_prompts() -> None:
    trace = confident_trace((2.5, 1.0, 0.5), prompts=60, rounds=150, domains=("math", "chat"))
    calibration, scores = fit_trace(trace, dataset="toy")
    assert calibration.temperatures == pytest.approx((2.5, 1.0, 0.5), rel=0.3)
    overall = [row for row in scores if row.domain is None]
    assert [row.k for row in overall] == [1, 2, 3]
    assert all(row.ece[1] < 0.03 for row in overall)
    assert overall[0].ece[0] > 0.05
    assert overall[0].brier[1] < overall[0].brier[0]
    assert {row.domain for row in scores} == {None, "math", "chat"}
    assert calibration.num_samples == calibration.held_out_samples == 4500


# ------------------------------------------------------------------------------------------------------ online


def test_online_calibration_follows_a_switch_of_domain_and_the_fit_does_not() -> None:
    """Honest confidences at first; after the switch the drafter promises too much."""
    math = confident_trace((1.0, 1.0, 1.0), prompts=20, rounds=100)
    chat = confident_trace((1.0, 1.0, 1.0), prompts=40, rounds=100, shift=1.5, seed=1, domains=("chat",))
    windows = replay_online([math, chat], temperatures=(1.0, 1.0, 1.0), window=2000)
    before, after = windows[0], windows[-1]
    assert before.domains == ("math",)
    assert after.domains == ("chat",)
    assert abs(before.online - before.raw) < 0.015  # what is left is the noise of so few samples
    assert after.frozen > 0.12
    assert after.online < 0.05
    assert after.raw == pytest.approx(after.frozen)
    again = replay_online([math, chat], temperatures=(1.0, 1.0, 1.0), window=2000)
    assert again == windows


def test_the_temperatures_are_where_online_calibration_starts() -> None:
    trace = confident_trace((2.0, 2.0), prompts=30, rounds=50)
    first = replay_online([trace], temperatures=(2.0, 2.0), window=1500)[0]
    assert first.frozen < first.raw - 0.02
    assert abs(first.online - first.frozen) < 0.03


def test_no_parameter_moves_by_more_than_its_bound() -> None:
    online = OnlineCalibrator(3, torch.device("cpu"), forget=0.01, max_step=0.02)
    before = online.parameters.clone()
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        z = torch.randn(16, 3, generator=generator, dtype=torch.float64) * 5 + 4
        online.observe(z, shown=torch.ones(16, 3, dtype=torch.bool), accepted=torch.zeros(16))
        moved = (online.parameters - before).abs()
        assert float(moved.max()) <= 0.02 + 1e-12
        before = online.parameters.clone()
    assert float(torch.sigmoid(online.log_odds(torch.full((1, 3), 4.0, dtype=torch.float64))).max()) < 0.9


def test_positions_that_were_not_reached_are_not_learned_from() -> None:
    online = OnlineCalibrator(2, torch.device("cpu"))
    z = torch.full((8, 2), 3.0, dtype=torch.float64)
    shown = torch.tensor([[True, False]] * 8)
    online.observe(z, shown=shown, accepted=torch.zeros(8))
    assert online.parameters[0].tolist() != [1.0, 0.0]
    assert online.parameters[1].tolist() == [1.0, 0.0]


def test_a_decaying_memory_adapts_faster_than_an_endless_one() -> None:
    def after_switch(forget: float) -> float:
        online = OnlineCalibrator(1, torch.device("cpu"), forget=forget, max_step=1.0)
        generator = torch.Generator().manual_seed(1)
        for rate in (0.9, 0.3):
            for _ in range(400):
                hit = (torch.rand(4, generator=generator) < rate).long()
                z = torch.full((4, 1), 2.2, dtype=torch.float64)
                online.observe(z, shown=torch.ones(4, 1, dtype=torch.bool), accepted=hit)
        return float(torch.sigmoid(online.log_odds(torch.full((1, 1), 2.2, dtype=torch.float64))))

    assert abs(after_switch(0.01) - 0.3) < 0.08
    assert after_switch(0.0) > after_switch(0.01) + 0.1


# ------------------------------------------------------------------------------------------------------- files


def test_files_round_trip_in_both_forms(tmp_path: Path) -> None:
    calibration, _ = fit_trace(
        confident_trace((2.0, 1.0), prompts=8, rounds=40), dataset="a,b", drafter_sha256="d" * 64
    )
    ours, theirs = tmp_path / "calibration.json", tmp_path / "sts.json"
    ours.write_text(json.dumps(calibration_file.to_document(calibration)))
    theirs.write_text(json.dumps(calibration_file.to_sglang(calibration)))
    assert calibration_file.read(ours) == calibration
    foreign = calibration_file.read(theirs)
    assert foreign.temperatures == calibration.temperatures
    assert foreign.drafter_sha256 is None
    assert set(json.loads(theirs.read_text())) == {
        "temperatures", "dataset", "num_samples", "ece_before", "ece_after"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ("[1]", "no calibration"),
        ("{}", "temperatures"),
        ('{"temperatures": []}', "temperatures"),
        ('{"temperatures": [1.0, -2.0]}', "temperatures"),
        ('{"temperatures": [1.0], "temprature": 1}', "temprature"),
        ('{"format": "specbench-calibration", "version": 9, "temperatures": [1.0]}', "version 9"),
        ("{", "not JSON"),
    ],
)
def test_damaged_files_are_refused_in_one_line(document: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(document)
    with pytest.raises(ConfigError, match=says) as caught:
        calibration_file.read(path)
    assert "\n" not in str(caught.value)


# -------------------------------------------------------------------------------------------------- a real run


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The trained toy DSpark of the fixtures on its target, calibrated beside a copy of its checkpoint."""
    folder = tmp_path_factory.mktemp("calibrate")
    drafter = folder / "drafter"
    drafter.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(FIXTURES / "dspark_markov" / name, drafter / name)
    task = write_prompts(
        folder / "prompts.jsonl", [["runs the number 4"], ["a plan of 7"], ["zu den 3"], ["the sum of 9 and 16"]]
    )
    flags = {
        "methods": "dspark", "target": str(FIXTURES / "target"), "drafters": {"dspark": str(drafter)},
        "tasks": [str(task)], "dtype": "float32", "device": "cpu", "threads": 1, "max_new_tokens": 60,
        "temperature": 1.0, "ignore_eos": True, "concurrency": 4, "out": folder / "runs",
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECBENCH_HOME", str(folder / "home"))
        yield flags, calibrate(build_run(flags=flags)), drafter


def test_a_drafter_is_calibrated_from_its_own_rounds(job: Any) -> None:
    _, result, drafter = job
    assert all(r.verified == r.drafted for r in result.trace.rounds)
    assert len(result.calibration.temperatures) == 5
    assert all(t > 0 for t in result.calibration.temperatures)
    assert result.calibration.num_samples > 20
    assert result.calibration.held_out_samples > 20
    assert result.paths == (drafter / "calibration.json", drafter / "sglang_sts.json")
    assert calibration_file.read(drafter / "calibration.json") == result.calibration
    assert result.calibration.sampling_temperature == 1.0
    assert np.isfinite([row.ece[1] for row in result.scores]).all()


def test_runs_find_the_calibration_and_refuse_a_foreign_one(job: Any) -> None:
    from specbench.planning import gather, origin
    from specbench.resolve import resolve_drafter

    flags, result, drafter = job
    place = origin(device="cpu", weights_sha256="t" * 64, dtype="float32", threads=1)
    found = resolve_drafter(str(drafter))
    spec = build_run(flags={**flags, "policy": "threshold:0.5"})
    inputs = gather(spec, place=place, checkpoint=found)
    assert inputs.temperatures == result.calibration.temperatures
    assert inputs.hashes == {"calibration": result.calibration.sha256()}
    off = gather(spec.model_copy(update={"calibration": "off"}), place=place, checkpoint=found)
    assert off.temperatures == ()
    assert gather(build_run(flags=flags), place=place, checkpoint=found).hashes == {}  # fixed plans without
    other = resolve_drafter(str(FIXTURES / "dspark_gated"))
    named = spec.model_copy(update={"calibration": str(drafter / "calibration.json")})
    with pytest.raises(ConfigError, match="for the drafter"):
        gather(named, place=place, checkpoint=other)
    with pytest.warns(UserWarning, match="at temperature 1"):
        gather(spec.model_copy(update={"temperature": 0.5}), place=place, checkpoint=found)


def test_a_calibration_is_of_one_drafter_with_confidences(job: Any) -> None:
    flags, _, _ = job
    with pytest.raises(ConfigError, match="one drafter"):
        calibrate(build_run(flags={**flags, "methods": "dspark,ngram"}))
    lookup = {**flags, "methods": "ngram", "drafters": {}}
    with pytest.raises(ConfigError, match="no confidences"):
        calibrate(build_run(flags=lookup))
