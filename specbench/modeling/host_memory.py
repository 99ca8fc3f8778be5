"""Memory that the process freed and the allocator still holds."""

from __future__ import annotations

import contextlib
import ctypes
import sys


def give_back_freed() -> None:
    """Return freed memory to the system where the C library can (glibc); elsewhere nothing happens."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
