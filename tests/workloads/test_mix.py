"""Mixes of tasks: exact shares, a seeded order, each task's own order inside."""

from __future__ import annotations

import math
import warnings
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.errors import ConfigError
from specbench.types import Prompt
from specbench.workloads._mix import mixed, quotas


class Numbered:
    """A task of ``count`` numbered prompts."""

    domain = version = "x"

    def __init__(self, name: str, count: int) -> None:
        self.name = name
        self._count = count

    def prompts(self, *, limit: int | None = None, seed: int = 0) -> list[Prompt]:
        """The first ones."""
        number = self._count if limit is None else min(limit, self._count)
        return [Prompt(str(i), self.name, self.domain, ("x",)) for i in range(number)]


def tasks(**counts: int) -> dict[str, Numbered]:
    return {name: Numbered(name, count) for name, count in counts.items()}


def test_shares_follow_the_weights_and_the_total_stays():
    found = mixed(tasks(math=100, code=100), {"math": 3, "code": 1}, limit=10, seed=0)
    assert Counter(p.task for p in found) == {"math": 15, "code": 5}
    for name in ("math", "code"):
        ids = [p.id for p in found if p.task == name]
        assert ids == [str(i) for i in range(len(ids))]  # a task's own order


def test_the_order_is_seeded_and_not_sorted():
    def order(seed):
        return [p.task for p in mixed(tasks(a=40, b=40), {"a": 1, "b": 1}, limit=20, seed=seed)]

    assert order(1) == order(1) != order(2)
    changes = sum(one != other for one, other in zip(order(1), order(1)[1:]))
    assert 8 <= changes <= 32  # of 39; blocks would give 1, strict turns 39


def test_a_task_that_holds_too_few_shrinks_all_and_says_so():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = mixed(tasks(math=6, code=100), {"math": 3, "code": 1}, limit=10, seed=0)
    assert Counter(p.task for p in found) == {"math": 6, "code": 2}
    assert "takes 8 prompts, not 20: the tasks hold math 6, code 20" in str(caught[0].message)


def test_all_prompts_means_as_many_as_the_shares_allow():
    found = mixed(tasks(math=9, code=100), {"math": 1, "code": 2}, limit=None, seed=0)
    assert Counter(p.task for p in found) == {"math": 9, "code": 18}


def test_a_task_without_a_prompt_is_refused():
    with pytest.raises(ConfigError, match="leaves task 'code' none of 2 prompts"):
        mixed(tasks(math=9, code=9), {"math": 100, "code": 1}, limit=1, seed=0)
    with pytest.raises(ConfigError, match="none of 0 prompts"):
        mixed(tasks(math=0, code=9), {"math": 1, "code": 1}, limit=3, seed=0)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=6), st.integers(0, 500))
def test_quotas_are_whole_and_nearest(weights, total):
    counts = quotas(weights, total=total)
    assert sum(counts) == total
    whole = math.fsum(weights)
    assert all(abs(count - total * weight / whole) < 1 + 1e-9 for count, weight in zip(counts, weights))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.sampled_from([0.1, 0.2, 1.0, 3.0])), min_size=1, max_size=4),
    st.none() | st.integers(1, 20), st.integers(0, 99),
)  # fmt: skip
def test_no_prompt_comes_twice_and_no_task_gives_more_than_it_holds(parts, limit, seed):
    names = [f"t{i}" for i in range(len(parts))]
    held = {name: count for name, (count, _) in zip(names, parts)}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = mixed(tasks(**held), {n: w for n, (_, w) in zip(names, parts)}, limit=limit, seed=seed)
    except ConfigError:
        return
    assert len({(p.task, p.id) for p in found}) == len(found)
    if limit is not None:
        assert len(found) <= limit * len(names)
