"""Load patterns through the command line: what is recorded and printed, and what is refused."""

from __future__ import annotations

import pytest
from support_runs import TinyRun, tiny_run, write_prompts

from specbench.records import store
from specbench.report.recompute import verify_record


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> TinyRun:
    return tiny_run(tmp_path_factory.mktemp("tiny"))


def test_an_open_loop_is_recorded_with_its_options_and_its_window_is_printed(tiny, tmp_path, specbench):
    load = ("--workload", "poisson", "--rate", "40", "--concurrency", "2", "--seed", "3")
    code, out, err = specbench(*tiny.arguments(tmp_path, "-m", "ngram:3", *load))
    assert code == 0, err
    records = {record.method: record for record in store.load_all(tmp_path)}
    firsts = {}
    for method, record in records.items():
        assert record.comparability["load"] == "poisson:2,rate=40"
        assert (record.spec["workload"], record.spec["load"]) == ("poisson", {"rate": 40.0})
        assert verify_record(tmp_path, record.run_id) == []
        window = record.find("steady_window", edge="start")
        assert window is not None
        assert f"steady window from {window.value:.2f} s" in " ".join(out.split())
        trace = store.read_trace(tmp_path, record)
        assert trace.paced
        first = [r for r in trace.requests if not r.warmup and r.id.endswith("/0")]
        firsts[method] = [r.arrival_s - first[0].arrival_s for r in first]
    assert firsts["vanilla"] == pytest.approx(firsts["ngram"], abs=1e-9)  # both arms met the same arrivals


def test_a_mix_and_a_trace_decide_which_prompts_come_when(tiny, tmp_path, specbench):
    other = write_prompts(tmp_path / "other.jsonl", [["one"], ["two"], ["three"]])
    trace = tmp_path / "arrivals.csv"
    trace.write_text("time_s,task\n0,other\n0.01,\n0.02,\n0.02,other\n0.03,\n")
    config = tmp_path / "run.toml"
    config.write_text(
        f'tasks = ["{tiny.task}", "{other}"]\nworkload = "trace"\n[load]\nfile = "{trace}"\nspeed = 2.0\n'
        f'[mix]\n"{tiny.task}" = 1\n"{other}" = 1\n'
    )
    arguments = ["run", "--config", str(config), "--target", str(tiny.target), "--dtype", "float32", "--device", "cpu",
                 "--threads", "1", "--max-new-tokens", "4", "--num-prompts", "2", "-m", "vanilla"]  # fmt: skip
    code, _, err = specbench(*arguments, "--out", str(tmp_path / "out"))
    assert code == 0, err
    (record,) = store.load_all(tmp_path / "out")
    found = store.read_trace(tmp_path / "out", record)
    first = [r for r in found.requests if not r.warmup and r.id.endswith("/0")]
    assert [r.task for r in (first[0], first[3])] == ["other", "other"]
    assert [r.arrival_s - first[0].arrival_s for r in first] == pytest.approx([0, 0.005, 0.01, 0.01, 0.015])
    assert record.spec["mix"] == {"prompts": 1.0, "other": 1.0}
    assert record.spec["load"]["speed"] == 2.0
    assert str(tmp_path) not in str(record.spec) + str(record.comparability)
    assert any("repeat a prompt" in note for note in record.notes)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--workload", "poison"], "did you mean poisson"),
        (["--workload", "poisson"], "load.rate is missing"),
        (["--workload", "poisson", "--rate", "0"], "load.rate"),
        (["--rate", "2"], "unknown option of load pattern closed 'rate'"),
        (["--workload", "gamma", "--rate", "2", "--set", "load.cvs=2"], "did you mean cv"),
        (["--workload", "trace", "--set", "load.file=missing.csv"], "missing.csv"),
    ],
)
def test_a_bad_load_is_one_line_before_anything_loads(tiny, tmp_path, specbench, arguments, says):
    run = ["run", "--target", str(tmp_path / "no-such-target"), "--task", str(tiny.task), "-m", "ngram"]
    code, out, err = specbench(*run, "--out", str(tmp_path / "out"), *arguments)
    assert code == 2
    assert says in err
    assert len(err.strip().splitlines()) == 1
    assert not out
    assert not (tmp_path / "out").exists()
