"""Independent jobs on all cores, where the system can copy a process; one after another elsewhere."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

_jobs: Sequence[Callable[[], int]] = ()  # what the copies find: jobs hold records, which are too much to send


def run_all(jobs: Sequence[Callable[[], int]], *, parallel: bool) -> int:
    """Sum of what the jobs return. Errors: those of the first job that fails."""
    global _jobs
    workers = min(len(os.sched_getaffinity(0)), len(jobs)) if sys.platform == "linux" else 1
    if not parallel or workers < 2:
        return sum(job() for job in jobs)
    _jobs = jobs
    try:
        with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("fork")) as pool:
            return sum(pool.map(_run, range(len(jobs))))
    finally:
        _jobs = ()


def _run(number: int) -> int:
    return _jobs[number]()


@contextmanager
def without_collection() -> Iterator[None]:
    """No search for reference cycles inside: walking all records again and again takes a fifth of a large build."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
