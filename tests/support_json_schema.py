"""A checker for the part of JSON Schema (draft 2020-12) that the records' schema uses; other keywords are refused.

Written from the specification, so that the exported document itself is tested and not only the model that made it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

_SILENT = {"$schema", "$id", "$defs", "title", "description", "default"}
_TYPES: dict[str, Callable[[Any], bool]] = {
    "null": lambda v: v is None,
    "boolean": lambda v: isinstance(v, bool),
    "integer": lambda v: isinstance(v, int | float) and not isinstance(v, bool) and float(v).is_integer(),
    "number": lambda v: isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v),
    "string": lambda v: isinstance(v, str),
    "array": lambda v: isinstance(v, list),
    "object": lambda v: isinstance(v, dict),
}


def faults(value: Any, schema: dict[str, Any]) -> list[str]:
    """Where a JSON value breaks a schema, one phrase each."""
    return list(_faults(value, schema, schema, "$"))


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON: true is not 1."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _faults(value: Any, schema: Any, root: dict[str, Any], where: str) -> Iterator[str]:
    if isinstance(schema, bool):
        if not schema:
            yield f"{where}: nothing is allowed here"
        return
    for keyword, wanted in schema.items():
        if keyword in _SILENT:
            continue
        check = _KEYWORDS.get(keyword)
        if check is None:
            raise NotImplementedError(f"keyword {keyword}")
        yield from check(value, wanted, schema, root, where)


def _type(value: Any, wanted: Any, schema: Any, root: Any, where: str) -> Iterator[str]:
    if not _TYPES[wanted](value):
        yield f"{where}: {value!r} is no {wanted}"


def _ref(value: Any, wanted: str, schema: Any, root: Any, where: str) -> Iterator[str]:
    found = root
    for part in wanted.removeprefix("#/").split("/"):
        found = found[part]
    yield from _faults(value, found, root, where)


def _any_of(value: Any, wanted: list[Any], schema: Any, root: Any, where: str) -> Iterator[str]:
    if all(list(_faults(value, option, root, where)) for option in wanted):
        yield f"{where}: fits none of {len(wanted)} kinds"


def _properties(value: Any, wanted: dict[str, Any], schema: Any, root: Any, where: str) -> Iterator[str]:
    for name, inner in wanted.items():
        if isinstance(value, dict) and name in value:
            yield from _faults(value[name], inner, root, f"{where}.{name}")


def _additional(value: Any, wanted: Any, schema: Any, root: Any, where: str) -> Iterator[str]:
    for name in value if isinstance(value, dict) else ():
        if name not in schema.get("properties", {}):
            yield from _faults(value[name], wanted, root, f"{where}.{name}")


def _required(value: Any, wanted: list[str], schema: Any, root: Any, where: str) -> Iterator[str]:
    yield from (f"{where}: lacks {name}" for name in wanted if isinstance(value, dict) and name not in value)


def _items(value: Any, wanted: Any, schema: Any, root: Any, where: str) -> Iterator[str]:
    first = len(schema.get("prefixItems", ()))
    for index, item in enumerate(value[first:] if isinstance(value, list) else ()):
        yield from _faults(item, wanted, root, f"{where}[{first + index}]")


def _prefix(value: Any, wanted: list[Any], schema: Any, root: Any, where: str) -> Iterator[str]:
    for index, (item, inner) in enumerate(zip(value if isinstance(value, list) else (), wanted)):
        yield from _faults(item, inner, root, f"{where}[{index}]")


def _test(kind: type | Any, holds: Callable[[Any, Any], bool]) -> Callable[..., Iterator[str]]:
    """A keyword that says something of one kind of value and nothing of others."""

    def check(value: Any, wanted: Any, schema: Any, root: Any, where: str) -> Iterator[str]:
        if isinstance(value, kind) and not isinstance(value, bool) and not holds(value, wanted):
            yield f"{where}: {value!r} against {wanted!r}"

    return check


def _enum(value: Any, wanted: list[Any], schema: Any, root: Any, where: str) -> Iterator[str]:
    if not any(_same(value, option) for option in wanted):
        yield f"{where}: {value!r} is none of {wanted}"


_KEYWORDS: dict[str, Callable[..., Iterator[str]]] = {
    "type": _type,
    "$ref": _ref,
    "anyOf": _any_of,
    "properties": _properties,
    "additionalProperties": _additional,
    "required": _required,
    "items": _items,
    "prefixItems": _prefix,
    "enum": _enum,
    "pattern": _test(str, lambda v, w: re.search(w, v) is not None),
    "minimum": _test((int, float), lambda v, w: v >= w),
    "maximum": _test((int, float), lambda v, w: v <= w),
    "exclusiveMinimum": _test((int, float), lambda v, w: v > w),
    "minItems": _test(list, lambda v, w: len(v) >= w),
    "maxItems": _test(list, lambda v, w: len(v) <= w),
}
