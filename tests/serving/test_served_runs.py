"""`specbench run` on scripted servers: rows valid, marked or failed with their reason, and settings refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support_http import Answer, ScriptedServer, refusal, scripted_server
from support_models import tiny_llama_dir

from specbench.config import build_run
from specbench.errors import ConfigError
from specbench.records import keys, store
from specbench.records.schema import Record
from specbench.report.recompute import recompute
from specbench.sweep_plan import Contents, cell_key

IDS = tuple(range(20, 44))
DRAFTED = {"num_spec_steps": 6, "num_accepted_draft_tokens": 17, "num_draft_tokens": 24, "num_spec_tokens": 4}


def answer(*, speculates: bool, change: int = 0) -> Answer:
    ids = (*IDS[:-1], IDS[-1] + change)
    chunks = ((("x", ids[:1])), *(("xxxx", ids[i : i + 4]) for i in range(1, 24, 4)))
    last = {"metrics": {"speculative_decoding": DRAFTED if speculates else None}}
    usage = {"prompt_tokens": 9, "completion_tokens": sum(len(part) for _, part in chunks)}
    return Answer(chunks=chunks, usage=usage, last=last)


def as_vllm(server: ScriptedServer) -> None:
    server.pages |= {"/metrics": "vllm:num_requests_running 0\n", "/version": '{"version": "9.9"}'}


@pytest.fixture
def servers() -> Iterator[tuple[ScriptedServer, ScriptedServer]]:
    with scripted_server() as plain, scripted_server() as drafting:
        plain.usual, drafting.usual = answer(speculates=False), answer(speculates=True)
        as_vllm(plain)
        as_vllm(drafting)
        yield plain, drafting


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tiny_llama_dir(tmp_path_factory.mktemp("served"))
    lines = [json.dumps({"id": f"p{i}", "prompt": f"Question {i}?"}) for i in range(6)]
    (made / "prompts.jsonl").write_text("\n".join(lines) + "\n")
    return made


@pytest.fixture
def run(folder: Path, tmp_path: Path, specbench: Callable[..., Any]) -> Callable[..., tuple[int, str, str]]:
    def call(*arguments: object) -> tuple[int, str, str]:
        return specbench(
            "run", "--target", folder, "-t", folder / "prompts.jsonl", "--dtype", "float32", "--max-new-tokens", 24,
            "--set", "warmup=0", "--set", "server.timeout=1", "--set", "server.tries=1",
            "-o", tmp_path / "runs", *arguments,
        )  # fmt: skip

    return call


def records(tmp_path: Path) -> dict[str, Record]:
    return {record.method: record for record in store.load_all(tmp_path / "runs")}


def test_two_servers_give_a_verdict_and_speed_over_plain_decoding(servers, run, tmp_path):
    plain, drafting = servers
    code, out, err = run(
        "--base-url", f"vanilla={plain.url}", "--base-url", f"ngram={drafting.url}/v1", "-m", "ngram:4"
    )
    assert code == 0, err
    found = records(tmp_path)
    ngram = found["ngram"]
    gain, speed = ngram.find("client_speed_up"), ngram.find("client_tokens_per_s")
    assert f"{gain.value:.2f}* [" in out
    assert f"{speed.value:.1f}* " in out
    assert "* by the client's clock" in out
    assert ngram.verdict is not None
    assert (ngram.verdict.outcome, ngram.verdict.requests_compared) == ("pass", 6), ngram.verdict.reason
    assert "compared: the servers' token ids" in ngram.verdict.reason
    tau = ngram.find("tau")
    assert tau is not None
    assert tau.value == pytest.approx(23 / 6)
    assert ngram.find("client_speed_up") is not None
    assert ngram.provenance["server"]["drafted_in_probe"] == 24
    assert "127.0.0.1" not in json.dumps(ngram.model_dump(mode="json")["spec"])
    assert ngram.target.source == "folder"
    differs = keys.differences(ngram.comparability, {**ngram.comparability, "engine": "specbench"}, timings=False)
    assert differs == ["engine: vllm 9.9 by its completions interface against specbench"]
    assert {e.metric for e in recompute(tmp_path / "runs", ngram.run_id)} >= {"tau", "client_speed_up", "tau_counters"}


def test_a_lossy_server_is_caught(servers, run, tmp_path):
    plain, drafting = servers
    drafting.usual = answer(speculates=True, change=1)
    run("--base-url", f"vanilla={plain.url}", "--base-url", f"ngram={drafting.url}", "-m", "ngram:4")
    verdict = records(tmp_path)["ngram"].verdict
    assert verdict is not None
    assert verdict.outcome == "fail"
    assert verdict.differences[0].position == 23


def test_failed_requests_mark_the_row_and_the_rest_is_measured(servers, run, tmp_path):
    _, drafting = servers
    drafting.plays.extend([drafting.usual, refusal(429, "busy"), refusal(500, "broken")])  # the first is the probe
    code, _, err = run("--base-url", drafting.url, "-m", "ngram:4", "-c", 2)
    assert code == 0, err
    record = records(tmp_path)["ngram"]
    assert record.counts == {"ok": 4, "failed": 2, "warmup": 0} or record.counts == {"ok": 4, "failed": 2}
    assert [alarm.name for alarm in record.alarms].count("invalid-row") == 1
    assert any("HTTP 429: busy" in str(r.error) for r in store.read_trace(tmp_path / "runs", record).requests)
    assert any("there is neither a speed-up nor a verdict" in note for note in record.notes)


def test_a_method_that_does_not_draft_fails_with_the_reason(servers, run, tmp_path):
    plain, drafting = servers
    code, _, err = run("--base-url", plain.url, "-m", "ngram:4")
    assert (code, "speculation is not on" in err) == (2, True)
    record = records(tmp_path)["ngram"]
    assert record.status == "failed"
    assert record.provenance["server"]["engine"] == "vllm"
    code, _, err = run("--base-url", drafting.url, "-m", "vanilla")
    assert (code, "name the method that it runs" in err) == (2, True)


def test_an_open_loop_and_a_chat(servers, run, tmp_path):
    _, drafting = servers
    code, _, err = run(
        "--base-url", drafting.url, "-m", "ngram:4", "--endpoint", "chat", "--workload", "poisson", "--rate", 40
    )
    assert code == 0, err
    record = records(tmp_path)["ngram"]
    assert drafting.paths[-1] == "/v1/chat/completions"
    assert drafting.asked[-1]["messages"][-1]["content"].startswith("Question")
    assert record.comparability["rendering"]["template"] == "the server's"
    assert any("the server counts 9 prompt tokens" in note for note in record.notes)


def test_ctrl_c_while_a_server_starts_leaves_an_interrupted_row(run, tmp_path):
    """The engine's interpreter knows its version, and as a server it presses Ctrl-C and never answers."""
    python = tmp_path / "python"
    version = '{"vllm": "9.9"}'
    python.write_text(f"#!/bin/sh\nif [ $1 = -c ]; then echo '{version}'; exit; fi\nkill -INT $PPID\nexec sleep 60\n")
    python.chmod(0o755)
    key = ["--set", 'server.args=["--api-key", "sk-hidden"]']
    code, _, err = run("--launch", "vllm", "--engine-python", python, "-m", "ngram:4", "--device", "cpu", *key)
    assert code == 130, err
    assert "interrupted" in err
    (record,) = store.load_all(tmp_path / "runs")
    assert (record.method, record.status, record.error) == ("vanilla", "interrupted", None)
    assert "sk-hidden" not in record.model_dump_json()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--backend", "openai", "-m", "ngram:4"], "no server is named"),
        (["--base-url", "localhost:8000", "-m", "ngram:4"], "is no address of a server"),
        (["--base-url", "http://127.0.0.1:9", "-m", "ngram"], "write ngram:K"),
        (["--base-url", "http://127.0.0.1:9", "-m", "ngram:4"], "start the server or correct --base-url"),
        (["--base-url", "http://127.0.0.1:9", "-m", "ngram:4", "--policy", "threshold:0.5"], "a server has its own"),
        (["--base-url", "http://a", "--launch", "vllm", "-m", "ngram:4"], "give one of the two"),
        (["--launch", "vlm", "-m", "ngram:4"], "did you mean vllm"),
        (["--launch", "sglang", "-m", "ngram:4", "--device", "cpu", "--no-baseline"], "sglang has ngram on a GPU only"),
        (["--backend", "engine", "--base-url", "http://a", "-m", "ngram:4"], "drop one of the two"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(run, arguments, says):
    code, _, err = run(*arguments)
    assert code == 2
    assert says in err
    assert "Traceback" not in err


def test_a_wrong_model_name_is_refused_with_the_right_ones(servers, run):
    code, _, err = run("--base-url", servers[1].url, "-m", "ngram:4", "--model", "tinny")
    assert code == 2
    assert "did you mean tiny" in err


def test_addresses_and_paths_of_this_machine_are_no_part_of_a_sweeps_cell():
    def key(**server: Any) -> str:
        run = build_run(flags={"methods": "ngram:4", "server": server})
        return cell_key(run, repeat=0, contents=Contents())

    assert key(base_url="http://a:1") == key(base_url="http://b:2") != key(base_url="http://a:1", endpoint="chat")
    assert key(launch="vllm", python="/a/python") == key(launch="vllm") != key(launch="sglang")


def test_a_server_for_any_method_serves_one():
    with_one = build_run(flags={"methods": "ngram:4", "server": {"base_url": ["http://a"]}})
    assert [m.name for m in with_one.cells()] == ["ngram"]
    both = build_run(flags={"methods": "ngram:4", "server": {"base_url": ["vanilla=http://a", "http://b"]}})
    assert [m.name for m in both.cells()] == ["vanilla", "ngram"]
    with pytest.raises(ConfigError, match="two servers for ngram"):
        build_run(flags={"methods": "ngram:4", "server": {"base_url": ["ngram=http://a", "ngram=http://b"]}})
