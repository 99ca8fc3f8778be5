"""Accuracy with and without speculation on a local task: equal at temperature 0, paired by item, and recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support_graded import write_task
from support_models import tiny_llama_dir

pytest.importorskip("lm_eval", reason="the extra 'quality' is not installed")

from specbench.config import RunSpec, build_run
from specbench.metrics._recorded import graded_estimates
from specbench.quality.harness import (
    Evaluation,
    SpecbenchLM,
    evaluate,
    graded_rows,
    load_tasks,
    manager,
    numbered,
    text_request,
)
from specbench.quality.measured import MeasuredTexts
from specbench.quality.texts import TextRequest, cut_at_stops
from specbench.records import store
from specbench.records.schema import GradedRow
from specbench.report.recompute import verify_record
from specbench.resolve import silent_step
from specbench.session import TargetShelf
from specbench.types import Sampling

QUESTIONS = [f"{a}+{b}={a + b}; {b}+{a}=" for a in range(3) for b in range(2)]


def spec_of(target: Path, out: Path, **more: Any) -> RunSpec:
    flags = {"methods": "ngram:3", "target": str(target), "dtype": "float32", "device": "cpu", "threads": 1}
    return build_run(flags={**flags, "concurrency": 2, "out": out, **more})


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama_dir(tmp_path_factory.mktemp("quality"))


@pytest.fixture(scope="module")
def shelf() -> TargetShelf:
    return TargetShelf()


@pytest.fixture(scope="module")
def tasks(target: Path, shelf: TargetShelf, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six sums to which the tiny model's first character is the right answer in half of the cases."""
    spec = spec_of(target, Path("unused"))
    server = MeasuredTexts(spec, spec.cells()[0], shelf, silent_step)
    asked = [TextRequest("warm", str(n), text, 8, Sampling(), ("\n",)) for n, text in enumerate(QUESTIONS)]
    said = [text.strip()[:1] for text in server.generate(asked)]
    items = [(q, first if n % 2 else "wrong") for n, (q, first) in enumerate(zip(QUESTIONS, said))]
    return write_task(tmp_path_factory.mktemp("tasks"), items, tokens=24, pattern="(\\\\S)")


def test_the_command_pairs_items_and_records_each_method(
    specbench: Any, target: Path, tasks: Path, tmp_path: Path
) -> None:
    code, out, err = specbench(
        "quality", "--tasks", "local_sums", "--include-path", tasks, "--target", target, "-m", "ngram:3",
        "--dtype", "float32", "--threads", 1, "-c", 2, "--out", tmp_path,
    )  # fmt: skip
    assert code == 0, err
    assert "exact_match (first)" in out
    records = {record.method: record for record in store.load_all(tmp_path)}
    assert set(records) == {"vanilla", "ngram"}
    scope = {"task": "local_sums", "grade": "exact_match", "filter": "first"}
    for record in records.values():
        score = record.find("item_score", **scope)
        assert score is not None
        assert (score.value, score.n) == (0.5, 6)
        assert verify_record(tmp_path, record.run_id) == []
        assert record.comparability["rendering"]["turns"] == 6
    gain = records["ngram"].find("item_score_difference", **scope)
    assert gain is not None
    assert (gain.value, gain.low, gain.high, gain.n) == (0.0, 0.0, 0.0, 6)
    assert gain.interval == "paired bootstrap over prompts"
    assert records["vanilla"].find("item_score_difference", **scope) is None
    verdict = records["ngram"].verdict
    assert verdict is not None
    assert verdict.outcome == "pass"
    assert records["ngram"].baseline == records["vanilla"].run_id
    assert records["ngram"].find("tau").value > 1.0  # type: ignore[union-attr]


def test_a_method_that_changes_answers_is_seen_item_by_item() -> None:
    def row(**scores: float) -> GradedRow:
        return GradedRow(task="t", metric="m", filter="none", scores=scores)

    ours = row(a=1.0, b=0.0, c=1.0, d=0.0)
    found = {e.metric: e for e in graded_estimates([ours], control=[row(a=1.0, b=1.0, c=1.0, e=1.0)])}
    assert found["item_score"].value == 0.5
    assert found["item_score_difference"].value == pytest.approx(-1 / 3)
    assert found["item_score_difference"].n == 3  # d and e were not asked of both
    low, high = found["item_score_difference"].low, found["item_score_difference"].high
    assert low is not None
    assert high is not None
    assert low < -1 / 3 < high <= 0


def test_samples_without_a_number_for_each_item_make_no_row() -> None:
    samples = [
        {"doc_id": n, "filter": "none", "metrics": ["acc", "pair", "some"], "acc": n == 0, "pair": (1, 2)}
        | ({"some": 1.0} if n else {})
        for n in range(2)
    ]
    (only,) = graded_rows("t", samples)
    assert (only.metric, only.scores) == ("acc", {"0": 1.0, "1": 0.0})


def test_stop_strings_end_an_answer_and_repeats_are_requests_of_their_own() -> None:
    assert cut_at_stops("4\nQuestion: ", ("Question:", "\n")) == "4"
    assert cut_at_stops("4", ("",)) == "4"
    one = TextRequest("t", "0.0", "p", 8, Sampling())
    assert [r.id for r in numbered([one, one, one])] == ["0.0", "0.0#2", "0.0#3"]


