"""vLLM on a CPU through --launch: counts, verdicts, and its own load generator on the same server and prompts.

Every server takes a minute or so to start. Timings want a machine that does nothing else.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from specbench.backends.openai import OpenAIBackend, ServedRun
from specbench.engine.clock import WallClock
from specbench.metrics._all import compute_all
from specbench.metrics.served import counted
from specbench.prompting import Renderer
from specbench.records import store
from specbench.records.schema import Record
from specbench.serving.body import BodyMaker
from specbench.serving.endpoint import answers, connect
from specbench.serving.engines.vllm import Vllm
from specbench.serving.launching import HOST, SERVED_NAME, LaunchAsk
from specbench.serving.process import free_port, scratch_folder, started
from specbench.types import Request, RunTrace, Sampling

pytestmark = pytest.mark.engines

COUNTERS = {"from": "server counters"}
AGREEMENT = 0.05  # of our latencies and throughput with those of vLLM's own generator
TURNS = 3


def value(record: Record, metric: str, **scope: str) -> float:
    row = record.find(metric, **scope)
    assert row is not None, f"{record.method} has no {metric} {scope}"
    return row.value


def measure(specbench: Callable[..., Any], out: Path, *arguments: object) -> dict[str, Record]:
    code, _, err = specbench("run", "--launch", "vllm", "--dtype", "float32", "--device", "cpu", "-o", out, *arguments)
    assert code == 0, err
    return {record.method: record for record in store.load_all(out)}


def test_greedy_texts_pass_and_both_ways_of_counting_agree(specbench, engine_python, target, texts, tmp_path):
    records = measure(
        specbench, tmp_path / "runs", "--engine-python", engine_python, "-m", "ngram:4,draft-model:3", "--drafter",
        f"draft-model={target}", "-t", texts, "-c", 2, "--max-new-tokens", 64, "--ignore-eos",
    )  # fmt: skip
    assert set(records) == {"vanilla", "ngram", "draft-model"}
    for method in ("ngram", "draft-model"):
        record = records[method]
        assert record.verdict is not None
        assert record.verdict.outcome == "pass", record.verdict.reason
        assert "the servers' token ids" in record.verdict.reason
        assert value(record, "foreign_tokens") == 0
        assert value(record, "tau", **COUNTERS) == pytest.approx(value(record, "tau"), rel=0.05)
        assert value(record, "tau_counters", **COUNTERS) == pytest.approx(value(record, "tau_counters"), rel=1e-9)
        facts = record.provenance["server"]
        assert (facts["engine"], facts["launched"], facts["drafted_in_probe"] > 0) == ("vllm", True, True)
        assert "--speculative-config" in facts["flags"]
    ngram = records["ngram"]
    assert value(ngram, "tau") < value(ngram, "tau_counters") - 0.2  # steps without a draft are left out of the latter
    assert value(records["draft-model"], "tau") > 3.5  # the target drafts for itself
    assert records["vanilla"].find("tau") is None


def test_its_sampling_is_caught(specbench, engine_python, target, sums, tmp_path, monkeypatch):
    """As shipped for CPUs, temperature and truncation of drafting rows are read from memory that nobody wrote.

    What lies there differs from start to start, and by luck may be right. So glibc fills what it hands out: with 0x40,
    which is a temperature of 3.
    """
    monkeypatch.setenv("MALLOC_PERTURB_", str(0x40 ^ 0xFF))
    records = measure(
        specbench, tmp_path / "runs", "--engine-python", engine_python, "-m", "draft-model:3", "--drafter",
        f"draft-model={target}", "-t", sums, "--num-prompts", "all", "-c", 8, "--max-new-tokens", 5,
        "--temperature", 0.8, "--ignore-eos",
    )  # fmt: skip
    verdict = records["draft-model"].verdict
    assert verdict is not None
    assert (verdict.outcome, verdict.rule) == ("fail", "sampled"), verdict.reason


# ------------------------------------------------------------------------------------- against its own generator


def _ours(url: str, tokenizer: Any, prompts: list[str], *, tokens: int) -> RunTrace:
    endpoint = connect(url, model=SERVED_NAME, key_variable="NO_KEY", tries=1)
    run = ServedRun(
        endpoint=endpoint,
        body=BodyMaker(endpoint.engine, SERVED_NAME, False, "ngram:4"),
        method="ngram",
        draft_length=4,
        sampling=Sampling(),
        concurrency=1,
        dtype="float32",
        tokenise=Renderer(tokenizer).tokenise,
        timeout_s=300.0,
        tries=1,
    )
    backend = OpenAIBackend(run, clock=WallClock())
    for index, text in enumerate(prompts):
        ids = tuple(tokenizer(text).input_ids)
        backend.submit(Request(str(index), index, ids, tokens, Sampling(), 0, frozenset(), True, "t", "d"))
        while not any(event.finished for event in backend.poll()):
            pass
    return backend.close()


def _theirs(
    python: str, url: str, target: Path, prompts: Path, out: Path, *, count: int, tokens: int
) -> dict[str, Any]:
    """`vllm bench serve`, called as a module: the distribution's own command does not start under its name."""
    code = (
        "from vllm.utils.argparse_utils import FlexibleArgumentParser\n"
        "from vllm.benchmarks.serve import add_cli_args, main\n"
        "parser = FlexibleArgumentParser(); add_cli_args(parser); main(parser.parse_args())"
    )
    flags = [
        "--backend", "openai", "--base-url", url, "--model", SERVED_NAME, "--tokenizer", str(target),
        "--dataset-name", "custom", "--dataset-path", str(prompts), "--custom-output-len", str(tokens),
        "--skip-chat-template", "--num-prompts", str(count), "--max-concurrency", "1", "--disable-shuffle",
        "--temperature", "0", "--ignore-eos", "--seed", "0", "--save-result", "--save-detailed",
        "--result-dir", str(out), "--result-filename", "bench.json",
    ]  # fmt: skip
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    done = subprocess.run([python, "-c", code, *flags], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads((out / "bench.json").read_text())
    return found


def test_latency_and_throughput_agree_with_vllms_own_generator(engine_python, target, tmp_path):
    """In turns, prompt by prompt: a slow half minute of the machine hits both, or one prompt of one of them."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(target)
    prompts, tokens = [f"Question {i}: what is {i} times {i}? Answer in full sentences." for i in range(8)], 48
    file = tmp_path / "custom.jsonl"
    file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in prompts))
    port = free_port()
    ours: list[RunTrace] = []
    theirs: list[dict[str, Any]] = []
    with scratch_folder() as scratch:
        ask = LaunchAsk(
            method="ngram", draft_length=4, model=target, drafter=None, options={}, port=port, device="cpu",
            dtype="float32", threads=1, rows=1, max_context=256, python=engine_python, scratch=scratch,
        )  # fmt: skip
        with started(Vllm().launch(ask), name="vllm", log=tmp_path / "server.log") as server:
            url = f"http://{HOST}:{port}"
            server.wait_ready(lambda: answers(url), limit_s=900, stop=lambda: False)
            _ours(url, tokenizer, prompts[:2], tokens=8)  # warm
            for _ in range(TURNS):
                ours.append(_ours(url, tokenizer, prompts, tokens=tokens))
                theirs.append(_theirs(engine_python, url, target, file, tmp_path, count=len(prompts), tokens=tokens))
    assert [found["completed"] for found in theirs] == [len(prompts)] * TURNS
    pairs = {
        "tpot": ([_by_prompt(t, "tpot") for t in ours], [_their_tpot(f) for f in theirs]),
        "ttft": ([_by_prompt(t, "ttft") for t in ours], [f["ttfts"] for f in theirs]),
        "tok/s": ([[_rate(t)] for t in ours], [[f["output_throughput"]] for f in theirs]),
    }
    for name, (mine, other) in pairs.items():
        ratios = [median(a) / median(b) for a, b in zip(zip(*mine, strict=True), zip(*other, strict=True), strict=True)]
        print(f"{name}: ours over theirs {median(ratios):.3f} of {[round(r, 3) for r in ratios]}")
        assert median(ratios) == pytest.approx(1, abs=AGREEMENT), (name, mine, other)
    if theirs[0].get("spec_decode_num_drafts"):
        accepted = sum(entry.accepted or 0 for entry in counted(ours[0]).entries)
        assert [found["spec_decode_accepted_tokens"] for found in theirs] == [accepted] * TURNS


def _by_prompt(trace: RunTrace, name: str) -> list[float]:
    """Seconds of each request, in the order of the prompts."""
    found = []
    for request in sorted(trace.requests, key=lambda r: r.number):
        first, last = request.token_times_s[0], request.token_times_s[-1]
        assert request.tokens is not None
        found.append(first - request.arrival_s if name == "ttft" else (last - first) / (request.tokens - 1))
    said = [e.value for e in compute_all(trace) if (e.metric, e.scope) == (name, (("stat", "mean"),))]
    assert said == [pytest.approx(sum(found) / len(found))], "what is compared is what a record says"
    return found


def _their_tpot(found: dict[str, Any]) -> list[float]:
    return [sum(gaps) / (count - 1) for gaps, count in zip(found["itls"], found["output_lens"], strict=True)]


def _rate(trace: RunTrace) -> float:
    return next(e.value for e in compute_all(trace) if e.metric == "whole_run_tokens_per_s")
