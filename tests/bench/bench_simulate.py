"""Simulation against measurement: one profile and runs of one user predict what more users get, on the demo model.

Prints throughput and tok/s/user for each method and number of users, predicted and measured, with the error; exit code
1 when one of them is beyond 10 %. Everything is measured here and now, so the machine must be idle.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from rich.console import Console

from specbench.config import build_run
from specbench.profile import ProfileSettings, profile
from specbench.records import store
from specbench.records.schema import Record
from specbench.report import against
from specbench.runner import run_cells
from specbench.simulate import SimulationSpec, choose, simulate, source_of
from tests.bench.support_demo import use_threads

METHOD, LENGTH = "ngram", 3
USERS = (1, 2, 4, 8)
PROMPTS = 8  # of each starter task: three requests for each of the most users
NEW_TOKENS = 64
WITHIN = 0.10


def main() -> None:
    """Measure, predict, compare."""
    threads = use_threads()
    with tempfile.TemporaryDirectory(prefix="specbench-bench-") as scratch:
        worst = _compare(Path(scratch), threads)
    print(f"  largest error {worst:.1%}, allowed {WITHIN:.0%}: {'agrees' if worst <= WITHIN else 'DISAGREES'}")
    if worst > WITHIN:
        sys.exit(1)


def _compare(folder: Path, threads: int) -> float:
    flags = {
        "methods": f"{METHOD}:{LENGTH}", "num_prompts": PROMPTS, "max_new_tokens": NEW_TOKENS, "ignore_eos": True,
        "threads": threads,
    }  # fmt: skip
    settings = ProfileSettings(draft_length=LENGTH, max_rows=max(USERS), context=128, repeats=7)
    table = profile(build_run(flags=flags), settings, out=folder / "table.json").table
    measured = {users: _measured(folder / str(users), {**flags, "concurrency": users}) for users in USERS}
    spec = SimulationSpec(table=table, concurrency=USERS, requests=1)
    chosen, _ = choose(list(measured[1].values()))
    where = folder / "1"
    sources = [source_of(record, store.read_trace(where, record), spec) for record in chosen]
    for source in sources:
        overhead = source.costs.overhead
        print(f"  {source.record.method}: {1e3 * overhead.fixed_s:.2f} ms a step beside forward and drafting")
        for note in source.notes:
            print(f"    {note}")
    spec = SimulationSpec(table=table, concurrency=USERS, requests=sources[0].replay.requests)
    real = [record for records in measured.values() for record in records.values()]
    pairs = against.compare([one.record for one in simulate(sources, spec)], real)
    Console(width=140).print(against.against_table(pairs))
    assert all(pair.figures for pair in pairs), "every setting was measured"
    return against.worst(pairs) or 0.0


def _measured(folder: Path, flags: dict[str, object]) -> dict[str, Record]:
    summary = run_cells(build_run(flags={**flags, "out": folder}))
    return {result.record.method: result.record for result in summary.results if result.error is None}
