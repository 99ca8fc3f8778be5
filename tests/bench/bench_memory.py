"""Peak resident memory of a run against weights plus KV budget, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from specbench.engine.target import DTYPES

PARAMETERS = 134_515_008  # of the demo model, the embedding that is also its head once


def main() -> None:
    """Run plain decoding with a stated KV budget and read the record."""
    for dtype in ("float32", "bfloat16"):
        with tempfile.TemporaryDirectory() as out:
            command = [
                sys.executable, "-m", "specbench.cli.main", "run", "-m", "vanilla", "--dtype", dtype,
                "--kv-memory", "256MiB",
                "--concurrency", "8", "--num-prompts", "4", "--max-new-tokens", "64", "--out", out,
                "--set", "max_context=1024",
            ]  # fmt: skip
            subprocess.run(command, check=True, capture_output=True)
            (path,) = (p for p in Path(out).glob("*.json"))
            memory = json.loads(path.read_text())["provenance"]["memory"]
        planned = memory["weights_bytes"] + memory["kv_bytes"]
        plain = PARAMETERS * DTYPES[dtype].itemsize + memory["kv_bytes"]
        own = memory["peak_rss_bytes"] - memory["rss_before_target_bytes"]
        print(
            f"{dtype}: weights {memory['weights_bytes'] / 2**20:.0f} + KV {memory['kv_bytes'] / 2**20:.0f} MiB; "
            f"peak above the interpreter and its libraries {own / 2**20:.0f} MiB: overhead {own / planned - 1:+.1%} "
            f"against unpacked weights {own / plain - 1:+.1%} "
            f"(peak RSS in all {memory['peak_rss_bytes'] / 2**20:.0f} MiB)"
        )
