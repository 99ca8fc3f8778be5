"""Recipe T20: searches over synthetic latency curves find the known knee, its bounds, or that there is none."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.errors import ConfigError
from specbench.sla import Bound, Ceiling, Finding, Outcome, Probe, Sla, Space, conclude, next_load

Curve = Callable[[float], float]
FLOOR = 20.0


def probe(load: float, speed: float, *, floor: float = FLOOR, throughput: float | None = None) -> Probe:
    made = load * speed if throughput is None else throughput
    return Probe(load, {"tok/s/user": Bound(speed, floor, at_least=True)}, made)


def search(curve: Curve, space: Space, *, floor: float = FLOOR) -> tuple[Finding, list[Probe]]:
    """Run a search to its end, as the measuring side does."""
    probes: list[Probe] = []
    for _ in range(100):
        load = next_load(space, {p.load: p.passed for p in probes})
        if load is None:
            return conclude(space, probes), probes
        assert space.low <= load <= space.high
        assert load not in [p.load for p in probes], "no load is probed twice by one search"
        probes.append(probe(load, curve(load), floor=floor))
    raise AssertionError("the search does not end")


def users(most: int, *, start: int = 1) -> Space:
    return Space(whole=True, start=start, low=1, high=most)


def names(finding: Finding) -> set[str]:
    return {flag.name for flag in finding.flags}


def noise(load: float, seed: int) -> float:
    """Uniform in [-1, 1), fixed by load and seed."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{load}".encode()).digest()[:4], "little") / 2**31 - 1


# ---------------------------------------------------------------------------------------------------- the curves


@settings(max_examples=60)
@given(knee=st.integers(1, 200), most=st.integers(1, 300), start=st.integers(1, 300))
def test_monotone_users_find_the_knee_exactly(knee: int, most: int, start: int) -> None:
    def curve(load: float) -> float:
        return FLOOR * (knee + 0.5) / load

    found, probes = search(curve, users(most, start=min(start, most)))
    assert "non-monotone" not in names(found)
    assert "cliff" not in names(found)
    assert len(probes) <= 2 * math.ceil(math.log2(most + 1)) + 3
    if knee >= most:
        assert found.outcome is Outcome.ALL_PASS
        assert (found.max_pass, found.first_fail) == (most, None)
    else:
        assert found.outcome is Outcome.ATTAINED
        assert (found.max_pass, found.first_fail) == (knee, knee + 1)


@settings(max_examples=60)
@given(knee=st.floats(0.011, 90), step=st.floats(0.01, 0.5), start=st.floats(0.01, 100))
def test_monotone_rates_find_the_knee_within_a_step(knee: float, step: float, start: float) -> None:
    space = Space(whole=False, start=float(f"{start:.3g}"), low=0.01, high=100.0, tolerance=step)
    found, _ = search(lambda load: FLOOR * knee / load, space)
    assert found.outcome is Outcome.ATTAINED
    assert found.max_pass is not None
    assert found.first_fail is not None
    assert found.max_pass <= knee < found.first_fail
    assert found.first_fail / found.max_pass <= (1 + step) * (1 + 2e-3)  # rates have four digits


@settings(max_examples=60)
@given(knee=st.integers(1, 120), spread=st.floats(0, 0.3), seed=st.integers(0, 10**6))
def test_noisy_curves_stay_between_the_surely_good_and_the_surely_bad(knee: int, spread: float, seed: int) -> None:
    def clean(load: float) -> float:
        return FLOOR * (knee + 0.5) / load

    found, _ = search(lambda load: clean(load) * (1 + spread * noise(load, seed)), users(256))
    good = max((n for n in range(1, 257) if clean(n) * (1 - spread) >= FLOOR), default=0)
    bad = min((n for n in range(1, 257) if clean(n) * (1 + spread) < FLOOR), default=257)
    if found.outcome is Outcome.NOT_ATTAINABLE:
        assert good < 2  # both first loads were within the noise
    else:
        assert found.max_pass is not None
        assert good <= found.max_pass < bad
    if spread * (knee + 1) < 0.4:  # the noise is smaller than a step
        assert found.max_pass == knee


@settings(max_examples=60)
@given(knee=st.integers(2, 100), drop=st.floats(4, 50))
def test_a_cliff_is_found_and_flagged(knee: int, drop: float) -> None:
    def curve(load: float) -> float:
        return 2 * FLOOR if load <= knee else 2 * FLOOR / drop

    found, _ = search(curve, users(128))
    assert (found.max_pass, found.first_fail) == (knee, knee + 1)
    assert names(found) == {"cliff"}


def test_throughput_that_collapses_is_a_cliff_too() -> None:
    space = users(8)
    probes = [probe(n, 30.0) for n in (1, 2, 4)] + [probe(5, 19.0, throughput=40.0), probe(8, 18.0, throughput=40.0)]
    probes.append(probe(6, 18.5, throughput=40.0))
    found = conclude(space, probes)
    assert found.max_pass == 4
    assert [f.message for f in found.flags] == ["from 4 to 5: throughput 120 becomes 40"]


@settings(max_examples=60)
@given(most=st.integers(1, 300), whole=st.booleans())
def test_all_pass_is_a_bound(most: int, whole: bool) -> None:
    found, _ = search(lambda load: FLOOR + 1 / load, Space(whole=whole, start=1, low=1, high=most))
    assert found.outcome is Outcome.ALL_PASS
    assert (found.max_pass, found.first_fail, found.best) == (most, None, most)
    assert "largest load asked for" in found.reason


