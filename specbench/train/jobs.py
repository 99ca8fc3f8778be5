"""Stages as processes: several at once, each with a log, so that a plan uses all cores and survives any stop."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from specbench.errors import TrainDataError
from specbench.train.progress import Screen

_COMMAND = ("-c", "from specbench.cli.main import run; run()")
_LOOK_S = 0.2
_GRACE_S = 60.0  # a stage saves its state when it is asked to end


@dataclass(frozen=True, slots=True)
class Job:
    """One command of this program. ``done`` says whether its folder already holds the outcome."""

    name: str
    arguments: tuple[str, ...]
    done: Callable[[], bool]


@dataclass(slots=True)
class _Running:
    job: Job
    process: subprocess.Popen[bytes]
    log: IO[bytes]


def run_jobs(
    jobs: Sequence[Job], *, at_once: int, logs: Path, screen: Screen, command: Sequence[str] = _COMMAND
) -> None:
    """Run what is not done yet, ``at_once`` at a time and in order; each process computes on one thread.

    ``command`` is what the interpreter is given before a job's arguments: this program.

    Errors: TrainDataError naming the job that failed, its last line and its log; the others are ended first and go on
    from where they are next time. KeyboardInterrupt likewise.
    """
    logs.mkdir(parents=True, exist_ok=True)
    waiting = [job for job in jobs if not job.done()]
    if len(waiting) < len(jobs):
        screen.say(f"{len(jobs) - len(waiting)} of {len(jobs)} were done before")
    running: list[_Running] = []
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                running.append(_start(waiting.pop(0), logs, command))
                screen.say(f"begins: {running[-1].job.name}")
            time.sleep(_LOOK_S)
            for one in [r for r in running if r.process.poll() is not None]:
                running.remove(one)
                one.log.close()
                if one.process.returncode != 0 or not one.job.done():
                    raise TrainDataError(_trouble(one, logs))
                screen.say(f"done: {one.job.name}")
    finally:
        _end(running)


def _start(job: Job, logs: Path, command: Sequence[str]) -> _Running:
    log = (logs / f"{job.name}.log").open("ab")
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    environment["PYTHONUNBUFFERED"] = "1"  # the log's last line is the last that was said
    process = subprocess.Popen(
        [sys.executable, *command, *job.arguments],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,  # Ctrl-C reaches this process alone, which then ends the others in order
    )
    return _Running(job, process, log)


def _end(running: Sequence[_Running]) -> None:
    for one in running:
        one.process.terminate()
    deadline = time.monotonic() + _GRACE_S
    for one in running:
        try:
            one.process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            one.process.kill()
            one.process.wait()
        one.log.close()


def _trouble(one: _Running, logs: Path) -> str:
    path = logs / f"{one.job.name}.log"
    lines = [line for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    last = lines[-1].strip() if lines else "it wrote nothing"
    return f"{one.job.name} ended with code {one.process.returncode}: {last.removeprefix('error: ')} (log: {path})"
