"""The results folder: RUN_ID.json and RUN_ID.rounds.parquet, written whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Callable
from pathlib import Path

from specbench.errors import RecordError
from specbench.records import rounds, schema
from specbench.records.schema import Record, RoundsFile
from specbench.types import RunTrace

ROUNDS_SUFFIX = ".rounds.parquet"


def record_path(folder: Path, run_id: str) -> Path:
    """Where a record lies."""
    return folder / f"{run_id}.json"


def rounds_path(folder: Path, run_id: str) -> Path:
    """Where a record's rounds lie."""
    return folder / f"{run_id}{ROUNDS_SUFFIX}"


def check_writable(folder: Path) -> None:
    """Create the folder and prove that a file can be written into it, before anything is measured.

    Errors: RecordError.
    """
    write_atomic(folder / ".specbench-write-test", b"")
    with contextlib.suppress(OSError):
        (folder / ".specbench-write-test").unlink()


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file whole: a temporary one beside it, flushed to disk, then renamed. Folders are created.

    Errors: RecordError when the folder cannot be written or the disk is full; nothing is left behind.
    """
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink()
        reason = error.strerror or str(error)
        raise RecordError(f"cannot write {path}: {reason}; choose another folder or free some space") from error


def _sync_folder(folder: Path) -> None:
    """Make a rename durable where the system lets folders be synced."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def encode_rounds(trace: RunTrace, *, check: Callable[[RunTrace], None]) -> tuple[bytes, RoundsFile]:
    """A trace as file bytes, and what the record says of them. ``check`` is run first (metrics' identities)."""
    data = rounds.encode(trace, check=check)
    described = RoundsFile(
        sha256=hashlib.sha256(data).hexdigest(),
        bytes=len(data),
        rounds=len(trace.rounds),
        requests=len(trace.requests),
        steps=len(trace.steps),
    )
    return data, described


def write(folder: Path, record: Record, *, rounds_data: bytes | None = None) -> Path:
    """Write a record and its rounds; the record comes last, so that whatever has a record is complete.

    Errors: RecordError when the data is not the file that the record describes, or cannot be written.
    """
    described = record.rounds.sha256 if record.rounds is not None else None
    given = hashlib.sha256(rounds_data).hexdigest() if rounds_data is not None else None
    if described != given:
        raise RecordError(
            f"run {record.run_id}: the record describes rounds {described}, given were {given}; build it from these"
        )
    if rounds_data is not None:
        write_atomic(rounds_path(folder, record.run_id), rounds_data)
    path = record_path(folder, record.run_id)
    text = json.dumps(record.model_dump(mode="json"), indent=1, ensure_ascii=False, allow_nan=False)
    write_atomic(path, (text + "\n").encode("utf-8", errors="surrogatepass"))
    return path


def read(path: Path) -> Record:
    """One record. Errors: RecordError when the file is missing, half-written, edited, or from a newer version."""
    data = _read_bytes(path)
    try:
        document = json.loads(data.decode("utf-8", errors="surrogatepass"))
    except ValueError as error:
        raise RecordError(f"{path}: not complete JSON ({error}); it is half-written or no record, delete it") from error
    return schema.parse(document, where=str(path))


def read_trace(folder: Path, record: Record) -> RunTrace:
    """The trace of a record in the same folder. Errors: RecordError when it is missing, changed or damaged."""
    if record.rounds is None:
        raise RecordError(f"run {record.run_id} has no rounds ({record.status}); nothing can be computed from it")
    path = rounds_path(folder, record.run_id)
    if not path.is_file():
        raise RecordError(
            f"the rounds of run {record.run_id} are not in {folder}: they were left out or moved (SHA-256 "
            f"{record.rounds.sha256[:12]}, {record.rounds.bytes:,} bytes); put {path.name} there, or repeat the run"
        )
    data = _read_bytes(path)
    found = hashlib.sha256(data).hexdigest()
    if found != record.rounds.sha256:
        raise RecordError(
            f"{path}: hash {found[:12]} where the record says {record.rounds.sha256[:12]} "
            f"({len(data)} of {record.rounds.bytes} bytes); it was cut or changed, restore it or run again"
        )
    return rounds.decode(data, where=str(path))


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}; check the path and the run's name") from error


def find(folder: Path, name: str) -> Path:
    """The record of a run by its id or an unambiguous beginning of it. Errors: RecordError."""
    paths = [path for path in record_files(folder) if path.stem.startswith(name)]
    if len(paths) != 1:
        seen = ", ".join(path.stem for path in paths[:4]) or "none"
        raise RecordError(f"{folder}: '{name}' names {len(paths)} records ({seen}); give one run id in full")
    return paths[0]


def record_files(folder: Path) -> list[Path]:
    """Files that are named like records, in the folder and below, in a fixed order. Errors: RecordError."""
    if not folder.is_dir():
        raise RecordError(f"cannot read {folder}: no such folder; check the path")
    return sorted(path for path in folder.rglob("*.json") if _is_run_id(path.stem))


def _is_run_id(text: str) -> bool:
    return len(text) == 16 and all(character in "0123456789abcdef" for character in text)


def scan(folder: Path) -> tuple[list[Record], list[RecordError]]:
    """Every readable record in the folder and below by time of creation, and an error for each that is not."""
    found: list[Record] = []
    broken: list[RecordError] = []
    for path in record_files(folder):
        try:
            found.append(read(path))
        except RecordError as error:
            broken.append(error)
    return sorted(found, key=lambda record: (record.created, record.run_id)), broken


def load_all(folder: Path) -> list[Record]:
    """Every record in the folder and below. Errors: RecordError for the first that cannot be read."""
    found, broken = scan(folder)
    if broken:
        raise broken[0]
    return found
