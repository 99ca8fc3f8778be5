"""Memory that the process freed and the allocator still holds."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import time

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of glibc's malloc.h


def give_back_freed() -> None:
    """Return freed memory to the system where the C library can (glibc); elsewhere nothing happens."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def keep_freed() -> bool:
    """Let glibc keep what the process frees from now on; whether the C library could be told.

    A training step or a decoding step of many rows on a CPU makes and drops dozens of tensors of megabytes. By default
    each of them may be mapped and unmapped, and the kernel fills its pages with zeros every time: a fifth of a step of
    training here.
    """
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False  # another C library
    return bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, 2**31 - 1))


class Trimmer:
    """Called often, gives freed memory back every ``every_s`` seconds.

    For long stretches under `keep_freed` whose tensors grow step by step, as the contexts of decoding rows do: no freed
    piece fits the next one, and what is kept grows without bound (to 17 GB in two blocks of 512 answers).
    """

    def __init__(self, every_s: float = 20.0) -> None:
        self._every_s, self._last = every_s, time.monotonic()

    def __call__(self) -> None:
        """Give back when it is time."""
        now = time.monotonic()
        if now - self._last >= self._every_s:
            self._last = now
            give_back_freed()
