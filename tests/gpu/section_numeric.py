"""What must be right before anything is timed: kernels against their definitions, and the engine's recipes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from tests.gpu import recipes
from tests.gpu.context import Context
from tests.gpu.findings import Findings


def run(context: Context, found: Findings) -> None:
    """Every check, each on its own: a failure does not hide the others. Errors: AssertionError naming the first."""
    table = found.table("Checks on the device", "check", "outcome", "seconds")
    failures: list[str] = []
    passed = 0
    for name, check in _all(context):
        if context.budget.left() <= 0:
            found.cut.append(f"everything from '{name}' on")
            break
        started, outcome = time.monotonic(), "pass"
        try:
            check()
        except Exception as error:  # a kernel that cannot be launched fails its own check only
            outcome = f"fail: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
            failures.append(f"{name}: {outcome.removeprefix('fail: ')}")
        passed += outcome == "pass"
        table.add(name, outcome, time.monotonic() - started)
    found.facts = {"passed": passed, "failed": len(failures)}
    if failures:
        raise AssertionError(f"{len(failures)} of {passed + len(failures)} checks failed, first: {failures[0]}")


def _all(context: Context) -> Iterator[tuple[str, Callable[[], None]]]:
    yield from recipes.checks(context.scale)
