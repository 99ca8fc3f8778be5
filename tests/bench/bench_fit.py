"""Training of the demo model's drafters: anchors and predictions a second, share of the machine's matrix rate, memory.

Answers of the target are written first, then every recipe of its plan takes some steps of each phase, in a process of
its own with one thread. Peak memory includes the interpreter and the target's tables.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from specbench.train.plan_spec import read_plan
from specbench.train.recipe import read_recipe

PLAN = "smollm2-135m"
PROMPTS, NEW_TOKENS = 64, 192
STEPS = 6  # of each phase
COMMAND = (sys.executable, "-c", "from specbench.cli.main import run; run()", "train")


def main() -> None:
    """Write the data, train each drafter, print a line each."""
    plan = read_plan(PLAN)
    with tempfile.TemporaryDirectory(prefix="specbench-bench-") as scratch:
        work = Path(scratch)
        taps = ",".join(map(str, plan.prepare["taps"]))
        sizes = ("--synthesise", PROMPTS, "--max-new-tokens", NEW_TOKENS, "--rows", PROMPTS, "--heldout-share", 0.1)
        folders = ("--out", work / "answers", "--features", work / "features")
        _run("prepare", "--target", plan.target, *sizes, "--taps", taps, *folders)
        print(f"  {'':11} anchors/s predictions/s GFLOP/s  of a large product  peak memory")
        for entry in plan.drafters:
            phases = len(read_recipe(entry.recipe, sets=entry.set).phases)
            sets = [*entry.set, *(f"phases.{n}.steps={STEPS}" for n in range(phases)), "evaluate.sequences=2"]
            out = work / entry.name
            changes = [word for text in sets for word in ("--set", text)]
            _run("fit", "--recipe", entry.recipe, "--data", work / "features", "--out", out, *changes)
            print(_line(entry.name, json.loads((out / "summary.json").read_text())), flush=True)


def _run(*arguments: object) -> None:
    done = subprocess.run([*COMMAND, *map(str, arguments), "--threads", "1"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{arguments[0]} failed:\n{done.stderr[-2000:]}")


def _line(name: str, found: dict[str, Any]) -> str:
    rates = f"{found['anchors_per_s']:9.0f} {found['predictions_per_s']:13.0f} {found['flop_per_s'] / 1e9:7.1f}"
    share, memory = f"{found['matrix_share']:9.0%} {found['dtype']:>8}", found["peak_rss_bytes"] / 1e9
    return f"  {name:11} {rates}  {share}  {memory:8.2f} GB"
