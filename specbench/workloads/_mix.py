"""Prompts of several tasks in given shares: how many of each, and in which order."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence

from specbench.api import Task
from specbench.errors import ConfigError
from specbench.types import Prompt
from specbench.workloads._draws import Draws

_ROUNDING = 1e-12  # weights of .1 and .2 make a third of 27 a little less than 9


def quotas(weights: Sequence[float], *, total: int) -> list[int]:
    """``total`` divided in the ratio of the weights, whole, by largest remainders; the first of equal ones wins."""
    whole = math.fsum(weights)
    exact = [total * weight / whole for weight in weights]
    counts = [math.floor(share) for share in exact]
    by_rest = sorted(range(len(weights)), key=lambda i: counts[i] - exact[i])
    for index in by_rest[: total - sum(counts)]:
        counts[index] += 1
    return counts


def mixed(tasks: Mapping[str, Task], weights: Mapping[str, float], *, limit: int | None, seed: int) -> list[Prompt]:
    """Prompts in the ratio of the weights, in a seeded random order that keeps each task's own order.

    ``tasks`` by the names that ``weights`` uses. ``limit`` is the mean number of a task (None: as many as the ratio
    allows). Where a task holds too few, all shrink, with a warning. Errors: ConfigError when a task would get none.
    """
    names = list(tasks)
    shares = [weights[name] for name in names]
    held = {name: len(tasks[name].prompts(limit=limit and limit * len(names), seed=seed)) for name in names}
    wanted = sum(held.values()) if limit is None else limit * len(names)
    counts = _fitting(shares, [held[name] for name in names], total=wanted)
    for name, count in zip(names, counts):
        if count == 0:
            raise ConfigError(
                f"the mix leaves task '{name}' none of {sum(counts)} prompts; raise --num-prompts or its weight"
            )
    if limit is not None and sum(counts) < wanted:
        shown = ", ".join(f"{name} {held[name]}" for name in names)
        warnings.warn(f"the mix takes {sum(counts)} prompts, not {wanted}: the tasks hold {shown}", stacklevel=2)
    order = [name for name, count in zip(names, counts) for _ in range(count)]
    Draws(seed, purpose="order of a mix").shuffle(order)
    columns = {name: iter(tasks[name].prompts(limit=count, seed=seed)) for name, count in zip(names, counts)}
    return [next(columns[name]) for name in order]


def _fitting(shares: Sequence[float], held: Sequence[int], *, total: int) -> list[int]:
    """Quotas of the largest total up to ``total`` whose exact shares every task can fill."""
    whole = math.fsum(shares)
    room = min(count * whole / share for count, share in zip(held, shares))
    return quotas(shares, total=min(total, math.floor(room * (1 + _ROUNDING))))
