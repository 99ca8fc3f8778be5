"""Killed at any point, `train prepare` goes on and ends with the very shards of a run that was left alone."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from support_answers import prompt_file
from support_kill import exists, killed_when, run_here
from support_models import tiny_llama_dir


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    tiny_llama_dir(folder)
    prompt_file(folder, count=7, second=1)
    return folder


def options(inputs: Path, out: Path) -> list[str]:
    return [
        "train", "prepare", "--target", str(inputs / "tiny-llama"), "--prompts", str(inputs / "own.jsonl"),
        "--synthesise", "2", "--domains", "math", "--evaluation", "starter-math", "--block", "3", "--rows", "3",
        "--max-new-tokens", "8", "--heldout-share", "0.3", "--out", str(out), "--threads", "1",
        "--max-turn-tokens", "8",
    ]  # fmt: skip


def content(folder: Path) -> dict[str, str]:
    names = [p for p in folder.iterdir() if p.suffix in (".parquet", ".jsonl", ".json")]
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in names}


def test_killed_between_and_inside_blocks_the_shards_are_the_same(inputs: Path, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run_here(options(inputs, whole))
    wanted = content(whole)
    assert len([n for n in wanted if n.endswith(".parquet")]) == 3
    assert [n for n in wanted if n.startswith("prompts-")]

    for awaited in ("manifest.json", "answers-00000.parquet", "prompts-00000.jsonl"):
        killed_when(exists(broken / awaited), options(inputs, broken))
        manifest = json.loads((broken / "manifest.json").read_text())
        assert not manifest["complete"]
        assert all(wanted[e["name"]] == e["sha256"] for e in (*manifest["shards"], *manifest["prompt_shards"]))
    assert manifest["shards"]
    run_here(options(inputs, broken))
    assert content(broken) == wanted
