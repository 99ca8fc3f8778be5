"""``profile`` and ``calibrate`` as a user types them."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support_runs import TinyRun, tiny_run, write_prompts

from specbench import calibration_file
from specbench.engine import cost_table
from specbench.records import store

FIXTURES = Path(__file__).parents[1] / "data" / "fixtures"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    return tiny_run(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def specbench(specbench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """As everywhere, with a home of its own."""
    monkeypatch.setenv("SPECBENCH_HOME", str(tmp_path / "home"))
    return specbench


def test_profile_then_a_run_that_plans_by_it(tiny: TinyRun, tmp_path: Path, specbench: Any) -> None:
    plain, additive = tmp_path / "plain.json", tmp_path / "additive.json"
    code, out, err = specbench(
        "profile", "--target", str(tiny.target), "--dtype", "float32", "--device", "cpu", "--threads", "1",
        "-m", "ngram:3", "-c", "2", "-k", "3", "--context", "16", "--repeats", "2", "--warmup", "1",
        "--sglang", str(plain), "--sglang-additive", str(additive),
    )  # fmt: skip
    assert code == 0, err
    assert "drafting 3 tokens a row with ngram" in out
    path = Path(out.split("table: ")[1].split("\n")[0])
    table = cost_table.read(path)
    assert table.max_tokens == 8
    for written in (plain, additive):
        assert cost_table.read(written).max_tokens == 8
    policy = "load-aware:draft-cost=on,lag=1"
    code, _, err = specbench(*tiny.arguments(tmp_path / "runs", "-m", "ngram:3", "--policy", policy, "--no-baseline"))
    assert code == 0, err
    (record,) = store.load_all(tmp_path / "runs")
    assert record.spec["inputs"]["cost_table"] == table.sha256()
    code, _, err = specbench(
        *tiny.arguments(tmp_path / "more", "-m", "ngram:3", "--policy", policy, "--set", f"cost_table={plain}")
    )
    assert code == 2
    assert err.splitlines()[-1].startswith("error: the cost table does not say its device")


def test_calibrate_then_replay_from_a_record(tmp_path: Path, specbench: Any) -> None:
    drafter = tmp_path / "drafter"
    drafter.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(FIXTURES / "dspark_markov" / name, drafter / name)
    task = write_prompts(tmp_path / "prompts.jsonl", [["one 4"], ["two 7"], ["three 3"], ["four 16"]])
    common = [
        "--target", str(FIXTURES / "target"), "--drafter", f"dspark={drafter}", "--task", str(task),
        "--dtype", "float32", "--device", "cpu", "--threads", "1", "--max-new-tokens", "40", "--temperature", "1",
        "-c", "4", "--set", "ignore_eos=true",
    ]  # fmt: skip
    rows = tmp_path / "tables" / "ece.csv"
    code, out, err = specbench("calibrate", "-m", "dspark", *common, "--online", "--window", "20", "--csv", str(rows))
    assert code == 0, err
    table = list(csv.DictReader(rows.read_text().splitlines()))
    positions = [line for line in table if line["scope"] == "position" and line["metric"] == "ece"]
    overall = calibration_file.read(drafter / "calibration.json")
    assert [float(line["before"]) for line in positions] == list(overall.ece_before)
    assert [float(line["after"]) for line in positions] == list(overall.ece_after)
    assert [float(line["temperature"]) for line in positions] == list(overall.temperatures[: len(positions)])
    times = [line for line in table if line["scope"] == "time"]
    assert [int(line["first_round"]) for line in times] == [20 * n for n in range(len(times))]
    assert all(0 <= float(line[name]) <= 1 for line in times for name in ("before", "after", "online"))
    assert "ECE" in out
    assert "over time" in out
    found = calibration_file.read(drafter / "calibration.json")
    assert set(json.loads((drafter / "sglang_sts.json").read_text())) >= {"temperatures", "ece_before", "ece_after"}
    code, _, err = specbench("run", "-m", "dspark", *common, "--no-baseline", "--out", str(tmp_path / "runs"))
    assert code == 0, err
    (record,) = store.load_all(tmp_path / "runs")
    other = tmp_path / "again.json"
    code, out, err = specbench(
        "calibrate", "--record", record.run_id[:8], "--in", str(tmp_path / "runs"), "--out", str(other)
    )
    assert code == 0, err
    again = calibration_file.read(other)
    assert again.temperatures == found.temperatures
    assert again.drafter_sha256 == found.drafter_sha256
    code, _, err = specbench(
        "run", "-m", "dspark", *common, "--no-baseline", "--out", str(tmp_path / "cut"), "--policy", "threshold:0.5"
    )
    assert code == 0, err
    (cut,) = store.load_all(tmp_path / "cut")
    assert cut.spec["inputs"]["calibration"] == found.sha256()


def test_faults_are_one_line_and_exit_code_2(tiny: TinyRun, tmp_path: Path, specbench: Any) -> None:
    for arguments, says in (
        (["calibrate"], "--method"),
        (["calibrate", "-m", "nosuch"], "unknown method"),
        (["calibrate", "--record", "abc", "--in", str(tmp_path / "none")], "no such folder"),
        (["profile", "--target", str(tiny.target), "-m", "ngrm"], "ngram"),
        (["profile", "--target", str(tiny.target), "--context", "4000", "-c", "1"], "--context"),
    ):
        code, _, err = specbench(*arguments)
        assert code == 2, arguments
        assert says in err
        assert err.strip().splitlines()[-1].startswith("error:")
