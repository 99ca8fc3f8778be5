"""The rows of a run's table of estimates, written without the template engine: a site has millions of them.

Whatever comes from a record goes through `_escaped`, the numbers excepted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import lru_cache

from markupsafe import Markup, escape

from specbench.records.schema import EstimateRow
from specbench.report import glossary, numbers

_escaped = lru_cache(maxsize=4096)(lambda text: str(escape(text)))


@lru_cache(maxsize=65536)
def _scope(items: tuple[tuple[str, str], ...]) -> tuple[str, str]:
    """A scope as JSON for scripts and as text for readers, both escaped."""
    text = ", ".join(f"{name} {value}" for name, value in items)
    return str(escape(json.dumps(dict(items), sort_keys=True))), str(escape(text))


def number_text(value: float) -> str:
    """All digits, as JSON has them."""
    return repr(float(value))


def _line(row: EstimateRow) -> str:
    data, scope = _scope(tuple(row.scope.items()))
    limits = numbers.bounds(row)
    if limits is None:
        bounds = '<td class="num"></td>'
    else:
        low, high = number_text(row.low or 0.0), number_text(row.high or 0.0)
        kind = _escaped(row.interval or "")
        bounds = f'<td class="num" data-low="{low}" data-high="{high}" title="{kind}">[{limits[0]},{limits[1]}]</td>'
    metric = _escaped(row.metric)
    return (
        f'<tr data-metric="{metric}" data-scope="{data}"><th scope="row">{metric}</th><td>{scope}</td>'
        f'<td class="num"><data value="{number_text(row.value)}">{numbers.number(row)}</data></td>'
        f"<td>{_escaped(row.unit)}</td>{bounds}"
        f'<td class="num">{row.n} <span class="sub">{_escaped(row.n_of)}</span></td></tr>\n'
    )


def tables(estimates: Sequence[EstimateRow]) -> Iterator[tuple[str, int, Markup]]:
    """(metric group, how many rows, their markup), in the order of the record."""
    found: dict[str, list[str]] = {}
    for row in estimates:
        found.setdefault(_group(row.metric), []).append(_line(row))
    for name, lines in found.items():
        yield name, len(lines), Markup("".join(lines))


@lru_cache(maxsize=1024)
def _group(metric: str) -> str:
    return glossary.group_of(metric) or "others"
