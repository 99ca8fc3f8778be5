"""What the device can do at best: bytes copied and operations multiplied a second, measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from tests.gpu.scales import Scale
from tests.gpu.timing import Budget, Timing, timed


@dataclass(frozen=True, slots=True)
class Rate:
    """``per_s`` bytes or operations a second, from the median time."""

    what: str
    per_s: float
    timing: Timing


@dataclass(frozen=True, slots=True)
class Ceilings:
    """``copy`` counts bytes read and bytes written; ``matrix`` is in the dtype that the targets compute in."""

    copy: Rate
    matrix: Rate
    others: tuple[Rate, ...]

    def floor_s(self, *, bytes_moved: float, operations: float) -> float:
        """Seconds that no implementation undercuts: the larger of the two."""
        return max(bytes_moved / self.copy.per_s, operations / self.matrix.per_s)


def measure_ceilings(scale: Scale, *, budget: Budget) -> Ceilings:
    """Copy bandwidth between two buffers far larger than any cache, and products of random matrices."""
    copy = _copy(scale, budget=budget.share(0.4))
    dtypes = (torch.bfloat16, torch.float32) if scale.cuda else (torch.float32,)
    found = {dtype: _product(scale, dtype, budget=budget.share(0.5)) for dtype in dtypes}
    matrix = found[scale.dtype]
    return Ceilings(copy, matrix, tuple(rate for dtype, rate in found.items() if dtype != scale.dtype))


def _copy(scale: Scale, *, budget: Budget) -> Rate:
    count = scale.copy_bytes // 2
    source = torch.randint(-(2**15), 2**15, (count,), dtype=torch.int16, device=scale.device)  # zeros may copy faster
    goal = torch.empty_like(source)
    timing = timed(lambda: goal.copy_(source), device=scale.device, budget=budget)
    assert torch.equal(goal[-1024:], source[-1024:]), "the copy did not arrive"
    return Rate("copy, bytes read and written", 2 * scale.copy_bytes / timing.median_s, timing)


def _product(scale: Scale, dtype: torch.dtype, *, budget: Budget) -> Rate:
    size = scale.matrix if dtype.itemsize == 2 or not scale.cuda else scale.matrix // 2
    noise = torch.Generator(scale.device).manual_seed(0)
    left, right = (torch.randn(size, size, generator=noise, device=scale.device).to(dtype) for _ in range(2))
    out = torch.empty_like(left)
    call: Callable[[], object] = lambda: torch.mm(left, right, out=out)  # noqa: E731
    timing = timed(call, device=scale.device, budget=budget)
    name = str(dtype).removeprefix("torch.")
    return Rate(f"product of {size} x {size} matrices, {name}", 2 * size**3 / timing.median_s, timing)
