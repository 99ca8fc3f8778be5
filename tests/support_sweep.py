"""Sweeps in processes of their own: started, killed, and their folders compared by what time cannot change."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.cli import main
from specbench.records import store
from specbench.records.schema import Record

TIMED_UNITS = {"s", "tokens/s", "s/token", "ratio"}
TIMED_METRICS = {"break_even_tau", "mean_batch_rows"}  # break-even is a ratio of times
PATIENCE_S = 300.0


@dataclass(frozen=True)
class Started:
    """A sweep in a process of its own; what it said is in ``log``."""

    pid: int
    log: Path

    def ended(self) -> int | None:
        """Its exit code, or None while it runs. Only one call gets the code."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None

    def wait(self) -> int:
        """Its exit code once it has ended."""
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)

    def kill(self) -> None:
        """Signal 9. Errors: AssertionError when it had ended before."""
        os.kill(self.pid, signal.SIGKILL)
        assert self.wait() == -signal.SIGKILL, f"it ended before it was killed: {self.log.read_text()[-600:]}"


def start(arguments: Sequence[str], log: Path, *, fresh: bool = False) -> Started:
    """``specbench`` with these arguments. Forked where that is safe: all that takes seconds is imported already.

    ``fresh``: as a user starts it, imports included.
    """
    if fresh or sys.platform != "linux":
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        to_log = [(os.POSIX_SPAWN_OPEN, 1, str(log), flags, 0o644), (os.POSIX_SPAWN_DUP2, 1, 2)]
        command = [sys.executable, "-m", "specbench.cli.main", *arguments]
        return Started(os.posix_spawn(sys.executable, command, os.environ, file_actions=to_log), log)
    child = os.fork()
    if child == 0:
        code: Any = 1
        try:
            handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
            sys.argv = ["specbench", *arguments]
            main.run()
        except SystemExit as end:
            code = end.code
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code if isinstance(code, int) else 0 if code is None else 1)
    return Started(child, log)


def await_that(holds: Callable[[], bool], *, patience_s: float = PATIENCE_S) -> None:
    """Return when it holds. Errors: AssertionError where it never does."""
    until = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < until, f"nothing happened for {patience_s:.0f} s"
        time.sleep(0.002)


def first_refused(pair: Sequence[Started]) -> tuple[Started, Started]:
    """Of two sweeps started at once on one folder: the one that was refused, with code 2, and the one that works."""
    codes: dict[int, int] = {}

    def one_ended() -> bool:
        codes.update({p.pid: code for p in pair if p.pid not in codes and (code := p.ended()) is not None})
        return bool(codes)

    await_that(one_ended)
    (refused,) = [p for p in pair if p.pid in codes]
    (working,) = [p for p in pair if p.pid not in codes]
    assert codes[refused.pid] == 2, refused.log.read_text()
    return refused, working


def count_records(folder: Path) -> int:
    """Records in the folder, whole or not."""
    return len(store.record_files(folder)) if folder.is_dir() else 0


def cells(folder: Path) -> dict[str, Record]:
    """The records of a folder by their cell in the sweep. Errors: AssertionError when a cell is there twice."""
    records = store.load_all(folder)
    keys = [record.provenance["sweep"]["cell"] for record in records]
    assert len(set(keys)) == len(keys), f"twice: {[key for key, n in Counter(keys).items() if n > 1]}"
    return dict(zip(keys, records))


def untimed(folder: Path, record: Record) -> dict[str, Any]:
    """What of a cell does not depend on how fast the machine was: settings, texts, rounds, counts, verdict, values."""
    trace = store.read_trace(folder, record)
    verdict = record.verdict
    return {
        "method": (record.method, record.draft_length, record.status),
        "spec": record.spec,
        "comparability": record.comparability_sha256,
        "counts": record.counts,
        "texts": {r.id: (r.prompt_hash, r.output_ids, r.stop_reason) for r in trace.requests},
        "rounds": {(r.request, r.round): (r.draft_ids, r.accepted, r.committed_ids) for r in trace.rounds},
        "verdict": verdict and verdict.model_dump(exclude={"control"}),
        "alarms": [alarm.name for alarm in record.alarms],
        "samples": [sample.text for sample in record.samples],
        "has speed-up": record.find("speed_up") is not None,
        "estimates": sorted(
            (row.metric, str(row.scope), row.value, row.low, row.high, row.n)
            for row in record.estimates
            if row.unit not in TIMED_UNITS and row.metric not in TIMED_METRICS
        ),
    }


def assert_same(folder: Path, whole: Path) -> None:
    """Both folders hold the same cells with the same values, and every arm is judged by its own group's control."""
    ours, theirs = cells(folder), cells(whole)
    assert set(ours) == set(theirs)
    by_id = {record.run_id: record for record in ours.values()}
    for key, record in ours.items():
        assert untimed(folder, record) == untimed(whole, theirs[key]), key
        if record.method != "vanilla":
            assert record.baseline is not None
            control = by_id[record.baseline].provenance["sweep"]
            assert control["cell"] == record.provenance["sweep"]["group"]
