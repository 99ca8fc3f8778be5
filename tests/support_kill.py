"""Running a command of the command line in another process and killing it there with signal 9."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from typer.testing import CliRunner

from specbench.cli.main import app


def run_here(arguments: Sequence[str]) -> None:
    """Run to the end in this process."""
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, done.output


def killed_when(awaited: Callable[[], bool], arguments: Sequence[str]) -> None:
    """Start, wait until ``awaited`` holds, and kill with signal 9. Errors: AssertionError when it ended before."""
    child = _start(arguments)
    while not awaited():
        ended, _ = os.waitpid(child, os.WNOHANG)
        assert not ended, "the run ended before it was killed"
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the run ended before it was killed"


def exists(path: Path) -> Callable[[], bool]:
    """Holds once the path is there."""
    return path.exists


def _start(arguments: Sequence[str]) -> int:
    if sys.platform != "linux":  # elsewhere a fork of a process with torch in it may not run
        return subprocess.Popen([sys.executable, "-m", "specbench.cli.main", *arguments]).pid
    child = os.fork()  # everything is imported already: what takes seconds otherwise
    if child == 0:
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            CliRunner().invoke(app, list(arguments))
        finally:
            os._exit(0)
    return child
