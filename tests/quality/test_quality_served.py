"""Accuracy through servers, with and without speculation at temperature 0: equal where they are, and seen where not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support_graded import write_task
from support_http import Answer, Handler, Play, scripted_server
from support_models import tiny_llama_dir

pytest.importorskip("lm_eval", reason="the extra 'quality' is not installed")

from transformers import AutoTokenizer

from specbench.records import store

TOKENS = 24
QUESTIONS = [f"{a}+{a}=" for a in range(6)]
DRAFTED = {"num_spec_steps": 6, "num_accepted_draft_tokens": 17, "num_draft_tokens": 24, "num_spec_tokens": 4}


def ids_for(prompt: list[int], *, off: int = 0) -> tuple[int, ...]:
    """So many tokens that follow from the prompt."""
    return tuple(20 + (sum(prompt) + i * i + off) % 40 for i in range(TOKENS))


def answering(*, speculates: bool, wrong: bool = False) -> Play:
    """As vLLM; ``wrong`` says something else to every prompt."""

    def play(handler: Handler, body: dict[str, Any]) -> None:
        assert body["temperature"] == 0
        ids = ids_for(body["prompt"], off=1 if wrong else 0)
        chunks = (("x", ids[:1]), *(("xxxx", ids[i : i + 4]) for i in range(1, TOKENS, 4)))
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": len(ids)}
        last = {"metrics": {"speculative_decoding": DRAFTED if speculates else None}}
        Answer(chunks=chunks, usage=usage, last=last)(handler, body)

    return play


def test_items_are_paired_between_servers(specbench: Any, tmp_path: Path) -> None:
    target = tiny_llama_dir(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(str(target))
    right = [tokenizer.decode(ids_for(tokenizer(q).input_ids)).strip()[:1] for q in QUESTIONS]
    items = [(q, found if n % 3 else "no") for n, (q, found) in enumerate(zip(QUESTIONS, right))]
    tasks = write_task(tmp_path / "tasks", items, tokens=TOKENS, pattern="(\\\\S)")
    with scripted_server() as plain, scripted_server() as drafting, scripted_server() as lossy:
        plain.usual = answering(speculates=False)
        drafting.usual = answering(speculates=True)
        lossy.usual = answering(speculates=True, wrong=True)
        named = []
        for method, server in (("vanilla", plain), ("ngram", drafting), ("eagle3", lossy)):
            server.pages |= {"/metrics": "vllm:num_requests_running 0\n", "/version": '{"version": "9.9"}'}
            named += ["--base-url", f"{method}={server.url}"]
        code, out, err = specbench(
            "quality", "--tasks", "local_sums", "--include-path", tasks, "--target", target, "--dtype", "float32",
            "-m", "ngram:4", "-m", "eagle3:4", *named, "-c", 2, "--set", "warmup=0", "--set", "server.tries=1",
            "--out", tmp_path / "runs",
        )  # fmt: skip
    assert code == 0, err
    records = {record.method: record for record in store.load_all(tmp_path / "runs")}
    scope = {"task": "local_sums", "grade": "exact_match", "filter": "first"}

    def of(method: str, metric: str) -> Any:
        found = records[method].find(metric, **scope)
        assert found is not None, (method, metric)
        return found

    assert of("vanilla", "item_score").value == of("ngram", "item_score").value == pytest.approx(4 / 6)
    same = of("ngram", "item_score_difference")
    assert (same.value, same.low, same.high, same.n) == (0.0, 0.0, 0.0, 6)
    assert of("eagle3", "item_score_difference").value < 0
    verdicts = {method: record.verdict.outcome for method, record in records.items() if record.verdict is not None}
    assert verdicts == {"ngram": "pass", "eagle3": "fail"}, records["ngram"].verdict
    assert all(record.provenance["server"]["engine"] == "vllm" for record in records.values())
    assert "* by the client's clock" in out
