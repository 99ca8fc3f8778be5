"""Killed at any point, `train features` goes on and ends with the very store of a run that was left alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from support_answers import prompt_file, run_prepare
from typer.testing import CliRunner

from specbench.cli.main import app
from specbench.train.store import FeatureStore


def options(folder: Path, out: Path) -> list[str]:
    return [
        "train", "features", "--data", str(folder / "answers"), "--target", str(folder / "tiny-llama"), "--taps", "0,1",
        "--shard-tokens", "200", "--batch-tokens", "64", "--threads", "1", "--out", str(out),
    ]  # fmt: skip


def run_here(folder: Path, out: Path) -> None:
    done = CliRunner().invoke(app, options(folder, out))
    assert done.exit_code == 0, done.output


def shards(out: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads((out / "manifest.json").read_text())["shards"]
    return found


def test_killed_inside_a_shard_the_store_is_the_same(tmp_path: Path) -> None:
    prompt_file(tmp_path, count=30)
    run_prepare(tmp_path, block=30, rows=10, max_new_tokens=6)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run_here(tmp_path, whole)
    wanted = shards(whole)
    assert len(wanted) > 10

    command = [sys.executable, "-m", "specbench.cli.main", *options(tmp_path, broken)]
    for awaited in (broken / "00002", broken / ".00005.partial"):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        while not awaited.exists() and process.poll() is None:
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "the run ended before it was killed"
    assert 2 <= len(shards(broken)) < len(wanted)
    assert shards(broken) == wanted[: len(shards(broken))]
    run_here(tmp_path, broken)
    assert shards(broken) == wanted
    FeatureStore.open(broken, verify=True)
    assert sorted(p.name for p in broken.iterdir() if not p.name.startswith(".")) == sorted(
        p.name for p in whole.iterdir() if not p.name.startswith(".")
    )
