"""The demo sweep whole, and killed three times with two processes at once: equal rows, and what the harness costs."""

from __future__ import annotations

import calendar
import random
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from support_sweep import Started, assert_same, await_that, cells, count_records, first_refused, start

SWEEP = Path(__file__).parent.parent.parent / "sweeps" / "demo.toml"
PATIENCE_S = 1800.0


def main() -> None:
    """Both ways through sweeps/demo.toml, about half an hour on two cores."""
    work = Path(tempfile.mkdtemp(prefix="specbench-sweep-"))
    try:
        print(f"folders in {work}", flush=True)
        _whole(work)
        _broken(work)
        assert_same(work / "broken", work / "whole")
        print(f"the interrupted sweep equals the whole one in all {len(cells(work / 'whole'))} cells")
    except BaseException:
        print(f"the folders are kept: {work}")
        raise
    shutil.rmtree(work)


def _whole(work: Path) -> None:
    """One run without interruption: when its plan is said, when its first cell begins, its overhead."""
    log, out = work / "whole.log", work / "whole"
    start_s = time.time()
    running = start(["sweep", str(SWEEP), "--out", str(out)], log, fresh=True)
    await_that(lambda: " cells in " in log.read_text())
    planned_s = time.time() - start_s
    await_that(lambda: "[1/" in log.read_text(), patience_s=PATIENCE_S)
    first_s = time.time() - start_s
    assert running.wait() == 0, log.read_text()
    places = [record.provenance["sweep"] for record in cells(out).values()]
    begun = min(calendar.timegm(time.strptime(r.created, "%Y-%m-%dT%H:%M:%SZ")) for r in cells(out).values())
    print(f"plan after {planned_s:.1f} s, first cell begun within {begun + 1 - start_s:.0f} s", end="")
    print(f", first record after {first_s:.1f} s")
    for name in ("setup_s", "measure_s", "judge_s"):
        values = [place[name] for place in places]
        print(f"{name}: {sum(values):.1f} s in {len(values)} cells, median {statistics.median(values):.2f} s")
    print(log.read_text().strip().splitlines()[-1])
    print(next(line for line in log.read_text().splitlines() if "lost to set-up" in line))
    again = time.time()
    assert start(["sweep", str(SWEEP), "--out", str(out)], work / "again.log", fresh=True).wait() == 0
    print(f"a finished sweep started again ends after {time.time() - again:.1f} s")


def _broken(work: Path) -> None:
    """Two at once, three kills at random moments, then to the end."""
    out, chance = work / "broken", random.Random()
    arguments = ["sweep", str(SWEEP), "--out", str(out)]
    pair = [start(arguments, work / f"{name}.log", fresh=True) for name in ("one", "two")]
    refused, running = first_refused(pair)
    print(f"two at once: {refused.log.read_text().strip()}")
    for number in range(3):
        if number:
            running = start(arguments, work / f"killed-{number}.log", fresh=True)
        _kill(running, out, chance)
    last = start(arguments, work / "last.log", fresh=True)
    assert last.wait() == 0, last.log.read_text()


def _kill(running: Started, out: Path, chance: random.Random) -> None:
    wanted = count_records(out) + chance.randint(1, 12)
    await_that(lambda: count_records(out) >= wanted, patience_s=PATIENCE_S)
    time.sleep(chance.random() * 5)
    running.kill()
    print(f"killed with {count_records(out)} records", flush=True)
