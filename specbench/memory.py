"""How much memory a cell really took, beside what was planned for it."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def resident_bytes() -> int:
    """Resident memory of this process now."""
    import psutil

    return int(psutil.Process().memory_info().rss)


class PeakMemory:
    """The highest memory in use since `start`: resident on a CPU, allocated by torch on a CUDA device.

    Where the system cannot forget an earlier peak (it can on Linux), the resident peak is that of the whole process.
    """

    def __init__(self, device: str) -> None:
        self._cuda = device if device.startswith("cuda") else None

    def start(self) -> None:
        """Forget earlier peaks."""
        with contextlib.suppress(OSError):
            _CLEAR.write_text("5")
        if self._cuda is not None:
            import torch

            torch.cuda.reset_peak_memory_stats(self._cuda)

    def facts(self) -> dict[str, Any]:
        """``peak_rss_bytes``, and ``peak_device_bytes`` on a CUDA device."""
        found: dict[str, Any] = {"peak_rss_bytes": _peak_rss()}
        if self._cuda is not None:
            import torch

            found["peak_device_bytes"] = int(torch.cuda.max_memory_allocated(self._cuda))
        return found


def _peak_rss() -> int:
    try:
        lines = _STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)
