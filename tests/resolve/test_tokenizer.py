from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support_folders import TEMPLATE, write_tokenizer

from specbench.errors import TargetError
from specbench.resolve import hash_template, hash_tokenizer, same_tokenizer_map, tokenizer_difference, vocabulary_map
from specbench.resolve.tokenizer import chat_template


def _edited(source: Path, target: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    shutil.copytree(source, target)
    path = target / "tokenizer.json"
    spec = json.loads(path.read_text())
    change(spec)
    path.write_text(json.dumps(spec, indent=7))
    return target


def test_formatting_and_order_do_not_change_the_tokenizer(llama: Path, tmp_path: Path) -> None:
    def reorder(spec: dict[str, Any]) -> None:
        spec["model"]["vocab"] = dict(reversed(spec["model"]["vocab"].items()))
        spec["added_tokens"].reverse()
        merges = spec["model"]["merges"]
        spec["model"]["merges"] = [m if isinstance(m, str) else " ".join(m) for m in merges]

    other = _edited(llama, tmp_path / "other", reorder)
    assert hash_tokenizer(other) == hash_tokenizer(llama)
    assert same_tokenizer_map(other, llama)
    assert tokenizer_difference(other, llama) is None


def test_what_changes_ids_changes_the_hash(llama: Path, tmp_path: Path) -> None:
    def swap(spec: dict[str, Any]) -> None:
        vocab = spec["model"]["vocab"]
        vocab["a"], vocab["b"] = vocab["b"], vocab["a"]

    changes: dict[str, Callable[[dict[str, Any]], None]] = {
        "vocabulary": swap,
        "merges": lambda spec: spec["model"]["merges"].reverse(),
        "pre-tokeniser": lambda spec: spec["pre_tokenizer"].update(add_prefix_space=True),
        "special": lambda spec: spec["added_tokens"][0].update(special=False),
    }
    hashes = {name: hash_tokenizer(_edited(llama, tmp_path / name, change)) for name, change in changes.items()}
    assert len({*hashes.values(), hash_tokenizer(llama)}) == len(changes) + 1, hashes
    assert not same_tokenizer_map(llama, tmp_path / "vocabulary")
    assert same_tokenizer_map(llama, tmp_path / "merges")  # another text split, the same ids for the same tokens


def test_the_difference_names_the_first_token(llama: Path, tmp_path: Path) -> None:
    def add(spec: dict[str, Any]) -> None:
        spec["added_tokens"].append({"id": 5000, "content": "<extra>", "special": True})

    other = _edited(llama, tmp_path / "other", add)
    assert tokenizer_difference(llama, other) == "1 tokens differ, the first is '<extra>': absent against id 5000"
    assert tokenizer_difference(other, llama) == "1 tokens differ, the first is '<extra>': id 5000 against absent"


def test_the_map_is_the_librarys_own(llama: Path) -> None:
    from transformers import AutoTokenizer

    assert vocabulary_map(llama) == AutoTokenizer.from_pretrained(llama).get_vocab()


def test_unigram_vocabularies_are_lists(tmp_path: Path) -> None:
    model = {"type": "Unigram", "vocab": [["<unk>", 0.0], ["a", -1.5], ["b", -2.0]], "unk_id": 0}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": model, "added_tokens": []}))
    assert vocabulary_map(tmp_path) == {"<unk>": 0, "a": 1, "b": 2}
    before = hash_tokenizer(tmp_path)
    model["vocab"][2][1] = -1.0
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": model, "added_tokens": []}))
    assert hash_tokenizer(tmp_path) != before


def test_a_folder_of_older_files_is_read_through_the_library(tmp_path: Path) -> None:
    source, older = tmp_path / "source", tmp_path / "older"
    source.mkdir()
    older.mkdir()
    write_tokenizer(source)
    spec = json.loads((source / "tokenizer.json").read_text())
    merges = [m if isinstance(m, str) else " ".join(m) for m in spec["model"]["merges"]]
    (older / "vocab.json").write_text(json.dumps(spec["model"]["vocab"]))
    (older / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    settings = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|im_end|>", "unk_token": "<|endoftext|>"}
    settings |= {"bos_token": "<|im_start|>"}
    (older / "tokenizer_config.json").write_text(json.dumps(settings))
    (older / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    assert vocabulary_map(older) == vocabulary_map(source)
    assert hash_tokenizer(older) is not None


def test_no_tokenizer_is_none_and_a_broken_one_an_error(tmp_path: Path, llama: Path) -> None:
    assert vocabulary_map(tmp_path) is None
    assert hash_tokenizer(tmp_path) is None
    assert tokenizer_difference(llama, tmp_path) == f"{tmp_path} has no tokenizer"
    (tmp_path / "tokenizer.json").write_text('{"model": ')
    with pytest.raises(TargetError, match="not valid JSON"):
        hash_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("[]")
    with pytest.raises(TargetError, match="not a tokenizer file"):
        hash_tokenizer(tmp_path)


def test_the_template_is_found_wherever_it_is_kept(tmp_path: Path, llama: Path) -> None:
    assert chat_template(llama) == TEMPLATE
    layouts: dict[str, dict[str, Any]] = {
        "config": {"tokenizer_config.json": {"chat_template": TEMPLATE}},
        "file": {"chat_template.json": {"chat_template": TEMPLATE}},
        "named": {
            "tokenizer_config.json": {
                "chat_template": [{"name": "tool", "template": "x"}, {"name": "default", "template": TEMPLATE}]
            }
        },
    }
    for name, files in layouts.items():
        (tmp_path / name).mkdir()
        for file, content in files.items():
            (tmp_path / name / file).write_text(json.dumps(content))
        assert hash_template(tmp_path / name) == hash_template(llama), name
    assert hash_template(tmp_path) is None
    (tmp_path / "config" / "chat_template.jinja").write_text(TEMPLATE + " ")
    assert hash_template(tmp_path / "config") != hash_template(llama)
