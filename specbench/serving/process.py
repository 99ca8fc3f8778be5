"""A server as a process of ours: started in a group of its own, waited for, watched, and always ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from specbench.errors import CapacityError, TargetError
from specbench.serving.launching import HOST, Launch

_POLL_S = 0.2
_GRACE_S = 20.0  # for an orderly end
_HARDER_S = 5.0  # more for each harder word
_TAIL_LINES = 12


def free_port() -> int:
    """A port of this machine that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for what an engine leaves, gone afterwards. Its path is short: sockets lie in it."""
    with tempfile.TemporaryDirectory(prefix="sb-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@dataclass(slots=True)
class ServerProcess:
    """A running server. ``log`` holds everything that it printed."""

    process: subprocess.Popen[bytes]
    name: str
    log: Path

    def tail(self) -> str:
        """The last lines of the log that say something, as one line."""
        with suppress(OSError):
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
            kept = [" ".join(line.split()) for line in lines if line.strip()]
            errors = [line for line in kept if "Error" in line or "error:" in line.lower()]
            return " | ".join([*errors[-2:], *kept[-3:]] if errors else kept[-_TAIL_LINES:])[-900:]
        return "no log"

    @property
    def ended(self) -> int | None:
        """Its exit status, None while it runs."""
        return self.process.poll()

    def wait_ready(self, ready: Callable[[], bool], *, limit_s: float, stop: Callable[[], bool]) -> None:
        """Until the server answers. Errors: TargetError when it ends, is not ready in time, or ``stop`` says so."""
        start_s = time.monotonic()
        while not ready():
            if self.ended is not None:
                raise TargetError(
                    f"{self.name} ended while it started (exit status {self.ended}); its log {self.log} ends:"
                    f" {self.tail()}"
                )
            if stop():
                raise TargetError(f"interrupted while {self.name} started")  # which the caller knows by ``stop`` too
            if time.monotonic() - start_s > limit_s:
                raise TargetError(
                    f"{self.name} did not answer within {limit_s:g} s (server.start_timeout); its log {self.log} ends:"
                    f" {self.tail()}"
                )
            time.sleep(_POLL_S)

    def end(self) -> None:
        """End the whole group: an interrupt to the server itself, then harder words to all that it started."""
        if self.ended is None:
            with suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGINT)
            self._wait(_GRACE_S)
        for word in (signal.SIGTERM, signal.SIGKILL):
            if not self._group_lives():
                break
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, word)
            self._wait(_HARDER_S)
        self.process.wait()

    def _wait(self, limit_s: float) -> None:
        """For the server and whatever it started, at most this long."""
        start_s = time.monotonic()
        while time.monotonic() - start_s < limit_s and (self.ended is None or self._group_lives()):
            time.sleep(0.05)

    def _group_lives(self) -> bool:
        self.process.poll()  # so that an ended server is no longer a member
        try:
            os.killpg(self.process.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return True


@contextmanager
def started(launch: Launch, *, name: str, log: Path) -> Iterator[ServerProcess]:
    """A server's process; it and all that it started are ended on every way out.

    It gets a session of its own: Ctrl-C reaches this process alone, which ends the server in its turn. Errors:
    TargetError when the command cannot be run; CapacityError when the log cannot be written.
    """
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        stream = log.open("wb")
    except OSError as error:
        raise CapacityError(f"cannot write the server's log {log}: {error.strerror}; choose another --out") from error
    with stream:
        try:
            process = subprocess.Popen(
                launch.argv,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env={**os.environ, **launch.environment},
                start_new_session=True,
            )
        except OSError as error:
            raise TargetError(f"{launch.argv[0]} cannot be run: {error.strerror}; correct --engine-python") from error
        server = ServerProcess(process, name, log)
        try:
            yield server
        finally:
            server.end()
