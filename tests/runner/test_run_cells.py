from __future__ import annotations

import csv
import os
import resource
import signal
from importlib.metadata import EntryPoint

import pytest
from support_models import tiny_llama_dir
from support_runs import TinyRun, tiny_run, write_prompts

from specbench import registry
from specbench.config import build_run
from specbench.errors import CapacityError, ConfigError, DrafterError, RecordError, TaskError
from specbench.records import store
from specbench.report.recompute import verify_record
from specbench.runner import RunSummary, run_cells


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> TinyRun:
    return tiny_run(tmp_path_factory.mktemp("tiny"))


def run(tiny: TinyRun, out, *, on_progress=None, **flags) -> RunSummary:
    return run_cells(build_run(flags=tiny.flags(out, **flags)), on_progress=on_progress)


def bring(monkeypatch, **plugins: str) -> None:
    """Drafters of another distribution: name = "module" or "module:class"."""
    points = {name: EntryPoint(name=name, value=value, group="specbench.drafters") for name, value in plugins.items()}
    foreign = registry._foreign
    monkeypatch.setattr(registry, "_foreign", lambda kind: points if kind == "drafters" else foreign(kind))


def texts(summary: RunSummary, index: int) -> dict[str, tuple[int, ...]]:
    result = summary.results[index]
    trace = store.read_trace(result.path.parent, result.record)
    return {request.id: request.output_ids for request in trace.requests if not request.warmup}


def test_run_writes_records_that_reproduce_themselves(tiny, tmp_path):
    summary = run(tiny, tmp_path, methods="ngram:3")
    assert summary.exit_code == 0
    vanilla, ngram = (result.record for result in summary.results)
    assert (vanilla.method, ngram.method, ngram.draft_length) == ("vanilla", "ngram", 3)
    assert vanilla.counts == {"ok": 5, "warmup": 1}  # four prompts, one of them with two turns
    assert vanilla.verdict is None
    assert ngram.verdict.outcome == "pass"
    assert ngram.verdict.control == ngram.baseline == vanilla.run_id
    assert ngram.find("speed_up") is not None
    assert ngram.find("tau", task="prompts").value > 1
    assert texts(summary, 0) == texts(summary, 1)
    for result in summary.results:
        assert store.read(result.path) == result.record
        assert verify_record(tmp_path, result.record.run_id) == []


def test_requests_of_every_method_have_their_own_limits_where_the_load_says_so(tiny, tmp_path):
    summary = run(tiny, tmp_path, methods="ngram:3", load={"shortest": 0.25}, ignore_eos=True, concurrency=2)
    assert summary.exit_code == 0
    lengths = [{name: len(output) for name, output in texts(summary, index).items()} for index in (0, 1)]
    assert lengths[0] == lengths[1]
    assert len(set(lengths[0].values())) > 2
    assert all(6 <= length <= 24 for length in lengths[0].values())
    assert summary.results[1].record.comparability["load"] == "closed:2,shortest=0.25"


def test_record_says_what_ran(tiny, tmp_path):
    spec = build_run(flags=tiny.flags(tmp_path, options={"ngram": {"max_ngram": 2}}, draft_length=4, seed=3))
    summary = run_cells(spec, command=["specbench", "run"])
    record = summary.results[1].record
    assert record.command == ["specbench", "run"]
    assert record.spec["options"] == {"max_ngram": 2}
    assert (record.spec["policy"], record.spec["seed"], record.spec["threads"]) == ("fixed:4", 3, 1)
    assert record.target.name == "tiny-llama"
    assert record.spec["inputs"]["target_weights"] == record.target.sha256
    assert str(tmp_path) not in record.model_dump_json()  # nothing of this machine's folders
    memory = record.provenance["memory"]
    assert memory["weights_bytes"] > 100_000
    assert memory["weights_packed_bytes"] == 0  # float32 weights of 24 bits do not fit
    assert memory["kv_bytes"] > 0
    assert memory["peak_rss_bytes"] > memory["weights_bytes"]
    assert [sample.task for sample in record.samples] == ["prompts"]
    assert "hello there" in "".join(sample.prompt for sample in record.samples)


