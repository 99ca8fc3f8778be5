"""The manifest of a folder that is filled shard by shard: what is in it, with checksums, and what made it.

A shard is written under another name, made durable and renamed; then the manifest, which names it with its checksums,
is replaced in one rename. So a process that is killed at any point leaves a manifest that tells the truth, and at most
one shard that nobody knows of, which the next run overwrites.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specbench.errors import CapacityError, TrainDataError

MANIFEST = "manifest.json"
_LOCK = ".lock"
_MARGIN_BYTES = 256 * 2**20  # left free on a disk that is filled on purpose


def sha256_file(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprint(settings: Any) -> str:
    """Hash of a JSON document, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


def read_manifest(folder: Path, *, kind: str, version: int) -> dict[str, Any]:
    """The manifest of a folder of ``kind`` ("answers", "features").

    Errors: TrainDataError when there is none, or it is damaged, of another kind or of another version.
    """
    path = folder / MANIFEST
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TrainDataError(
            f"{folder} holds no training {kind} (no {MANIFEST}); name the folder they were made in"
        ) from None
    except (OSError, ValueError) as error:
        raise TrainDataError(f"{path} cannot be read ({error}); delete {folder} and make it again") from error
    if not isinstance(found, dict) or found.get("kind") != kind:
        seen = found.get("kind") if isinstance(found, dict) else type(found).__name__
        raise TrainDataError(f"{folder} holds {seen}, not training {kind}; name another folder")
    if found.get("version") != version:
        raise TrainDataError(
            f"{folder} has layout version {found.get('version')}, this program reads {version}; make it again"
        )
    return found


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Replace the manifest in one step; after the return it survives a power cut."""
    write_durably(folder / MANIFEST, json.dumps(manifest, indent=1, sort_keys=True, ensure_ascii=True).encode() + b"\n")


def write_durably(path: Path, data: bytes) -> None:
    """Replace a file by ``data`` in one step."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable, where the system can."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Make the folder and hold it for this process; the system frees it when the process dies.

    Errors: TrainDataError when another process holds it or it cannot be made.
    """
    from filelock import FileLock, Timeout

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TrainDataError(f"cannot make {folder} ({error.strerror}); name another folder") from error
    lock = FileLock(str(folder / _LOCK))
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise TrainDataError(f"another process is working in {folder}; wait for it or name another folder") from error
    try:
        yield
    finally:
        lock.release()


def check_disk(folder: Path, needed_bytes: int, *, what: str) -> int:
    """Free bytes on the folder's disk. Errors: CapacityError when ``needed_bytes`` more do not fit."""
    place = folder
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < needed_bytes + _MARGIN_BYTES:
        raise CapacityError(
            f"{what} needs {readable_bytes(needed_bytes)} in {folder} and {readable_bytes(free)} are free; "
            "free some space, name a folder on another disk, or make less"
        )
    return free


def readable_bytes(count: float) -> str:
    """A size as people say it: 812 B, 4.6 kB, 11.6 GB."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count:.0f} B"


def same_settings(found: dict[str, Any], wanted: dict[str, Any], *, folder: Path) -> None:
    """Errors: TrainDataError naming the first setting in which a folder's own settings differ from those asked for."""
    for key in sorted(found.keys() | wanted.keys()):
        if found.get(key) != wanted.get(key):
            raise TrainDataError(
                f"{folder} was begun with {key} = {_short(found.get(key))}, now it is {_short(wanted.get(key))}; "
                "give the same options to go on, or name another folder"
            )


def _short(value: Any) -> str:
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= 60 else f"{text[:57]}..."
