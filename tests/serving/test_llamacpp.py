"""The demo model in llama.cpp's own server: n-gram and a draft model, counters, streaming, verdicts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specbench.errors import SpecbenchError
from specbench.records import store
from specbench.records.schema import Record
from specbench.resolve import resolve_target, silent_step
from specbench.resolve.packaged import SMOLLM2, prepare_gguf

pytestmark = pytest.mark.demo

PROMPTS = [
    "Say: red green red green red",
    "Count: 1 2 1 2 1 2",
]


@pytest.fixture(scope="module")
def gguf() -> Path:
    pytest.importorskip("xllamacpp")
    try:
        resolve_target("smollm2-135m", progress=silent_step)
        return prepare_gguf(SMOLLM2, progress=silent_step)
    except SpecbenchError as error:
        pytest.skip(f"the demo model is not here and cannot be fetched: {error}")


def value(record: Record, metric: str, **scope: str) -> float:
    row = record.find(metric, **scope)
    assert row is not None, f"{record.method} has no {metric} {scope}"
    return row.value


def test_speculation_on_a_real_server(gguf, tmp_path, specbench):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"id": str(i), "prompt": text}) + "\n" for i, text in enumerate(PROMPTS)))
    code, _, err = specbench(
        "run", "--launch", "llamacpp", "--engine-weights", gguf, "-m", "ngram:4,draft-model:3",
        "--drafter", f"draft-model={gguf}", "-t", prompts, "--threads", 1, "-c", 2, "--max-new-tokens", 9,
        "--ignore-eos", "--set", "warmup=0", "-o", tmp_path / "runs",
    )  # fmt: skip
    assert code == 0, err
    records = {record.method: record for record in store.load_all(tmp_path / "runs")}
    assert set(records) == {"vanilla", "ngram", "draft-model"}
    counters = {"from": "server counters"}
    for record in records.values():
        assert value(record, "requests", kind="measured") == 2
        assert value(record, "foreign_tokens") == 0
        assert value(record, "ttft", stat="mean") > 0
        assert record.find("inter_chunk_gap", stat="mean") is not None
        assert record.find("inter_round_gap", stat="mean") is None
        facts = record.provenance["server"]
        assert (facts["engine"], facts["launched"]) == ("llama.cpp", True)
        assert str(tmp_path) not in json.dumps(record.model_dump(mode="json")["provenance"])
        assert record.comparability["engine"].startswith("llama.cpp")
        assert not any("dequantised" in note for note in record.notes), "the target folder's origin is not the server's"
    assert value(records["vanilla"], "tau") == 1.0  # it says that nothing was drafted
    weights = {record.comparability["target_weights"] for record in records.values()}
    assert len(weights) == 1  # of the file that was served, whose bits are not the target folder's
    assert weights != {records["vanilla"].target.sha256}
    assert {record.comparability["dtype"] for record in records.values()} == {"unknown"}
    assert records["vanilla"].find("tau_counters") is None
    draft = records["draft-model"]  # the target drafts for itself: all but what the end cuts is accepted
    assert value(draft, "tau") > 3.5
    assert value(draft, "tau", **counters) == pytest.approx(value(draft, "tau"), rel=0.02)
    assert value(draft, "acceptance_rate", gamma="3") == 1.0
    ngram = records["ngram"]
    assert ngram.provenance["server"]["drafted_in_probe"] > 0  # in its short answers it need not find a thing
    assert 1.0 <= value(ngram, "tau", **counters) <= 5.0
    for record in (draft, ngram):
        assert record.verdict is not None
        assert record.verdict.requests_compared == 2
        assert record.verdict.outcome != "fail", record.verdict.reason
        assert "compared: texts" in record.verdict.reason
        assert value(record, "client_speed_up") > 0