def test_tidy_table_holds_every_estimate(tiny, tmp_path):
    summary = run(tiny, tmp_path)
    with summary.table.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(len(result.record.estimates) for result in summary.results)
    tau = next(r for r in rows if r["method"] == "ngram" and r["metric"] == "tau" and not r["scope"])
    assert float(tau["value"]) == summary.results[1].record.find("tau").value


def test_cell_key_is_of_content_and_texts_do_not_depend_on_concurrency(tiny, tmp_path):
    one = run(tiny, tmp_path, baseline=False)
    again = run(tiny, tmp_path, baseline=False)
    three = run(tiny, tmp_path, baseline=False, concurrency=3)
    keys = [summary.results[0].record.cell_key for summary in (one, again, three)]
    assert keys[0] == keys[1] != keys[2]
    assert texts(one, 0) == texts(again, 0) == texts(three, 0)
    assert three.results[0].record.comparability["load"] == "closed:3"


def test_no_baseline_gives_neither_verdict_nor_speed_up(tiny, tmp_path):
    (result,) = run(tiny, tmp_path, baseline=False).results
    assert result.record.verdict is None
    assert result.record.baseline is None
    assert result.record.find("speed_up") is None


def test_sampling_run_is_judged_by_distribution(tiny, tmp_path):
    summary = run(tiny, tmp_path, temperature=0.9, top_p=0.95)
    record = summary.results[1].record
    assert record.verdict.rule == "sampled"
    assert record.verdict.outcome == "inconclusive"  # five requests have no power
    assert verify_record(tmp_path, record.run_id) == []


def test_draft_model_is_named_by_its_weights(tiny, tmp_path):
    twin = tiny_llama_dir(tmp_path, name="twin")  # the target itself: every draft is right
    summary = run(tiny, tmp_path / "out", methods="draft_model:3", drafters={"draft_model": str(twin)})
    record = summary.results[1].record
    assert (record.drafter.name, record.drafter.source) == ("twin", "folder")
    assert record.spec["inputs"]["drafter"] == record.drafter.sha256
    assert record.find("tau").value > 2.5
    assert record.verdict.outcome in ("pass", "inconclusive")  # perfect drafts may leave too few rounds


def test_draft_model_with_another_tokenizer_is_refused_before_anything_is_measured(tiny, tmp_path):
    other = tiny_llama_dir(tmp_path, name="other", shuffle_vocab=True)
    with pytest.raises(DrafterError, match="tokenizer"):
        run(tiny, tmp_path / "out", methods="draft_model", drafters={"draft_model": str(other)})
    assert list((tmp_path / "out").glob("*.json")) == []


def test_method_without_its_checkpoint_names_the_flag(tiny, tmp_path):
    with pytest.raises(DrafterError, match=r"--drafter draft-model=PATH"):
        run(tiny, tmp_path, methods="draft_model")


def test_same_cell_twice_is_refused(tiny, tmp_path):
    trained = run(tiny, tmp_path, baseline=False).results[0].record.draft_length
    with pytest.raises(ConfigError, match="same cell"):
        run(tiny, tmp_path, methods=f"ngram,ngram:{trained}")


def test_failed_cell_leaves_a_record_and_the_run_goes_on(tiny, tmp_path, monkeypatch):
    bring(monkeypatch, breaking="support_bad_drafter")
    summary = run(tiny, tmp_path, methods="breaking,ngram", warmup=0)
    vanilla, breaking, ngram = (result.record for result in summary.results)
    assert (vanilla.status, breaking.status, ngram.status) == ("ok", "failed", "ok")
    assert (breaking.error.kind, breaking.error.message) == ("ZeroDivisionError", "the drafter broke")
    assert breaking.error.where.startswith("support_bad_drafter.py:")
    assert summary.exit_code == 1
    assert summary.results[1].error == "breaking:2 failed: the drafter broke"
    assert {record.run_id for record in store.load_all(tmp_path)} == {r.record.run_id for r in summary.results}
    assert ngram.verdict.outcome == "pass"


