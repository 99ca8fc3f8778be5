"""Values as users write them: sizes, TOML texts, NAME=VALUE pairs, a wanted accepted length. No torch here."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from specbench.errors import ConfigError

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def parse_bytes(text: object) -> int:
    """A size: bytes, or a number with kB, MB, GB, KiB, MiB, GiB. Errors: ValueError."""
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", str(text))
    if not found or found[2].lower() not in _UNITS:
        raise ValueError(f"'{text}' is not a size; write for example 2GiB or 512MiB")
    return int(float(found[1]) * _UNITS[found[2].lower()])


def read_toml(path: Path) -> dict[str, Any]:
    """A run's TOML file. Errors: ConfigError naming the file and the line."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}; check the path") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}; correct that place") from error


def parse_value(text: str) -> Any:
    """A value of ``--set``: TOML syntax where it is that (numbers, booleans, lists), else the text itself."""
    if "\n" in text:
        return text
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text


def geometric_rate(tau: float, *, draft_length: int) -> float:
    """The rate a with 1 + a + a^2 + ... + a^k = tau, by bisection: acceptance falls geometrically with position.

    Errors: ConfigError when tau is above k + 1.
    """
    if tau > draft_length + 1:
        raise ConfigError(
            f"synthetic tau {tau:g} is out of reach with {draft_length} drafts a cycle: at most {draft_length + 1}"
        )
    if tau in (1, draft_length + 1):
        return float(tau > 1)
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        reached = sum(middle**k for k in range(draft_length + 1))
        low, high = (middle, high) if reached < tau else (low, middle)
    return (low + high) / 2


def parse_pairs(texts: Iterable[str], *, flag: str) -> dict[str, str]:
    """``NAME=VALUE`` texts of a repeatable flag as a dictionary. Errors: ConfigError for another shape or a repeat."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals or not value:
            raise ConfigError(f"{flag} '{text}' is not NAME=PATH; write for example {flag} mtp=path/to/checkpoint")
        if name in pairs:
            raise ConfigError(f"{flag} gives '{name}' twice; give it once")
        pairs[name] = value
    return pairs