def test_settings_of_a_task_become_sampling() -> None:
    def made(**settings: Any) -> TextRequest:
        instance = type("Instance", (), {"args": ("p", settings), "task_name": "t", "doc_id": 3, "idx": 0})()
        return text_request(instance, {})

    assert made(until="x", max_gen_toks=5) == TextRequest("t", "3.0", "p", 5, Sampling(), ("x",))
    assert made().max_new_tokens == 256
    assert made(do_sample=False, temperature=0.7).sampling == Sampling()
    assert made(do_sample=True, temperature=0.7, top_p=0.9, top_k=4).sampling == Sampling(0.7, 0.9, 4)
    with pytest.raises(Exception, match="generation setting 'num_beams', which is not served; known: do_sample"):
        made(num_beams=2)


def test_the_registered_model_answers_and_scores(target: Path, shelf: TargetShelf) -> None:
    import lm_eval.api.registry as known
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert known.get_model("specbench") is SpecbenchLM
    lm = SpecbenchLM.create_from_arg_string(f"method=ngram:2,target={target},dtype=float32,device=cpu,threads=1")
    instance = type("I", (), {"args": ("1+1=", {"max_gen_toks": 6}), "task_name": "t", "doc_id": 0, "idx": 0})()
    (said,) = lm.generate_until([instance])
    model = AutoModelForCausalLM.from_pretrained(str(target), dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(str(target))
    ids = tokenizer("1+1=", return_tensors="pt").input_ids
    text = tokenizer.decode(model.generate(ids, max_new_tokens=6, do_sample=False)[0, ids.shape[1] :])
    assert said == text
    (found, greedy), (_, other) = lm.loglikelihood([_pair("1+1=", said), _pair("1+1= ", "zz")])
    whole = tokenizer("1+1=" + said, return_tensors="pt").input_ids
    log_p = torch.log_softmax(model(whole).logits[0].detach(), dim=-1)
    at = range(ids.shape[1] - 1, whole.shape[1] - 1)
    assert found == pytest.approx(sum(float(log_p[i, whole[0, i + 1]]) for i in at), abs=1e-3)
    assert greedy
    assert not other


def _pair(context: str, continuation: str) -> Any:
    return type("I", (), {"args": (context, continuation)})()


# ------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--tasks", "local_sum", "--include-path", "{tasks}"],
            "unknown lm-eval task 'local_sum'; did you mean local_s",
        ),
        (["--tasks", "x", "--include-path", "/nowhere"], "--include-path /nowhere is no folder"),
        (["--tasks", "local_choice", "--include-path", "{tasks}"], "compares likelihoods of given answers"),
        (["--tasks", "local_gone", "--include-path", "{tasks}"], "'local_gone' cannot be loaded"),
    ],
)
def test_bad_input_is_one_line(
    specbench: Any, target: Path, tasks: Path, tmp_path: Path, arguments: list[str], said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    import lm_eval.tasks

    real = lm_eval.tasks.TaskManager.__init__
    monkeypatch.setattr(  # the bundled thousands of task files need not be read to find a misspelt name of our own
        lm_eval.tasks.TaskManager, "__init__", lambda self, *a, **k: real(self, *a, **{**k, "include_defaults": False})
    )
    write_task(tasks, [("1", "1")], name="local_choice", kind="multiple_choice")
    gone = write_task(tasks, [("1", "2")], name="local_gone")
    (gone / "local_gone.jsonl").unlink()
    given = [text.format(tasks=tasks) for text in arguments]
    code, _, err = specbench("quality", *given, "-m", "ngram", "--target", target, "--out", tmp_path)
    assert code == 2
    (line,) = err.strip().splitlines()[-1:]
    assert said in line


def test_without_lm_eval_the_extra_is_named(specbench: Any, monkeypatch: pytest.MonkeyPatch, target: Path) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "specbench.quality.harness", None)
    code, _, err = specbench("quality", "--tasks", "gsm8k", "-m", "ngram", "--target", target)
    assert code == 2
    assert "pip install 'specbench-llm[quality]'" in err


def test_versions_of_tasks_are_known(tasks: Path) -> None:
    asked = Evaluation(("local_sums",), include_path=tasks)
    assert {name: task.VERSION for name, task in load_tasks(manager(asked), asked.tasks).items()} == {"local_sums": 1.0}


@pytest.mark.demo
def test_the_demo_model_is_as_right_with_speculation_as_without(tmp_path: Path) -> None:
    items = [("1 2 3 1 2 3 1 2", "3"), ("4 5 6 4 5 6 4 5", "6")]
    folder = write_task(tmp_path / "tasks", items, name="sums", tokens=5)
    spec = build_run(flags={"methods": "ngram:3", "concurrency": 2, "threads": 1, "out": tmp_path / "out", "warmup": 0})
    asked = Evaluation(("sums",), include_path=folder)
    index, shelf = manager(asked), TargetShelf()
    scores, said = [], []
    for method in spec.cells():
        server = MeasuredTexts(spec, method, shelf, silent_step)
        scores.append(evaluate(server, index, asked))
        (trace,) = (one.measured.trace for one in server.answered)
        assert len(trace.rounds) > 0
        said.append([(request.id, request.output_ids) for request in trace.requests])
    plain, ngram = scores
    assert ngram == plain
    assert said[0] == said[1]
    assert any(score > 0 for row in plain for score in row.scores.values())
    (difference,) = [e for e in graded_estimates(ngram, control=plain) if e.metric == "item_score_difference"]
    assert (difference.value, difference.n) == (0.0, 2)
