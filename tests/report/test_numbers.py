"""One spelling for each number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbench.records.schema import EstimateRow
from specbench.report import numbers


def row(value: float, unit: str, low: float | None = None, high: float | None = None) -> EstimateRow:
    return EstimateRow(metric="m", value=value, unit=unit, n=3, n_of="r", low=low, high=high)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (2.316666, "tokens per round", "2.32"),
        (1.0, "ratio", "1.00"),
        (0.12345, "fraction", "0.123"),
        (1234.56, "tokens/s", "1234.6"),
        (0.0421, "J/token", "0.042"),
        (123456.7, "something else", "1.2346e+05"),
        (-0.0001, "ratio", "0.00"),
    ],
)
def test_decimals_follow_the_unit(value: float, unit: str, text: str) -> None:
    assert numbers.number(row(value, unit)) == text


def test_intervals_are_written_like_their_value() -> None:
    found = row(2.3166, "tokens per round", 1.954, 2.7333)
    assert numbers.bounds(found) == ("1.95", "2.73")
    assert numbers.bounded(found) == "2.32 [1.95,2.73]"
    assert numbers.bounded(row(2.3166, "tokens per round")) == "2.32"


def test_what_is_absent_is_a_dash_and_never_zero() -> None:
    assert {numbers.number(None), numbers.bounded(None), numbers.milliseconds(None)} == {numbers.ABSENT}
    assert numbers.bounds(None) is None


def test_times_are_milliseconds_shares_per_cent_and_counts_readable() -> None:
    assert numbers.milliseconds(row(0.0123456, "s")) == "12.35"
    assert numbers.percent(0.98765) == "98.8 %"
    assert numbers.count(1234567) == "1,234,567"


@given(st.floats(-1e6, 1e6), st.integers(0, 4))
def test_a_rounded_value_is_near_and_never_minus_nothing(value: float, digits: int) -> None:
    text = numbers.fixed(value, digits)
    assert abs(float(text) - value) <= 0.5 * 10**-digits + 1e-9
    assert text.startswith("-") == (float(text) < 0)
