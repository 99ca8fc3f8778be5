"""What must be right before anything is timed: kernels against their definitions, and the engine's recipes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from tests.gpu import kernel_checks, real_shapes, recipes
from tests.gpu.context import Context
from tests.gpu.findings import Findings

Checks = Iterator[tuple[str, Callable[[], None]]]


def run(context: Context, found: Findings) -> None:
    """Every check, each on its own: a failure does not hide the others. Errors: AssertionError naming the first."""
    table = found.table("Checks on the device", "check", "outcome", "seconds")
    failures: list[str] = []
    passed = 0
    for share, checks in _all(context):
        part = context.budget.share(share)
        for done, (name, check) in enumerate(checks):
            if done and part.left() <= 0:
                found.cut.append(f"checks from '{name}' on")
                break
            started, outcome = time.monotonic(), "pass"
            try:
                check()
            except Exception as error:  # a kernel that cannot be launched fails its own check only
                outcome = f"fail: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
                failures.append(f"{name}: {outcome.removeprefix('fail: ')}")
            passed += outcome == "pass"
            table.add(name, outcome, time.monotonic() - started)
        context.flush()
    found.facts = {"passed": passed, "failed": len(failures)}
    if failures:
        raise AssertionError(f"{len(failures)} of {passed + len(failures)} checks failed, first: {failures[0]}")


def _all(context: Context) -> Iterator[tuple[float, Checks]]:
    """The groups of checks, each with its share of what is left when it begins."""
    yield 0.35, real_shapes.checks(context.scale)
    yield 0.5, kernel_checks.checks(context.device)
    yield 1.0, recipes.checks(context.scale)