def test_method_beside_a_failed_baseline_says_that_it_has_no_verdict(tiny, tmp_path, monkeypatch):
    bring(monkeypatch, vanilla="support_bad_drafter:BreakingBaseline")
    summary = run(tiny, tmp_path, methods="ngram:3")
    vanilla, ngram = (result.record for result in summary.results)
    assert (vanilla.status, ngram.status) == ("failed", "ok")
    assert ngram.verdict is None
    assert ngram.find("tau") is not None
    assert any("neither a speed-up nor a verdict" in note for note in ngram.notes)
    assert summary.exit_code == 1


def test_cell_that_does_not_fit_its_memory_fails_by_the_users_doing(tiny, tmp_path):
    summary = run(tiny, tmp_path, kv_memory="1KiB")
    assert [result.record.status for result in summary.results] == ["failed", "failed"]
    assert "--kv-memory" in summary.results[0].error
    assert summary.exit_code == 2


def test_interrupt_keeps_finished_requests(tiny, tmp_path):
    def ctrl_c(event) -> None:
        if event.label.startswith("ngram") and event.done_turns == 5 + 2:
            os.kill(os.getpid(), signal.SIGINT)

    summary = run(tiny, tmp_path, methods="ngram:3,ngram:5", on_progress=ctrl_c)
    assert summary.interrupted
    assert summary.exit_code == 130
    assert summary.left_out == ("ngram:5",)
    vanilla, ngram = (result.record for result in summary.results)
    assert (vanilla.status, ngram.status) == ("ok", "interrupted")
    assert ngram.counts["ok"] == 2
    assert verify_record(tmp_path, ngram.run_id) == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_second_ctrl_c_ends_at_once(tiny, tmp_path):
    def impatient(event) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(tiny, tmp_path, on_progress=impatient)


def test_folder_that_cannot_be_written_is_found_first(tiny, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RecordError, match="choose another folder"):
        run(tiny, tmp_path / "file" / "out", target="no-such-target-is-even-looked-for")


def test_full_disk_keeps_what_was_written_before(tiny, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(event) -> None:
        if event.label.startswith("ngram"):
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # from here on every larger file is refused

    try:
        summary = run(tiny, tmp_path, methods="ngram:3,ngram:5", on_progress=fill)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [result.path is not None for result in summary.results] == [True, False]
    assert "cannot write" in summary.results[1].error
    assert summary.left_out == ("ngram:5",)
    assert summary.exit_code == 2
    assert [record.method for record in store.load_all(tmp_path)] == ["vanilla"]
    assert list(tmp_path.glob(".*")) == []


def test_prompt_beyond_the_context_is_named_before_the_target_is_loaded(tiny, tmp_path):
    task = write_prompts(tmp_path / "long.jsonl", [["short"], ["x" * 600]])
    with pytest.raises(CapacityError, match=r"prompt 'row-2' of task 'long' .* 603 tokens .* 512"):
        run(tiny, tmp_path / "out", tasks=[str(task)])


def test_conversation_that_outgrows_the_context_is_skipped_and_said(tiny, tmp_path):
    task = write_prompts(tmp_path / "long.jsonl", [["x" * 480, "and more " * 4], ["short"]])
    (result,) = run(tiny, tmp_path / "out", tasks=[str(task)], baseline=False, ignore_eos=True).results
    assert result.record.counts == {"ok": 2, "skipped": 1, "warmup": 1}
    assert any("turn 2 of long/row-1 was not run" in note for note in result.record.notes)


def test_two_files_of_one_name_are_refused(tiny, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    files = [str(write_prompts(tmp_path / folder / "same.jsonl")) for folder in "ab"]
    with pytest.raises(ConfigError, match="two tasks are called 'same'"):
        run(tiny, tmp_path / "out", tasks=files)


def test_empty_file_has_no_prompts(tiny, tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(TaskError, match=r"empty\.jsonl"):
        run(tiny, tmp_path / "out", tasks=[str(tmp_path / "empty.jsonl")])
