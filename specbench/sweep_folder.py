"""A sweep's results folder: who works in it, which of its cells are finished, and what a killed process left behind.

The records are the only memory. Each names its cell in ``provenance.sweep``, and is whole or absent, so a sweep that is
killed anywhere goes on from what is there.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from specbench.errors import NewerSchemaError, RecordError
from specbench.records import store
from specbench.records.schema import Record

LOCK = ".specbench-sweep.lock"
HOLDER = ".specbench-sweep.holder"
DAMAGED = ".damaged"

_TEMPORARY = re.compile(r"^\..+\.(\d+)\.[0-9a-f]{8}\.tmp$")  # as `store.write_atomic` names what it is writing
_HOLDER_WAIT_S = 2.0


# -------------------------------------------------------------------------------------------------------- lock


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; the operating system frees it when the process dies, however it dies.

    Errors: RecordError naming the process that holds it, or when the folder cannot be written.
    """
    store.check_writable(folder)
    lock = FileLock(str(folder / LOCK))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise RecordError(
            f"{folder} is in use by {_holder(folder)}; wait until it has ended, or give another folder with --out"
        ) from None
    except (OSError, NotImplementedError) as error:
        raise RecordError(f"cannot lock {folder}: {error}; give a folder on a local disk with --out") from error
    try:
        store.write_atomic(folder / HOLDER, json.dumps(_who()).encode())
        yield
    finally:
        with suppress(OSError):
            (folder / HOLDER).unlink()
        lock.release()


def _who() -> dict[str, Any]:
    command = " ".join(["specbench", *sys.argv[1:]])
    return {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time(), "command": command[:200]}


def _holder(folder: Path) -> str:
    """The process that holds the lock, in words. It says who it is a moment after it has got it."""
    until = time.monotonic() + _HOLDER_WAIT_S
    while time.monotonic() < until:
        with suppress(OSError, ValueError, KeyError, TypeError):
            who = json.loads((folder / HOLDER).read_text(encoding="utf-8"))
            here = who["host"] == socket.gethostname()
            if not here or _alive(int(who["pid"])):  # else a killed one's, and the new one has not written yet
                at = "" if here else f" on {who['host']}"
                since = time.strftime("%Y-%m-%d %H:%M", time.localtime(float(who["since"])))
                return f"process {who['pid']}{at} ({who['command']}, since {since})"
        time.sleep(0.05)
    return "another process"


def _alive(pid: int) -> bool:
    import psutil

    return bool(psutil.pid_exists(pid))


# ------------------------------------------------------------------------------------------------------- state


def place(record: Record) -> dict[str, Any] | None:
    """What a record says of its sweep; None for a record of another command."""
    found = record.provenance.get("sweep")
    return found if isinstance(found, dict) and isinstance(found.get("cell"), str) else None


@dataclass(slots=True)
class ResultsFolder:
    """The records of a folder by cell. ``remarks`` say in one line each what was wrong with files in it."""

    path: Path
    finished: dict[str, Record] = field(default_factory=dict)
    failed: dict[str, Record] = field(default_factory=dict)
    others: list[Record] = field(default_factory=list)  # of other commands, or interrupted
    remarks: list[str] = field(default_factory=list)

    @classmethod
    def open(cls, path: Path, *, mend: bool) -> ResultsFolder:
        """Read every record; a folder that is not there has none.

        ``mend`` (under the lock) removes what killed processes were writing and renames what is half-written, so that
        its cell is measured again. Errors: NewerSchemaError; RecordError when the folder cannot be read.
        """
        found = cls(path)
        if not path.is_dir():
            return found
        if mend:
            _remove_temporary(path)
        for file in store.record_files(path):
            if file.parent == path:
                found._read(file, mend=mend)
        return found

    def _read(self, file: Path, *, mend: bool) -> None:
        try:
            record = store.read(file)
        except NewerSchemaError:
            raise
        except RecordError as error:
            if _whole(file):  # not ours to judge: an edited record, or a file of another kind
                self.remarks.append(f"left out: {error}")
            else:
                self._set_aside(file, "is half-written", mend=mend)
            return
        if record.rounds is not None and _wrong_size(self.path, record):
            self._set_aside(file, "has rounds that are cut short", mend=mend)
            return
        self._place(record, mend=mend)

    def _set_aside(self, file: Path, why: str, *, mend: bool) -> None:
        aside = file.with_name(file.name + DAMAGED)
        if mend:
            with suppress(OSError):
                file.replace(aside)
        kept = f"; kept as {aside.name}" if mend else ""
        self.remarks.append(f"{file} {why}: its cell is measured again{kept}")

    def _place(self, record: Record, *, mend: bool) -> None:
        """Keep one record a cell. A retry killed before it removed what it replaces leaves two."""
        where = place(record)
        if where is None or record.status == "interrupted":
            self.others.append(record)
            return
        cell = where["cell"]
        other = self.finished.pop(cell, None) or self.failed.pop(cell, None)
        if other is not None:
            record, beaten = sorted((record, other), key=_worth, reverse=True)
            if mend:
                self._remove(beaten)
        (self.finished if record.status == "ok" else self.failed)[cell] = record

    def add(self, record: Record) -> None:
        """A record that was just written; it replaces an earlier one of the same cell, whose files go last."""
        where = place(record)
        assert where is not None, "a record of a sweep names its cell"
        cell = where["cell"]
        earlier = self.finished.pop(cell, None) or self.failed.pop(cell, None)
        (self.finished if record.status == "ok" else self.failed)[cell] = record
        if earlier is not None:
            self._remove(earlier)

    def records(self) -> list[Record]:
        """Every record by time of creation, one a cell."""
        held = [*self.finished.values(), *self.failed.values(), *self.others]
        return sorted(held, key=lambda record: (record.created, record.run_id))

    def _remove(self, record: Record) -> None:
        for path in (store.record_path(self.path, record.run_id), store.rounds_path(self.path, record.run_id)):
            with suppress(OSError):
                path.unlink()


def _worth(record: Record) -> tuple[bool, bool, str]:
    return record.status == "ok", record.baseline is not None, record.created


def _whole(file: Path) -> bool:
    try:
        json.loads(file.read_bytes().decode("utf-8", errors="surrogatepass"))
    except (OSError, ValueError):
        return False
    return True


def _wrong_size(folder: Path, record: Record) -> bool:
    """Whether the rounds are there and cut; rounds that were left out on purpose are no damage."""
    assert record.rounds is not None
    try:
        return store.rounds_path(folder, record.run_id).stat().st_size != record.rounds.bytes
    except OSError:
        return False


def _remove_temporary(folder: Path) -> None:
    """Files that a process was writing when it was killed; those of a living process are its own."""
    for path in folder.glob(".*.tmp"):
        found = _TEMPORARY.match(path.name)
        if found is not None and not _alive(int(found[1])):
            with suppress(OSError):
                path.unlink()
