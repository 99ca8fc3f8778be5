"""Keys and passwords do not get into records."""

from __future__ import annotations

from pathlib import Path

import pytest

from specbench.secrets_in_text import masked, masked_command


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("--api-key sk-1 --port 3", "--api-key *** --port 3"),
        ("--hf_token=abc", "--hf_token=***"),
        ('server.args=["--api-key", "sk-1", "--seed", "1"]', 'server.args=["--api-key", "***", "--seed", "1"]'),
        ("--max-num-batched-tokens 512 --tokenizer x", "--max-num-batched-tokens 512 --tokenizer x"),
        ("no answer from http://me:pw@host:8000/v1: x", "no answer from http://***@host:8000/v1: x"),
        ("ngram=http://host:8000/v1", "ngram=http://host:8000/v1"),
    ],
)
def test_keys_and_passwords_are_masked(text: str, shown: str) -> None:
    assert masked(text) == shown


def test_a_word_behind_the_flag_of_a_key_is_masked() -> None:
    words = ["vllm", "--api-key", "sk-1", "--seed", "1"]
    assert masked_command(words) == ["vllm", "--api-key", "***", "--seed", "1"]


@pytest.mark.parametrize(
    ("word", "kept"),
    [
        ("/shelf/mine/runs", ".../runs"),
        ("--out=/shelf/mine/runs", "--out=.../runs"),
        ("eagle3=/srv/shelf/drafter", "eagle3=.../drafter"),
        ("~/models/drafter", ".../drafter"),
        ("{here}/runs/one", "runs/one"),
        ("runs/one", "runs/one"),
        ("../runs", "../runs"),
        ("http://host:80/v1", "http://host:80/v1"),
        ("a/b", "a/b"),
        ("/", "/"),
        ("temperature=0", "temperature=0"),
    ],
)
def test_a_command_keeps_no_folder_of_the_machine(
    word: str, kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert masked_command(["specbench", word.format(here=tmp_path)]) == ["specbench", kept]
