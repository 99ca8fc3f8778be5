"""Killed at any point, `train features` goes on and ends with the very store of a run that was left alone."""

from __future__ import annotations

import json
from pathlib import Path

from support_answers import prompt_file, run_prepare
from support_kill import exists, killed_when, run_here

from specbench.train.store import FeatureStore


def options(folder: Path, out: Path) -> list[str]:
    return [
        "train", "features", "--data", str(folder / "answers"), "--target", str(folder / "tiny-llama"), "--taps", "0,1",
        "--shard-tokens", "200", "--batch-tokens", "64", "--threads", "1", "--out", str(out),
    ]  # fmt: skip


def shards(out: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads((out / "manifest.json").read_text())["shards"]
    return found


def test_killed_inside_a_shard_the_store_is_the_same(tmp_path: Path) -> None:
    prompt_file(tmp_path, count=30)
    run_prepare(tmp_path, block=30, rows=10, max_new_tokens=6)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run_here(options(tmp_path, whole))
    wanted = shards(whole)
    assert len(wanted) > 10

    for awaited in (broken / "manifest.json", broken / "00001", broken / "00002", broken / ".00005.partial"):
        killed_when(exists(awaited), options(tmp_path, broken))
        assert shards(broken) == wanted[: len(shards(broken))]
    assert len(shards(broken)) >= 2
    run_here(options(tmp_path, broken))
    assert shards(broken) == wanted
    FeatureStore.open(broken, verify=True)
    assert sorted(p.name for p in broken.iterdir() if not p.name.startswith(".")) == sorted(
        p.name for p in whole.iterdir() if not p.name.startswith(".")
    )
