"""Load patterns: what holds for every registered one, and the statistics that each promises."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench import registry
from specbench.backends.scripted import Script, ScriptedBackend
from specbench.engine.clock import VirtualClock, WallClock
from specbench.types import Prompt, Request, Sampling
from specbench.workloads._draws import Draws
from specbench.workloads.driver import drive
from specbench.workloads.patterns import load_label, load_options, open_load

OPEN = {
    "poisson": {"rate": 50.0},
    "gamma": {"rate": 50.0, "cv": 2.5},
    "burst": {"rate": 60.0, "size": 3},
    "trace": {},  # its file is written by the test
}


def options_of(name: str, folder) -> dict:
    if name != "trace":
        return OPEN.get(name, {})
    file = folder / "trace.jsonl"
    file.write_text("".join(json.dumps({"time_s": 7 + i * i / 1000}) + "\n" for i in range(20)))
    return {"file": str(file)}


def times(name: str, options: dict, *, seed: int = 0, count: int = 100) -> list[float]:
    """Arrival times as the driver takes them."""
    arrivals = open_load(name, concurrency=3, options=options, seed=seed)
    found: list[float] = []
    while len(found) < count:
        at = arrivals.next_s()
        if at is None:
            break
        due = arrivals.due(at, in_flight=0)
        assert due >= 1
        found += [at] * due
    return found[:count]


def prompts(count: int) -> list[Prompt]:
    return [Prompt(id=f"p{i}", task="t", domain="d", turns=("x",)) for i in range(count)]


def build(prompt: Prompt, answers) -> Request:
    return Request(
        id=prompt.id, number=int(prompt.id[1:]), prompt_ids=(1, 2), max_new_tokens=1, sampling=Sampling(), seed=0,
        stop_ids=frozenset(), ignore_eos=True, task="t", domain="d",
    )  # fmt: skip


def driven(name: str, options: dict, clock, *, script: Script, count: int, concurrency: int = 3, seed: int = 0):
    arrivals = open_load(name, concurrency=concurrency, options=options, seed=seed)
    backend = ScriptedBackend(script, clock=clock)
    return drive(backend, conversations=prompts(count), build=build, arrivals=arrivals, clock=clock)


# ------------------------------------------------------------------------------------------------- every pattern


def test_all_patterns_are_registered():
    assert {"closed", *OPEN} <= set(registry.names("workloads"))


@pytest.mark.parametrize("name", registry.names("workloads"))
def test_every_pattern_keeps_the_contract(name, tmp_path):
    options = options_of(name, tmp_path)
    arrivals = open_load(name, concurrency=3, options=options, seed=1)
    described = load_options(name, options).described()
    assert json.loads(json.dumps(described)) == described
    assert str(tmp_path) not in load_label(name, concurrency=3, load=described)
    assert arrivals.think_time_s >= 0
    if not arrivals.open_loop:
        assert arrivals.next_s() is None
        assert [arrivals.due(0.0, in_flight=n) for n in (0, 2, 3, 4)] == [3, 1, 0, 0]
    else:
        first = arrivals.next_s()
        assert first is not None
        assert first >= 0
        assert arrivals.due(math.nextafter(first, -1.0), in_flight=0) == 0
        assert arrivals.due(first, in_flight=10**6) >= 1  # what is in flight does not hold arrivals back
        found = times(name, options, seed=1)
        assert found == sorted(found)
        assert found == times(name, options, seed=1)
    outcome = driven(name, options, VirtualClock(), script=Script(prefill_s=0.05), count=12)
    assert [r.id for r in outcome.trace.requests] == [f"p{i}" for i in range(12)]
    assert not outcome.skipped
    assert not outcome.interrupted


@pytest.mark.parametrize("name", ["poisson", "gamma", "burst"])
def test_seeds_differ_and_only_seeds(name):
    assert times(name, OPEN[name], seed=1) != times(name, OPEN[name], seed=2)
    gaps = [b - a for a, b in pairwise(sorted(set(times(name, OPEN[name], seed=1, count=400))))]
    twice = [b - a for a, b in pairwise(sorted(set(times(name, {**OPEN[name], "rate": 2 * OPEN[name]["rate"]}, seed=1,
                                                        count=400))))]  # fmt: skip
    assert gaps == pytest.approx([2 * gap for gap in twice], rel=1e-6)  # a rate stretches time, nothing else


@pytest.mark.parametrize("name", sorted(OPEN))
def test_arrivals_are_the_same_under_both_clocks(name, tmp_path):
    options = options_of(name, tmp_path)
    slow = Script(prefill_s=0.02)  # slower than the arrivals: the queue grows under either clock
    virtual = driven(name, options, VirtualClock(), script=slow, count=15)
    clock = WallClock()
    time.sleep(0.01)  # the load does not begin at the clock's zero
    wall = driven(name, options, clock, script=slow, count=15)
    expected = times(name, options, count=15)
    assert [r.arrival_s for r in virtual.trace.requests] == expected
    origin = wall.trace.requests[0].arrival_s - expected[0]
    assert origin >= 0.01
    assert [r.arrival_s - origin for r in wall.trace.requests] == pytest.approx(expected, abs=1e-9)


PINNED = {
    "poisson": [2.821140915147829, 4.015516513966208, 4.99760114100799],
    "gamma": [2.185338181037502, 6.956692587906688, 6.956693085762912],
    "burst": [1.802194643642072e-05, 1.802194643642072e-05, 0.3765769864653626],
}


def test_first_arrivals_are_pinned():
    """A seed means the same load in every version of this tool and of its libraries."""
    assert times("poisson", {"rate": 1.0}, seed=7, count=3) == pytest.approx(PINNED["poisson"], rel=1e-12)
    assert times("gamma", {"rate": 1.0, "cv": 2.0}, seed=7, count=3) == pytest.approx(PINNED["gamma"], rel=1e-12)
    assert times("burst", {"rate": 1.0, "size": 2}, seed=7, count=3) == pytest.approx(PINNED["burst"], rel=1e-12)


# --------------------------------------------------------------------------------------------------- statistics


def gaps_of(name: str, options: dict, *, seed: int, count: int) -> np.ndarray:
    return np.diff(np.array([0.0, *times(name, options, seed=seed, count=count)]))


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.floats(0.01, 1000), st.integers(0, 2**63 - 1))
def test_poisson_has_its_rate_and_no_memory(rate, seed):
    gaps = gaps_of("poisson", {"rate": rate}, seed=seed, count=1500) * rate
    assert (gaps >= 0).all()
    n = len(gaps)
    assert abs(gaps.mean() - 1) < 5 / math.sqrt(n)
    assert abs(gaps.var() - 1) < 5 * math.sqrt(8 / n)  # the fourth moment of an exponential is 9
    assert abs(np.corrcoef(gaps[:-1], gaps[1:])[0, 1]) < 5 / math.sqrt(n)
    # the distribution itself: the largest distance to 1 - exp(-x), Kolmogorov's bound at 1e-7
    ordered = np.sort(gaps)
    assert np.abs(1 - np.exp(-ordered) - (np.arange(n) + 0.5) / n).max() < 2.9 / math.sqrt(n)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.floats(0.01, 1000), st.floats(0.05, 4.0), st.integers(0, 2**63 - 1))
def test_gamma_has_its_rate_and_its_coefficient_of_variation(rate, cv, seed):
    gaps = gaps_of("gamma", {"rate": rate, "cv": cv}, seed=seed, count=2000) * rate
    n = len(gaps)
    assert (gaps >= 0).all()
    assert abs(gaps.mean() - 1) < 5.5 * cv / math.sqrt(n)
    shape = 1 / cv**2  # E (g - 1)^4 = 3 cv^4 (1 + 2 / shape); the square has a long tail, so the bound is wide
    spread = cv**2 * math.sqrt((2 + 6 / shape) / n)
    assert abs(((gaps - 1) ** 2).mean() - cv**2) < 9 * spread


@pytest.mark.parametrize("shape", [0.2, 0.9, 1.0, 3.7, 100.0])
def test_gamma_draws_follow_their_distribution(shape):
    """Against the regularised incomplete gamma function."""
    from scipy.special import gammainc

    draws = Draws(5, purpose="test")
    values = np.sort([draws.gamma(shape) for _ in range(4000)])
    distance = np.abs(gammainc(shape, values) - (np.arange(4000) + 0.5) / 4000).max()
    assert distance < 1.95 / math.sqrt(4000)  # Kolmogorov, level .001


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.floats(0.1, 100), st.integers(1, 9), st.booleans(), st.integers(0, 999))
def test_bursts_have_their_size_and_the_load_its_rate(rate, size, regular, seed):
    options = {"rate": rate, "size": size, "regular": regular}
    found = times("burst", options, seed=seed, count=size * 600)
    sizes = Counter(found)
    assert set(sizes.values()) == {size}
    gaps = np.diff([0.0, *sorted(sizes)]) * rate / size
    assert gaps == pytest.approx(1.0) if regular else abs(gaps.mean() - 1) < 5.5 / math.sqrt(600)


def test_shuffles_are_fair():
    draws = Draws(3, purpose="test")
    seen: Counter[tuple[int, ...]] = Counter()
    for _ in range(6000):
        items = [0, 1, 2]
        draws.shuffle(items)
        seen[tuple(items)] += 1
    assert len(seen) == 6
    assert all(abs(count - 1000) < 5 * math.sqrt(1000 * 5 / 6) for count in seen.values())


def test_streams_of_different_purposes_differ():
    one, two = (Draws(0, purpose=name) for name in ("a", "b"))
    assert list(islice(iter(one.uniform, None), 5)) != list(islice(iter(two.uniform, None), 5))
