"""`specbench sla` on a tiny random model: records of all probes, a result that follows from them, bad input."""

from __future__ import annotations

import os
import resource
import signal
from contextlib import nullcontext
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from support_models import tiny_llama_dir
from support_runs import TinyRun, write_prompts

from specbench import registry
from specbench.config import build_run
from specbench.errors import RecordError
from specbench.metrics._service import service
from specbench.records import sla_result, store
from specbench.records.sla_result import SlaResult
from specbench.report.recompute import verify_record
from specbench.sla import Sla, Space
from specbench.sla_findings import LoadData, probe_run
from specbench.sla_probes import SlaRequest, run_sla

PROMPTS = [[f"abc {i} abc {i} abc"] for i in range(6)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> TinyRun:
    folder = tmp_path_factory.mktemp("tiny")
    return TinyRun(tiny_llama_dir(folder), write_prompts(folder / "prompts.jsonl", PROMPTS))


@pytest.fixture
def sla(specbench, tiny):
    """Runs ``specbench sla`` on the tiny model in this process: (exit code, stdout, stderr)."""

    def call(out: Path, *arguments: str) -> tuple[int, str, str]:
        words = [*tiny.arguments(out, *arguments)[1:]]
        words[words.index("--max-new-tokens") + 1] = "12"
        return specbench("sla", *words)

    return call


def only_result(folder: Path) -> SlaResult:
    (path,) = folder.glob("sla-*.json")
    return sla_result.read(path)


def test_a_search_leaves_records_and_a_result_that_follows_from_them(tmp_path, sla, specbench):
    code, out, err = sla(
        tmp_path, "-m", "ngram:2", "--floor", "0.5", "--floor", "1000000", "--max", "2", "--repeats", "1", "--few", "0"
    )
    assert code == 0, err
    found = only_result(tmp_path)
    assert f"sla-{found.sla_id}.json" in out
    assert "SLA: >= 0.5 tok/s/user" in out
    assert "not attainable: no load from 1 to 2 users holds it" in out
    assert [(row.method, row.outcome) for row in found.searches] == [
        ("vanilla", "all pass (bound)"), ("ngram:2", "all pass (bound)"),
        ("vanilla", "not attainable"), ("ngram:2", "not attainable"),
    ]  # fmt: skip
    records = {record.run_id: record for record in store.load_all(tmp_path)}
    assert {run.run_id for probe in found.probes for run in probe.runs} == set(records)
    assert len(records) == 4  # two methods, two loads: both levels share their probes
    for probe in found.probes:
        held = [records[run.run_id] for run in probe.runs]
        assert {record.spec["concurrency"] for record in held} == {int(probe.load)}
        assert all(record.spec["ignore_eos"] for record in held)
        again = [probe_run(r, service(store.read_trace(tmp_path, r)), repeat=i) for i, r in enumerate(held)]
        data = LoadData.of(probe.load, again)
        assert list(data.estimates) == probe.estimates
        assert [run.row for run in data.runs] == probe.runs
    ours = [record for record in records.values() if record.method == "ngram"]
    for record in ours:
        assert record.verdict.outcome in ("pass", "inconclusive")
        assert records[record.verdict.control].method == "vanilla"
        same_load = record.baseline is not None  # else there is a verdict, and no speed-up over another load
        assert (record.find("speed_up") is not None) == same_load
        assert not same_load or records[record.baseline].spec["concurrency"] == record.spec["concurrency"]
    assert verify_record(tmp_path, ours[0].run_id) == []
    compares(tmp_path, records, specbench)


def test_every_drafter_is_searched_under_each_policy(tmp_path, sla):
    code, out, err = sla(
        tmp_path, "-m", "ngram:4", "--policy", "fixed", "--policy", "threshold:0.9", "--floor", "0.5", "--max", "1",
        "--repeats", "1",
    )  # fmt: skip
    assert code == 0, err
    found = only_result(tmp_path)
    assert [row.method for row in found.searches] == ["vanilla", "ngram:4", "ngram:4 threshold:0.9"]
    assert "ngram:4 threshold:0.9" in out
    records = {record.run_id: record for record in store.load_all(tmp_path)}
    policies = {probe.method: records[probe.runs[0].run_id].spec["policy"] for probe in found.probes}
    assert (policies["vanilla"], policies["ngram:4"]) == ("fixed:0", "fixed:4")
    assert policies["ngram:4 threshold:0.9"].startswith("threshold:0.9")


@pytest.mark.parametrize(
    ("policies", "words"), [(["fixed", "fixed"], "listed twice"), (["fixed", "Not a policy"], "policy"), (["no"], "no")]
)
def test_policies_that_make_no_sense_are_one_line(tmp_path, sla, policies, words):
    flags = [word for policy in policies for word in ("--policy", policy)]
    code, _, err = sla(tmp_path, "-m", "ngram:2", *flags, "--floor", "0.5", "--max", "1", "--repeats", "1")
    assert code == 2
    assert words in err
    assert len(err.strip().splitlines()) == 1
    assert not list(tmp_path.glob("*.json"))


def compares(folder, records, specbench):
    """The records of one search are what `compare` and `frontier` read."""
    by_cell = {(r.method, r.spec["concurrency"]): r.run_id for r in records.values()}
    code, out, err = specbench("compare", by_cell["vanilla", 1], by_cell["ngram", 1], "--in", str(folder))
    assert code == 0, err
    assert "ngram:2 (B) against vanilla (A), load closed:1, prompts: 6 request pairs" in out
    code, _, err = specbench("compare", by_cell["vanilla", 1], by_cell["ngram", 2], "--in", str(folder))
    assert code == 2
    assert "load: closed:1 against closed:2" in err
    code, out, err = specbench("frontier", str(folder))
    assert code == 0, err
    assert "closed:2" in out


def test_rates_are_searched_with_poisson_arrivals(tmp_path, sla):
    """One row: the first request ends before the last is admitted, however fast or slow this machine is."""
    code, out, err = sla(
        tmp_path, "-m", "vanilla", "--over", "rate", "--min", "10", "--max", "40", "--start", "20", "--ttft-p99", "60",
        "--tpot-p50", "30", "--repeats", "1", "--step", "0.9", "-c", "1",
    )  # fmt: skip
    found = only_result(tmp_path)
    (search,) = found.searches
    assert search.outcome != "not measured"
    assert code == (0 if search.throughput is not None else 2), err
    assert "ttft p99 <= 60 s, tpot p50 <= 30 s" in out
    for probe in found.probes:
        (record,) = (store.read(store.record_path(tmp_path, run.run_id)) for run in probe.runs)
        assert (record.spec["workload"], record.spec["load"]) == ("poisson", {"rate": probe.load})
        assert record.comparability["load"] == f"poisson:1,rate={probe.load:g}"
        assert probe.runs[0].throughput is not None
        judged = next(row for row in search.judged if row.load == probe.load)
        assert judged.passed or any("the queue grows" in reason for reason in judged.reasons)


def test_a_floor_that_no_load_meets_is_one_clear_line(tmp_path, sla):
    code, _, err = sla(tmp_path, "-m", "vanilla", "--floor", "1e9", "--max", "1", "--repeats", "1")
    assert code == 2
    assert "error: no method holds '>= 1e+09 tok/s/user': vanilla: no load from 1 to 1 users" in err.splitlines()[-1]
    assert len(store.load_all(tmp_path)) == 1  # and nothing is lost
    assert only_result(tmp_path).searches[0].throughput is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "no service level is named"),
        (["--floor", "-1"], "bound on floor must be a positive number"),
        (["--ttft-p99", "nan"], "bound on ttft p99"),
        (["--floor", "1", "--over", "users"], "--over is concurrency or rate"),
        (["--floor", "1", "--over", "rate"], "give --max in requests a second"),
        (["--floor", "1", "--max", "2.5"], "numbers of users are whole"),
        (["--floor", "1", "--min", "4", "--max", "2"], "--min, --start or --max"),
        (["--floor", "1", "--over", "rate", "--max", "8", "--step", "2"], "correct --step"),
        (["--floor", "1", "--repeats", "0"], "correct --repeats"),
        (["--floor", "1", "--workload", "poisson"], "use --over rate"),
        (["--floor", "1", "--over", "rate", "--max", "8", "--workload", "trace"], "has no rate to search over"),
        (["--floor", "1", "--max", "4"], "8 prompts for a steady window and there are 6; raise --num-prompts"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_measured(tmp_path, sla, arguments, words):
    code, _, err = sla(tmp_path, "-m", "ngram:2", *arguments)
    assert code == 2
    assert words in err.splitlines()[-1]
    assert err.splitlines()[-1].startswith("error: ")
    assert not list(tmp_path.glob("*.json"))


class Quiet:
    """A screen that shows nothing, and can press Ctrl-C after so many records."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.stop_after, self.texts, self.said = stop_after, [], []

    def step(self, text):
        return nullcontext()

    def say(self, text):
        self.said.append(text)

    def progress(self, text, drive):
        pass

    def finished(self, text, record):
        self.texts.append(text)
        if len(self.texts) == self.stop_after:
            os.kill(os.getpid(), signal.SIGINT)


def request(tiny: TinyRun, out: Path, **more) -> SlaRequest:
    spec = build_run(flags=tiny.flags(out, **{"max_new_tokens": 8, "ignore_eos": True, "warmup": 0, **more}))
    return SlaRequest(spec, (Sla(0.5),), Space(whole=True, start=1, low=1, high=2), repeats=2)


def test_ctrl_c_keeps_what_is_finished_and_gives_no_number_for_the_rest(tmp_path, tiny):
    screen = Quiet(stop_after=5)
    summary = run_sla(request(tiny, tmp_path, methods="ngram:2"), screen=screen)
    assert (summary.exit_code, summary.interrupted) == (130, True)
    assert not summary.result.complete
    assert len(store.load_all(tmp_path)) == 5
    assert {row.outcome for row in summary.result.searches} == {"not measured"}
    assert [probe.load for probe in summary.result.probes] == [1, 1]  # the load that was cut short is no probe


def test_arms_take_turns_and_one_that_breaks_drops_out(tmp_path, tiny, monkeypatch):
    points = {"breaking": EntryPoint("breaking", "support_bad_drafter", "specbench.drafters")}
    foreign = registry._foreign
    monkeypatch.setattr(registry, "_foreign", lambda kind: points if kind == "drafters" else foreign(kind))
    screen = Quiet()
    summary = run_sla(request(tiny, tmp_path, methods="breaking:2,ngram:2"), screen=screen)
    assert summary.exit_code == 1
    assert summary.errors == ("breaking:2 at 1 users, run 1 of 2 failed: the drafter broke",)
    outcomes = {row.method: row.outcome for row in summary.result.searches}
    assert outcomes == {"vanilla": "all pass (bound)", "breaking:2": "not measured", "ngram:2": "all pass (bound)"}
    assert sorted(record.status for record in store.load_all(tmp_path)) == ["failed", *["ok"] * 8]
    assert [run.seed for run in summary.result.probes[0].runs] == [0, 1]
    order = [text.split()[0] for text in screen.texts]
    assert order == ["vanilla", "ngram:2"] * 2 + ["ngram:2", "vanilla", "vanilla", "ngram:2"]


def test_a_full_disk_ends_the_search_in_one_line_and_keeps_what_is_finished(tmp_path, tiny):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    screen = Quiet()
    screen.finished = lambda text, record: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # type: ignore
    try:
        with pytest.raises(RecordError, match="cannot write") as caught:
            run_sla(request(tiny, tmp_path, methods="ngram:2"), screen=screen)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(caught.value)
    assert [record.method for record in store.load_all(tmp_path)] == ["vanilla"]
    assert list(tmp_path.glob(".*")) == []
