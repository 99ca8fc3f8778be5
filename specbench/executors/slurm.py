"""Jobs through submitit: each a Slurm job of its own, or (``cluster=local``) a process on this machine.

The sweep's folder must be on a file system that all nodes share: submitit keeps tasks, results and logs under it.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import FailedJobError, UncompletedJobError

from specbench.errors import ConfigError
from specbench.executors.jobs import Ended, Job, JobResult, PoolOptions, measure
from specbench.records.store import write_atomic

FOLDER = "slurm"  # below the sweep's folder
DEFAULT_WORKERS = 16
_NAP_S = 0.2


def _task(job: Job, sign: str) -> JobResult:
    """Runs on a node; ``sign`` is the file of its signs of life."""
    path, count = Path(sign), 0

    def beat(text: str) -> None:
        nonlocal count
        count += 1
        with suppress(Exception):  # a full disk must not end the measurement
            write_atomic(path, json.dumps([count, f"{text} (process {os.getpid()})"]).encode())

    return measure(job, beat)


class SlurmPool:
    """See `Pool`. ``more``: ``cluster`` (slurm or local), and any parameter of submitit (``slurm_partition``, ...)."""

    name = "slurm"

    def __init__(self, options: PoolOptions) -> None:
        self._options = options
        self._folder = options.folder / FOLDER
        self._running: dict[str, tuple[Any, Path]] = {}
        self._tries: dict[str, int] = {}
        more = {"timeout_min": 24 * 60, **options.more}
        cluster = more.pop("cluster", "slurm")
        try:
            self._executor = submitit.AutoExecutor(folder=self._folder / "%j", cluster=cluster)
            given = {"cpus_per_task": options.cpus, "gpus_per_node": options.gpus, "name": "specbench", **more}
            self._executor.update_parameters(**given)
        except (RuntimeError, ValueError, TypeError, NameError) as error:
            said = " ".join(str(error).split())[:200]
            raise ConfigError(f"submitit refuses ({said}); check the --executor-option") from error

    @property
    def slots(self) -> int:
        """Jobs that are queued at a time."""
        return DEFAULT_WORKERS if self._options.workers is None else self._options.workers

    def submit(self, job: Job) -> None:
        """See `Pool`."""
        self._tries[job.key] = self._tries.get(job.key, 0) + 1
        sign = self._folder / "signs" / f"{job.key}-{self._tries[job.key]}.json"
        self._running[job.key] = (self._executor.submit(_task, job, str(sign)), sign)

    def poll(self, wait_s: float) -> list[Ended]:
        """See `Pool`."""
        until = time.monotonic() + wait_s
        while True:
            over = [key for key, (job, _) in self._running.items() if job.done()]
            if over or time.monotonic() >= until:
                return [self._ended(key) for key in over]
            time.sleep(_NAP_S)

    def _ended(self, key: str) -> Ended:
        job, _ = self._running.pop(key)
        try:
            return Ended(key, job.result())
        except (FailedJobError, UncompletedJobError) as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            said = " ".join((lines[-1] if lines else type(error).__name__).split())[:160]
            return Ended(key, None, f"job {job.job_id} ({job.state}): {said}; its log is {job.paths.stderr.name}")
        except Exception as error:  # a result that was cut short, or whatever a task raises outside its cells
            said = " ".join(str(error).split())[:160]
            return Ended(key, None, f"job {job.job_id}: {type(error).__name__}: {said}")

    def beats(self) -> dict[str, tuple[int, str]]:
        """See `Pool`."""
        found: dict[str, tuple[int, str]] = {}
        for key, (_, sign) in self._running.items():
            with suppress(OSError, ValueError):
                count, text = json.loads(sign.read_text(encoding="utf-8"))
                found[key] = (int(count), str(text))
        return found

    def cancel(self, key: str) -> None:
        """See `Pool`."""
        job, _ = self._running.pop(key)
        job.cancel(check=False)

    def close(self) -> None:
        """See `Pool`."""
        for key in list(self._running):
            self.cancel(key)


PLUGIN = SlurmPool
