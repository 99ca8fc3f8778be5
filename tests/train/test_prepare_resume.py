"""Killed at any point, `train prepare` goes on and ends with the very shards of a run that was left alone."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support_models import tiny_llama_dir
from typer.testing import CliRunner

from specbench.cli.main import app

PROMPTS = [f"Say something about number {i}, the colour {c} and what {c} things do." for i, c in enumerate(
    ("red", "blue", "green", "grey", "brown", "white", "black", "pink", "gold", "teal", "lime", "navy", "plum", "rust")
)]  # fmt: skip


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    tiny_llama_dir(folder)
    (folder / "own.jsonl").write_text("".join(json.dumps({"turns": [text, "And now?"]}) + "\n" for text in PROMPTS))
    return folder


def options(inputs: Path, out: Path) -> list[str]:
    return [
        "train", "prepare", "--target", str(inputs / "tiny-llama"), "--prompts", str(inputs / "own.jsonl"),
        "--synthesise", "6", "--domains", "math", "--evaluation", "starter-math", "--block", "5", "--rows", "3",
        "--max-new-tokens", "12", "--heldout-share", "0.3", "--out", str(out), "--threads", "1",
    ]  # fmt: skip


def run_here(inputs: Path, out: Path) -> None:
    done = CliRunner().invoke(app, options(inputs, out))
    assert done.exit_code == 0, done.output


def killed_when(awaited: Path, inputs: Path, out: Path, *, later_s: float = 0.0) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "specbench.cli.main", *options(inputs, out)], stderr=subprocess.DEVNULL
    )
    while not awaited.exists() and process.poll() is None:
        time.sleep(0.002)
    time.sleep(later_s)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "the run ended before it was killed"


def content(folder: Path) -> dict[str, str]:
    names = [p for p in folder.iterdir() if p.suffix in (".parquet", ".jsonl", ".json")]
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in names}


def test_killed_between_and_inside_blocks_the_shards_are_the_same(inputs: Path, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run_here(inputs, whole)
    wanted = content(whole)
    assert len([n for n in wanted if n.endswith(".parquet")]) == 4
    assert len([n for n in wanted if n.startswith("prompts-")]) >= 2

    killed_when(broken / "answers-00001.parquet", inputs, broken)
    first = json.loads((broken / "manifest.json").read_text())
    assert not first["complete"]
    assert 1 <= len(first["shards"]) <= 3
    killed_when(broken / "prompts-00000.jsonl", inputs, broken, later_s=0.02)
    run_here(inputs, broken)
    assert content(broken) == wanted
