"""Typed reading of configuration dictionaries: a wrong type names its key, a null counts as absent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar, cast

from specbench.errors import CheckpointError

_LARGEST = 1 << 40  # no size in a configuration is larger; keeps absurd integers out of the arithmetic

Default = TypeVar("Default")


class _Required:
    """The default of a key that must be there."""


REQUIRED = _Required()


class Fields:
    """Keys of several dictionaries; the first that has the key wins. ``where`` begins every error."""

    def __init__(self, *layers: Mapping[str, Any] | None, where: str) -> None:
        self.layers = tuple(layer for layer in layers if layer is not None)
        self.where = where

    def has(self, key: str) -> bool:
        """Whether some dictionary gives the key a value."""
        return self.raw(key) is not None

    def raw(self, key: str) -> Any:
        """The value of the key, None where it is absent."""
        for layer in self.layers:
            if layer.get(key) is not None:
                return layer[key]
        return None

    def _value(self, key: str, default: object) -> Any:
        found = self.raw(key)
        if found is None and default is REQUIRED:
            raise CheckpointError(f"{self.where}: config.json has no '{key}'; this format needs it")
        return found

    def _wrong(self, key: str, expected: str, found: object) -> CheckpointError:
        text = repr(found)
        text = text if len(text) <= 60 else text[:57] + "..."
        return CheckpointError(f"{self.where}: config key '{key}' must be {expected}, found {text}")

    def integer(self, key: str, *, default: Default | _Required = REQUIRED, minimum: int = 1) -> int | Default:
        """A whole number of at least ``minimum``."""
        found = self._value(key, default)
        if found is None:
            return cast("Default", default)
        if isinstance(found, bool) or not isinstance(found, int) or not minimum <= found <= _LARGEST:
            raise self._wrong(key, f"a whole number of at least {minimum}", found)
        return found

    def number(self, key: str, *, default: Default | _Required = REQUIRED, positive: bool = True) -> float | Default:
        """A finite number, by default above zero."""
        found = self._value(key, default)
        if found is None:
            return cast("Default", default)
        wanted = "a finite number" + (" above 0" if positive else "")
        if isinstance(found, bool) or not isinstance(found, int | float) or abs(found) > 1e30:
            raise self._wrong(key, wanted, found)
        if not math.isfinite(found) or (positive and found <= 0):
            raise self._wrong(key, wanted, found)
        return float(found)

    def boolean(self, key: str, *, default: Default | _Required = REQUIRED) -> bool | Default:
        """True or false."""
        found = self._value(key, default)
        if found is None:
            return cast("Default", default)
        if not isinstance(found, bool):
            raise self._wrong(key, "true or false", found)
        return found

    def string(
        self, key: str, *, default: Default | _Required = REQUIRED, choices: tuple[str, ...] = ()
    ) -> str | Default:
        """A string, one of ``choices`` where given."""
        found = self._value(key, default)
        if found is None:
            return cast("Default", default)
        if not isinstance(found, str) or (choices and found not in choices):
            raise self._wrong(key, " or ".join(choices) or "a string", found)
        return found

    def ids(self, key: str, *, default: Default | _Required = REQUIRED) -> tuple[int, ...] | Default:
        """A list of whole numbers, as a tuple."""
        found = self._value(key, default)
        if found is None:
            return cast("Default", default)
        wanted = "a list of whole numbers"
        if not isinstance(found, list | tuple) or not found:
            raise self._wrong(key, wanted, found)
        if any(isinstance(i, bool) or not isinstance(i, int) or abs(i) > _LARGEST for i in found):
            raise self._wrong(key, wanted, found)
        return tuple(found)

    def strings(self, key: str, *, default: Default | _Required = REQUIRED) -> tuple[str, ...] | Default:
        """A list of strings, as a tuple."""
        found = self._value(key, default)
        if found is None:
            return cast("Default", default)
        if not isinstance(found, list | tuple) or not all(isinstance(text, str) for text in found):
            raise self._wrong(key, "a list of strings", found)
        return tuple(found)

    def mapping(self, key: str) -> dict[str, Any] | None:
        """A dictionary, None where the key is absent."""
        found = self.raw(key)
        if found is None:
            return None
        if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
            raise self._wrong(key, "a dictionary", found)
        return dict(found)


def architecture(config: Mapping[str, Any]) -> str:
    """The first entry of ``architectures``, empty where there is none."""
    found = config.get("architectures")
    return found[0] if isinstance(found, list) and found and isinstance(found[0], str) else ""