@settings(max_examples=60)
@given(most=st.integers(1, 300), start=st.integers(1, 300))
def test_none_passes_gives_no_number(most: int, start: int) -> None:
    found, probes = search(lambda load: FLOOR / 2 / load, users(most, start=min(start, most)))
    assert found.outcome is Outcome.NOT_ATTAINABLE
    assert (found.max_pass, found.best) == (None, None)
    assert min(p.load for p in probes) == 1.0
    assert "nearest 1: tok/s/user 10 below 20" in found.reason


@settings(max_examples=60)
@given(dip=st.sampled_from([2, 4, 8, 16]), knee=st.integers(32, 100))
def test_a_dip_is_flagged_and_searched_beyond(dip: int, knee: int) -> None:
    def curve(load: float) -> float:
        return FLOOR / 2 if load == dip else FLOOR * (knee + 0.5) / load

    found, _ = search(curve, users(128))
    assert "non-monotone" in names(found)
    assert (found.max_pass, found.first_fail) == (knee, dip)
    assert any(f"{2 * dip} passes and {dip} does not" in flag.message for flag in found.flags)


def test_a_figure_that_gets_better_with_load_is_flagged_unless_it_is_noise() -> None:
    def pair(low: float, high: float) -> list[Probe]:
        bounds = [Bound(25.0, 20.0, True, 24.0, low), Bound(30.0, 20.0, True, high, 31.0)]
        return [Probe(n, {"tok/s/user": b}, 10.0) for n, b in zip((1.0, 2.0), bounds)]

    assert names(conclude(users(2), pair(26.0, 29.0))) == {"non-monotone"}
    assert names(conclude(users(2), pair(30.0, 29.0))) == set()


@settings(max_examples=60)
@given(st.lists(st.booleans(), min_size=40, max_size=40), st.integers(1, 40), st.integers(0, 3))
def test_any_verdicts_end_the_search_with_a_number_that_holds(verdicts: list[bool], start: int, beyond: int) -> None:
    space = Space(whole=True, start=start, low=1, high=40, beyond=beyond)
    found, probes = search(lambda load: 30.0 if verdicts[int(load) - 1] else 10.0, space)
    passed = {p.load for p in probes if p.passed}
    assert (found.outcome is Outcome.NOT_ATTAINABLE) == (not passed)
    if passed:
        assert found.max_pass == max(passed)
        assert found.best in passed
        failed_above = [p.load for p in probes if not p.passed and p.load > found.max_pass]
        assert failed_above == [] or min(failed_above) == found.max_pass + 1
    fails = [p.load for p in probes if not p.passed]
    assert ("non-monotone" in names(found)) == any(f < p for f in fails for p in passed) or beyond == 0


@settings(max_examples=60)
@given(st.dictionaries(st.integers(1, 64).map(float), st.booleans(), max_size=20))
def test_the_next_load_follows_from_the_verdicts_alone(verdicts: dict[float, bool]) -> None:
    backwards = dict(reversed(verdicts.items()))
    found = next_load(users(64), verdicts)
    assert found == next_load(users(64), backwards)
    assert found is None or found not in verdicts


def test_the_largest_throughput_may_lie_below_the_largest_load() -> None:
    probes = [probe(1, 40.0, throughput=40.0), probe(2, 35.0, throughput=70.0), probe(3, 20.0, throughput=60.0)]
    found = conclude(users(3), probes)
    assert (found.max_pass, found.best) == (3, 2)
    assert found.reason.endswith("throughput is largest at 2")


def test_a_limit_inside_the_interval_is_said() -> None:
    near = Probe(1.0, {"tok/s/user": Bound(21.0, 20.0, True, 19.0, 23.0)}, 21.0)
    far = Probe(2.0, {"tok/s/user": Bound(18.0, 20.0, True, 17.5, 18.5)}, 36.0)
    found = conclude(users(2), [near, far])
    assert [(f.name, "at 1: 21 in [19, 23]" in f.message) for f in found.flags] == [("within noise", True)]


def test_a_run_without_steady_window_or_with_trouble_never_passes() -> None:
    assert not Probe(1.0, {}, None).passed
    assert Probe(1.0, {}, None).reasons == ("the run has no steady window",)
    broken = Probe(1.0, {"ttft p99": Bound(1.0, 2.0, at_least=False)}, 10.0, trouble="half of the requests failed")
    assert not broken.passed
    found = conclude(users(1), [broken])
    assert found.outcome is Outcome.NOT_ATTAINABLE
    assert "half of the requests failed" in found.reason


# ----------------------------------------------------------------------------------------------------- what is asked


def test_labels() -> None:
    level = Sla(20.0, (Ceiling("ttft", 99, 2.0), Ceiling("tpot", 50, 0.05)))
    assert level.label == ">= 20 tok/s/user, ttft p99 <= 2 s, tpot p50 <= 0.05 s"


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: Sla(), "no service level"),
        (lambda: Sla(0.0), "positive"),
        (lambda: Sla(math.nan), "positive"),
        (lambda: Sla(None, (Ceiling("ttft", 99, -1.0),)), "ttft p99"),
        (lambda: Space(whole=True, start=0, low=0, high=8), "--min"),
        (lambda: Space(whole=True, start=9, low=1, high=8), "--max"),
        (lambda: Space(whole=True, start=1, low=1, high=8.5), "whole"),
        (lambda: Space(whole=False, start=1, low=1, high=math.inf), "--max"),
        (lambda: Space(whole=False, start=1, low=1, high=8, tolerance=0), "--step"),
    ],
)
def test_levels_and_loads_that_make_no_sense_are_refused(make: Callable[[], object], word: str) -> None:
    with pytest.raises(ConfigError, match=word) as caught:
        make()
    assert "\n" not in str(caught.value)
