"""A group of a sweep as a job for another process: what it is given, what it hands back, and how it is measured there.

A worker measures in a scratch folder and hands its records back as bytes; only the sweep's own process writes into the
sweep's folder. What a worker had finished when it was lost is lost with it, so every cell is there once.
"""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from specbench.records import schema, store
from specbench.records.schema import Record
from specbench.sweep_plan import Group, SweepCell

BEAT_S = 5.0  # between two signs of life

Beat = Callable[[str], None]
"""Called every few seconds in a worker, with what it is doing."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """A record as it is sent: its document, and its rounds' file where it has one."""

    document: dict[str, Any]
    rounds: bytes | None = None

    @classmethod
    def of(cls, folder: Path, record: Record) -> Parcel:
        """The record with its rounds from a folder. Errors: RecordError, OSError for rounds that are not there."""
        rounds = None if record.rounds is None else store.rounds_path(folder, record.run_id).read_bytes()
        return cls(json.loads(json.dumps(record.model_dump(mode="json"))), rounds)

    def record(self) -> Record:
        """Checked against its own address. Errors: RecordError for one that was damaged on its way."""
        return schema.parse(self.document, where="a record that a worker sent")


@dataclass(frozen=True, slots=True)
class Job:
    """The cells of a group that are to be measured. ``done`` is the group's control where it has one already."""

    key: str  # of the group
    sweep: str
    executor: str
    group: Group
    todo: tuple[SweepCell, ...]
    done: tuple[Parcel, ...]
    command: tuple[str, ...]
    threads: int | None


@dataclass(frozen=True, slots=True)
class Handed:
    """A measured cell as a worker hands it back."""

    key: str
    parcel: Parcel
    error: str | None
    user_fault: bool


@dataclass(frozen=True, slots=True)
class JobResult:
    """What a job came to. ``remarks`` are for the user, ``troubles`` what kept cells from being measured."""

    cells: tuple[Handed, ...]
    remarks: tuple[str, ...] = ()
    troubles: tuple[str, ...] = ()
    measure_s: float = 0.0
    judge_s: float = 0.0
    loads: int = 0
    load_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Ended:
    """A job that is over: with its result, or lost, and then why."""

    key: str
    result: JobResult | None
    lost: str | None = None


class Pool(Protocol):
    """Where jobs run: one of `specbench.executors` sets ``PLUGIN`` to a class made with a `PoolOptions`."""

    name: str

    @property
    def slots(self) -> int:
        """Jobs that may be under way at a time."""
        ...

    def submit(self, job: Job) -> None:
        """Begin a job, or queue it there."""
        ...

    def poll(self, wait_s: float) -> list[Ended]:
        """Jobs that have ended; returns after ``wait_s`` at the latest."""
        ...

    def beats(self) -> dict[str, tuple[int, str]]:
        """Of every job under way that has begun: how often it gave a sign of life, and what it was doing."""
        ...

    def cancel(self, key: str) -> None:
        """Let go of a job, whatever it is doing."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """What a job is given, and how many run at a time (None: as the pool has room). ``more`` is the pool's own."""

    folder: Path  # the sweep's; a pool may keep its logs under it
    workers: int | None = None
    gpus: int = 0
    cpus: int = 1
    more: dict[str, Any] = field(default_factory=dict)


# ---------------------------------------------------------------------------------------------------- in a worker


class _Listener:
    """The screen of a worker: what it does goes into its signs of life, remarks go home with the result."""

    def __init__(self) -> None:
        self.doing = "starting"
        self.remarks: list[str] = []

    def step(self, text: str) -> AbstractContextManager[object]:
        self.doing = text
        return nullcontext()

    def started(self, cell: SweepCell) -> None:
        self.doing = cell.settings["method"]

    def progress(self, cell: SweepCell, drive: Any) -> None:
        self.doing = f"{cell.settings['method']}: turn {drive.done} of {drive.total}"

    def finished(self, outcome: Any) -> None:
        self.doing = f"{outcome.cell.settings['method']} is finished"

    def say(self, text: str) -> None:
        self.remarks.append(text)


@contextmanager
def _beating(listener: _Listener, beat: Beat) -> Any:
    """Signs of life from a thread of their own, so that a long step is not taken for a death."""
    over = threading.Event()

    def run() -> None:
        while True:
            with suppress(Exception):  # one sign that cannot be given must not end those that follow
                beat(listener.doing)
            if over.wait(BEAT_S):
                return

    thread = threading.Thread(target=run, daemon=True, name="specbench-beat")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=BEAT_S)


def measure(job: Job, beat: Beat) -> JobResult:
    """Measure the job's cells in this process, in a scratch folder. Whatever a cell raises is in its record."""
    from specbench.errors import RecordError
    from specbench.sweep_folder import ResultsFolder
    from specbench.sweep_group import FolderError, Process, run_group

    listener = _Listener()
    with tempfile.TemporaryDirectory(prefix="specbench-job-") as scratch, _beating(listener, beat):
        folder = Path(scratch)
        for parcel in job.done:
            store.write(folder, parcel.record(), rounds_data=parcel.rounds)
        process = Process(
            sweep=job.sweep,
            results=ResultsFolder.open(folder, mend=False),
            screen=listener,
            stop=lambda: False,
            command=job.command,
            threads=job.threads,
            executor=job.executor,
        )
        troubles: list[str] = []
        try:
            run_group(process, job.group, job.todo)
        except (FolderError, RecordError) as error:
            troubles.append(str(error))
        handed = tuple(Handed(o.cell.key, Parcel.of(folder, o.record), o.error, o.user_fault) for o in process.outcomes)
    shelf = process.shelf
    return JobResult(
        handed,
        tuple(listener.remarks),
        tuple(troubles),
        process.measure_s,
        process.judge_s,
        shelf.loads,
        shelf.load_s,
    )


def parcels(folder: Path, records: Sequence[Record]) -> tuple[Parcel, ...]:
    """Records with their rounds, ready to be sent. Errors: RecordError for rounds that are not there."""
    from specbench.errors import RecordError

    try:
        return tuple(Parcel.of(folder, record) for record in records)
    except OSError as error:
        raise RecordError(f"cannot read {error.filename}: {error.strerror}; measure its cell again") from error
