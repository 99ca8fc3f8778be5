"""How numbers are written. Every table, export and page uses these, so that one value has one spelling everywhere."""

from __future__ import annotations

from collections.abc import Mapping

from specbench.records.schema import EstimateRow, Record

ABSENT = "-"
CLIENT = "*"
"""Marks a figure by the client's clock, which stands where a server shows no rounds to time."""
CLIENT_LEGEND = f"{CLIENT} by the client's clock: from the first visible token to the last, the network included"
DECIMALS = {
    "tokens per round": 2,
    "tokens per chunk": 2,
    "ratio": 2,
    "fraction": 3,
    "tokens/s": 1,
    "tokens/s/user": 1,
    "J/token": 3,
    "W": 1,
    "MHz": 0,
}
"""Decimals by unit. Times are shown in milliseconds (`milliseconds`); any other unit by significant digits."""

_MS_DECIMALS = 2
_PERCENT_DECIMALS = 1


def fixed(value: float, digits: int) -> str:
    """With so many decimals; a value that rounds to nothing has no sign."""
    text = f"{value:.{digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def general(value: float) -> str:
    """By significant digits, for lists of values of any unit."""
    return f"{value:.5g}"


def count(value: int) -> str:
    """A whole number with its thousands apart."""
    return f"{value:,}"


def percent(share: float) -> str:
    """A share in 0..1 as per cent."""
    return f"{fixed(100 * share, _PERCENT_DECIMALS)} %"


def in_unit(value: float, unit: str) -> str:
    """A value with the decimals of its unit."""
    return fixed(value, DECIMALS[unit]) if unit in DECIMALS else general(value)


def number(row: EstimateRow | None) -> str:
    """An estimate's value with the decimals of its unit."""
    return ABSENT if row is None else in_unit(row.value, row.unit)


def bounds(row: EstimateRow | None) -> tuple[str, str] | None:
    """An estimate's interval, as its value is written; None where it has none."""
    if row is None or row.low is None or row.high is None:
        return None
    return in_unit(row.low, row.unit), in_unit(row.high, row.unit)


def bounded(row: EstimateRow | None) -> str:
    """Value with its interval: ``2.25 [2.10,2.41]``. No space inside the brackets: it must not break there."""
    limits = bounds(row)
    return number(row) if limits is None else f"{number(row)} [{limits[0]},{limits[1]}]"


def decode_speed(record: Record, scope: Mapping[str, str] | None = None) -> str:
    """Tokens/s of decoding; of a server's row the client's, marked."""
    found = record.find("decode_tokens_per_s", **(scope or {}))
    if found is not None:
        return number(found)
    clients = record.find("client_tokens_per_s", **(scope or {}))
    return ABSENT if clients is None else number(clients) + CLIENT


def gain(record: Record, scope: Mapping[str, str] | None = None, *, alone: bool = False) -> str:
    """Speed-up with its interval; of a server's row the client's, marked.

    That is known over the whole run only: ``alone`` says that the scope is all of it.
    """
    found = record.find("speed_up", **(scope or {}))
    if found is not None:
        return bounded(found)
    clients = record.find("client_speed_up") if alone or not scope else None
    return ABSENT if clients is None else bounded(clients).replace(number(clients), number(clients) + CLIENT, 1)


def milliseconds(row: EstimateRow | None) -> str:
    """A time in seconds, in milliseconds."""
    return ABSENT if row is None else fixed(row.value * 1000, _MS_DECIMALS)
