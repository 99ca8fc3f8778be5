"""The process in which the sections run one after the other; one that raises leaves its error and the next begins."""

from __future__ import annotations

import argparse
import importlib
import sys
import time
import traceback
from pathlib import Path

import torch

from tests.gpu import findings
from tests.gpu.context import Context
from tests.gpu.driver import CONFIGURATION_ERROR
from tests.gpu.findings import Findings
from tests.gpu.scales import DRY, FULL
from tests.gpu.sections import budgets

DEVICE_LOST = 3
_LEAST_S = 3.0  # a section is not begun with less


def main(words: list[str]) -> int:
    """The exit code: 0, or `DEVICE_LOST` where a fresh process must go on, or 2 where there is no GPU."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--only", required=True)
    parser.add_argument("--left", type=float, required=True)
    parser.add_argument("--dry", action="store_true")
    given = parser.parse_args(words)
    if not given.dry and not torch.cuda.is_available():
        print("error: torch sees no CUDA device; run it where there is one, or make gpu-check DRY=1", file=sys.stderr)
        return CONFIGURATION_ERROR
    end = time.monotonic() + given.left
    context = Context(DRY if given.dry else FULL, state=given.state)
    names = given.only.split(",")
    for index, name in enumerate(names):
        left_s = end - time.monotonic()
        seconds = budgets(names[index:], dry=given.dry, left_s=left_s)[name]
        if not _section(name, context, left_s=left_s, seconds=seconds):
            return DEVICE_LOST
    return 0


def _section(name: str, context: Context, *, left_s: float, seconds: float) -> bool:
    """Run one within ``seconds``; False when the device no longer answers."""
    found = Findings()
    if left_s < _LEAST_S and not context.scale.dry:
        error = "not run: no time is left in the whole run"
        findings.write(context.state, name, status="failed", seconds=0.0, budget_s=0.0, found=found, error=error)
        return True
    (context.state / "current").write_text(f"{name} {seconds:.1f}", encoding="utf-8")
    print(f"{name}: at most {seconds:.0f} s", flush=True)
    started, error = time.monotonic(), None
    context.begin(name, found, seconds=seconds)
    try:
        importlib.import_module(f"tests.gpu.section_{name}").run(context, found)
    except Exception as fault:  # whatever a section raises is its result; the others still run
        traceback.print_exc()
        error = f"{type(fault).__name__}: {' '.join(str(fault).split())}"[:2000]
    alive = context.release()
    status = "ok" if error is None else "failed"
    spent = time.monotonic() - started
    findings.write(context.state, name, status=status, seconds=spent, budget_s=seconds, found=found, error=error)
    (context.state / "current").unlink(missing_ok=True)
    print(f"{name}: {status} after {spent:.1f} s", flush=True)
    return alive
