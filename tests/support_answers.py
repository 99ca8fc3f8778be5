"""Small runs of `train prepare` on a tiny target on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support_models import tiny_llama_dir

from specbench.train.prepare import prepare
from specbench.train.shards import TokenRow, read_token_shard
from specbench.train.spec import PrepareSpec

THINGS = ("otter", "harbour", "violin", "glacier", "candle", "tractor", "meadow", "compass", "lantern", "teapot")


def prompt_file(folder: Path, *, count: int = 8, second: int = 2) -> Path:
    """``count`` prompts that share few words; the first ``second`` of them have a second turn."""
    path = folder / "own.jsonl"
    with path.open("w") as file:
        for i in range(count):
            a, b = THINGS[i % 10], THINGS[(3 * i + 1) % 10]
            turns = [f"{a} {i}: why would {b} number {i * 7} matter to {a}?", f"And the {b}?"][: 2 if i < second else 1]
            file.write(json.dumps({"id": f"q{i}", "turns": turns, "domain": "chat"}) + "\n")
    return path


def run_prepare(folder: Path, out: str = "answers", **changes: Any) -> tuple[dict[str, Any], list[TokenRow]]:
    """Prepare answers of the tiny target to the prompt file; the manifest and all rows."""
    if not (folder / "tiny-llama").exists():
        tiny_llama_dir(folder)
    if not (folder / "own.jsonl").exists():
        prompt_file(folder)
    settings: dict[str, Any] = {
        "out": folder / out, "target": str(folder / "tiny-llama"), "tasks": (str(folder / "own.jsonl"),),
        "evaluation": ("starter-math",), "block": 3, "rows": 2, "max_new_tokens": 10, "threads": 1,
        "heldout_share": 0.3, "greedy_share": 0.4, "dtype": "float32",
    }  # fmt: skip
    manifest = prepare(PrepareSpec(**{**settings, **changes}))
    return manifest, read_rows(folder / out, manifest)


def read_rows(folder: Path, manifest: dict[str, Any]) -> list[TokenRow]:
    """All rows of the shards, in order."""
    rows = [row for e in manifest["shards"] for row in read_token_shard(folder / e["name"]).to_pylist()]
    return [TokenRow(**{k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}) for row in rows]
