"""What a step costs, measured: its floating-point operations, its time, and the matrix rate of the machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


@dataclass(frozen=True, slots=True)
class Probe:
    """One step's work, tried once: operations and seconds for ``predictions`` predictions."""

    predictions: int
    flops: float
    seconds: float


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations of matrix products and attention, forward and backward, by torch's own formulas.

    torch's counter by module cannot stand gradients that are asked for inside a forward.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.flops += float(formula(*args, **(kwargs or {}), out_val=out))
        return out


def probe(work: Callable[[], int], *, device: str) -> Probe:
    """Run ``work``, which returns its predictions, twice: once counted, once timed."""
    with _Counter() as counter:
        predictions = work()
    start = clock(device)
    work()
    return Probe(predictions, counter.flops, clock(device) - start)


def clock(device: str) -> float:
    """Seconds, once the device has done what was asked of it."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    return time.perf_counter()


@cache
def matrix_rate(dtype: torch.dtype, *, device: str) -> float:
    """Floating-point operations a second of a large matrix product, the best of a few: what could be reached.

    Measured once in a process.
    """
    size = 8192 if device.startswith("cuda") else 1024
    left = torch.ones(size, size, dtype=dtype, device=device)
    right = torch.ones(size, size, dtype=dtype, device=device)
    best = float("inf")
    for _ in range(4):
        start = clock(device)
        torch.mm(left, right)
        best = min(best, clock(device) - start)
    return 2.0 * size**3 / best
