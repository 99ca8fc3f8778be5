"""The demo model's drafters that come with the package: what their cards claim, and that they draft for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specbench import calibration_file
from specbench.checkpoints import packaged_checkpoints
from specbench.config import build_run
from specbench.errors import SpecbenchError
from specbench.resolve import resolve_drafter, resolve_target, silent_step
from specbench.runner import run_cells

TARGET = "smollm2-135m"
METHODS = ("dflash", "dspark", "dspark-rnn", "eagle3", "mtp")
FILE, TOGETHER = 10_000_000, 40_000_000
FOLDERS: dict[str, Path] = {c.method: c.path for c in packaged_checkpoints() if c.target == TARGET}


def card(method: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDERS[method] / "card.json").read_text(encoding="utf-8"))
    return found


def test_every_method_with_weights_has_its_own() -> None:
    assert tuple(sorted(FOLDERS)) == METHODS
    hashes = {resolve_drafter(str(path), progress=silent_step).sha256 for path in FOLDERS.values()}
    assert len(hashes) == len(METHODS)


def test_they_are_small() -> None:
    files = [file for path in FOLDERS.values() for file in path.rglob("*") if file.is_file()]
    assert max(file.stat().st_size for file in files) <= FILE
    assert sum(file.stat().st_size for file in files) <= TOGETHER


def test_they_were_trained_on_the_same_tokens_for_the_same_number_of_predictions() -> None:
    cards = [card(method) for method in METHODS]
    assert len({c["data_sha256"] for c in cards}) == 1
    assert len({c["recipe"]["target"] for c in cards} | {TARGET}) == 1
    assert len({sum(p["steps"] for p in c["recipe"]["phases"]) for c in cards}) == 1
    assert len({json.dumps(c["recipe"]["loss"] | {"confidence": 0}, sort_keys=True) for c in cards}) == 1
    predictions = [c["training"]["predictions"] for c in cards]
    assert max(predictions) <= 1.03 * min(predictions)


@pytest.mark.parametrize("method", METHODS)
def test_a_card_says_how_long_the_accepted_runs_were(method: str) -> None:
    held = card(method)["heldout"]
    assert 1.2 < held["tau"] < held["accept_1"] * 8 + 1
    assert (FOLDERS[method] / "NOTE.txt").read_text(encoding="utf-8").count(f"{held['tau']:.2f} sampled") == 1


def test_the_confidences_of_dspark_come_with_their_temperatures() -> None:
    found = calibration_file.read(FOLDERS["dspark"] / calibration_file.FILE_NAME)
    assert found.method == "dspark"
    assert found.drafter_sha256 == resolve_drafter(str(FOLDERS["dspark"]), progress=silent_step).sha256
    assert len(found.temperatures) == 7
    assert max(found.ece_after) < 0.1


@pytest.mark.demo
def test_they_draft_what_the_demo_model_says(tmp_path: Path) -> None:
    try:
        resolve_target(TARGET, progress=silent_step)
    except SpecbenchError as error:
        pytest.skip(f"the demo model is not here and cannot be fetched: {error}")
    flags = {
        "methods": ",".join(f"{method}:3" for method in METHODS), "tasks": "starter-math", "num_prompts": 2,
        "max_new_tokens": 32, "concurrency": 2, "ignore_eos": True, "threads": 1, "dtype": "float32", "out": tmp_path,
    }  # fmt: skip
    results = {result.record.method: result.record for result in run_cells(build_run(flags=flags)).results}
    assert set(results) == {"vanilla", *METHODS}
    for method in METHODS:
        tau = results[method].find("tau")
        assert tau is not None, method
        assert tau.value > 1.2, method
        verdict = results[method].verdict
        assert verdict is not None
        assert verdict.outcome == "pass", (method, verdict.reason)
        drafter = results[method].drafter
        assert drafter is not None
        assert drafter.name == f"packaged:{TARGET}/{method}"
