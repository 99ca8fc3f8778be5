"""Keys and passwords do not get into records."""

from __future__ import annotations

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
