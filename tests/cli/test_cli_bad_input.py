"""Every mistake of a user: one clear line on stderr, exit code 2, nothing lost."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from support_models import CHAT_TEMPLATE, tiny_llama_dir
from support_runs import TinyRun, tiny_run, write_prompts

from specbench.cli import main


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> TinyRun:
    return tiny_run(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def refused(monkeypatch, capfd):
    def call(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["specbench", *arguments])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main.run()
        assert ended.value.code == 2
        lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1
        return lines[0].removeprefix("error: ")

    return call


def assert_nothing_written(out: Path) -> None:
    assert not out.exists() or list(out.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-m", "ngarm"], "unknown method 'ngarm'; did you mean ngram?"),
        (["-m", "ngram", "--task", "starter-mat"], "unknown task 'starter-mat'; did you mean starter-math"),
        (["-m", "ngram", "--target", "smollm2-135"], "unknown target 'smollm2-135'; did you mean smollm2-135m"),
        (["-m", "ngram", "--policy", "fxed"], "unknown policy 'fxed'; did you mean fixed?"),
        (["-m", "ngram", "--policy", "fixed:many"], "fixed:many"),
        (["-m", "ngram", "--set", "ngram.max_ngrm=3"], "did you mean max_ngram"),
        (["-m", "ngram", "--set", "ngram.max_ngram=many"], "max_ngram"),
        (["-m", "ngram", "--set", "concurency=3"], "did you mean concurrency"),
        (["-m", "ngram", "--num-prompts", "0"], "num_prompts"),
        (["-m", "ngram", "--temperature", "-1"], "temperature"),
        (["-m", "ngram", "--kv-memory", "lots"], "2GiB"),
        (["-m", "ngram", "--drafter", "mtp"], "NAME=PATH"),
        (["-m", "ngram", "--config", "nowhere.toml"], "nowhere.toml"),
        (["-m", "ngram", "--thinking", "on"], "ignores the switch"),
        (["-m", "draft_model"], "--drafter draft-model=PATH"),
        (["-m", "draft_model", "--drafter", "draft_model=/no/such/folder"], "/no/such/folder"),
        ([], "--method"),
    ],
)
def test_wrong_names_and_values(tiny, tmp_path, refused, arguments, says):
    out = tmp_path / "out"
    assert says in refused(*tiny.arguments(out), *arguments)
    assert_nothing_written(out)


def test_malformed_task_file_names_file_and_line(tiny, tmp_path, refused):
    task = tmp_path / "bad.jsonl"
    task.write_text('{"turns": ["fine"]}\n{"turns": ["broken"\n')
    text = refused(*tiny.arguments(tmp_path / "out", "-m", "ngram", "-t", str(task)))
    assert "bad.jsonl" in text
    assert "2" in text.partition("bad.jsonl")[2]
    assert_nothing_written(tmp_path / "out")


def test_empty_task_file(tiny, tmp_path, refused):
    task = tmp_path / "empty.jsonl"
    task.write_text("")
    assert "empty.jsonl" in refused(*tiny.arguments(tmp_path / "out", "-m", "ngram", "-t", str(task)))


def test_prompt_beyond_the_context(tiny, tmp_path, refused):
    task = write_prompts(tmp_path / "long.jsonl", [["x" * 600]])
    text = refused(*tiny.arguments(tmp_path / "out", "-m", "ngram", "-t", str(task)))
    assert "prompt 'row-1' of task 'long'" in text
    assert_nothing_written(tmp_path / "out")


def test_draft_model_with_another_tokenizer(tiny, tmp_path, refused):
    other = tiny_llama_dir(tmp_path, name="other", shuffle_vocab=True)
    text = refused(*tiny.arguments(tmp_path / "out", "-m", "draft_model", "--drafter", f"draft_model={other}"))
    assert "tokenizer" in text
    assert_nothing_written(tmp_path / "out")


def test_weights_of_another_shape(tiny, tmp_path, refused):
    folder = tmp_path / "reshaped"
    shutil.copytree(tiny.target, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "hidden_size": 64}))
    assert "shape" in refused(*tiny.arguments(tmp_path / "out", "-m", "ngram", "--target", str(folder)))


def test_truncated_weights(tiny, tmp_path, refused):
    folder = tmp_path / "cut"
    shutil.copytree(tiny.target, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    assert "model.safetensors" in refused(*tiny.arguments(tmp_path / "out", "-m", "ngram", "--target", str(folder)))


def test_layer_of_another_shape(tiny, tmp_path, refused):
    """The embedding fits the config and a layer does not: transformers would fill it with random numbers."""
    folder = tmp_path / "layers"
    shutil.copytree(tiny.target, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 96}))
    text = refused(*tiny.arguments(tmp_path / "out", "-m", "ngram", "--target", str(folder)))
    assert "layers" in text


def test_folder_without_a_model(tiny, tmp_path, refused):
    (tmp_path / "nothing").mkdir()
    text = refused(*tiny.arguments(tmp_path / "out", "-m", "ngram", "--target", str(tmp_path / "nothing")))
    assert "config.json" in text


def test_folder_that_cannot_be_written(tiny, tmp_path, refused):
    (tmp_path / "file").write_text("in the way")
    text = refused(*tiny.arguments(tmp_path / "file" / "out", "-m", "ngram"))
    assert "cannot write" in text
    assert (tmp_path / "file").read_text() == "in the way"


def test_show_of_a_missing_or_foreign_record(tmp_path, refused):
    assert "nothing.json" in refused("show", str(tmp_path / "nothing.json"))
    (tmp_path / "foreign.json").write_text("{}")
    assert "foreign.json" in refused("show", str(tmp_path / "foreign.json"))
    assert "no such folder" in refused("show", "abc", "--in", str(tmp_path / "nowhere"))


def test_model_code_runs_only_when_trusted(tiny, tmp_path, refused):
    folder = tmp_path / "custom"
    shutil.copytree(tiny.target, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "homemade", "auto_map": {"AutoModelForCausalLM": "modeling_homemade.HomemadeLM"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "modeling_homemade.py").write_text("raise SystemExit('ran')\n")
    text = refused(*tiny.arguments(tmp_path / "out", "-m", "ngram", "--target", str(folder)))
    assert "--trust-remote-code" in text


def test_template_that_breaks_is_one_line(tiny, tmp_path, refused):
    folder = tiny_llama_dir(tmp_path, name="loud", chat_template="{{ raise_exception('two\nlines') }}" + CHAT_TEMPLATE)
    assert "chat template refuses" in refused(*tiny.arguments(tmp_path / "out", "-m", "ngram", "--target", str(folder)))
