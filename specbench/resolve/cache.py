"""The cache folder: where it is, how two processes share it, and how something in it comes to be whole or not at all.

``SPECBENCH_HOME`` names it; the default is ``specbench`` under the user's cache folder (XDG_CACHE_HOME on Linux).
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specbench.errors import CapacityError, TargetError
from specbench.resolve.progress import Step

FULL = {errno.ENOSPC, errno.EDQUOT}
CLOSED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST}
LOCK_WAIT_S = 1800.0


def home() -> Path:
    """The cache folder; it need not exist yet."""
    named = os.environ.get("SPECBENCH_HOME")
    if named:
        return Path(named).expanduser().absolute()
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("specbench", appauthor=False))


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.2f} GB"


def check_space(folder: Path, needed_bytes: int, *, what: str) -> None:
    """Refuse early what cannot fit: ``folder`` exists and ``needed_bytes`` more must fit on its disk."""
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise CapacityError(
            f"no disk space for {what}: it needs {_gigabytes(needed_bytes)} in {folder} and {_gigabytes(free)} are "
            "free; delete something, or name a folder on another disk in SPECBENCH_HOME"
        )


@contextmanager
def disk_errors(folder: Path, *, what: str) -> Iterator[None]:
    """Turn a full or closed disk met while writing under ``folder`` into one line that says what to do.

    Errors: CapacityError when the disk is full, TargetError when the folder cannot be written.
    """
    try:
        yield
    except Exception as error:
        number = error.errno if isinstance(error, OSError) else None
        # safetensors writes in native code and reports a full disk in words only
        if number in FULL or "No space left on device" in str(error) or "os error 28" in str(error):
            raise CapacityError(
                f"the disk of {folder} is full while writing {what}; free some space, "
                "or name a folder on another disk in SPECBENCH_HOME"
            ) from error
        if number in CLOSED:
            raise TargetError(
                f"cannot write {what} under {folder} ({os.strerror(number or 0)}); make it writable, "
                "or name another folder in SPECBENCH_HOME"
            ) from error
        raise


@contextmanager
def locked(name: str, *, progress: Step) -> Iterator[None]:
    """Hold the cache's lock called ``name``; the operating system frees it when the process dies.

    Errors: TargetError when another process holds it for half an hour.
    """
    from filelock import FileLock, Timeout

    folder = home() / "locks"
    with disk_errors(home(), what="a lock"):
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(str(folder / f"{name}.lock"))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            with progress(f"Waiting for another process that prepares {name}"):
                _wait(lock, name)
    try:
        yield
    finally:
        lock.release()


def _wait(lock: object, name: str) -> None:
    from filelock import BaseFileLock, Timeout

    assert isinstance(lock, BaseFileLock)
    try:
        lock.acquire(timeout=LOCK_WAIT_S)
    except Timeout as error:
        raise TargetError(
            f"another process has been preparing {name} for {LOCK_WAIT_S / 60:.0f} minutes ({lock.lock_file}); "
            "end it and run again"
        ) from error


@contextmanager
def whole_folder(final: Path) -> Iterator[Path]:
    """A folder to fill; it becomes ``final`` in one rename when the block ends well and vanishes when it does not.

    Call it under `locked`: a half-made folder left by a killed process is then known to be nobody's and is removed.
    """
    partial = final.with_name(f".{final.name}.partial")
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir(parents=True)
    try:
        yield partial
        if final.exists():
            old = final.with_name(f".{final.name}.old")
            shutil.rmtree(old, ignore_errors=True)
            final.rename(old)
            partial.rename(final)
            shutil.rmtree(old, ignore_errors=True)
        else:
            partial.rename(final)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
