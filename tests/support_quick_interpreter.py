"""Triton's interpreter at a usable pace: it prepares its language anew for every call of a device function, 2 ms each.

Once a launch has prepared a module, preparing it again within that launch changes nothing, so it is left out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any


class _Nothing:
    def restore(self) -> None:
        """Nothing was prepared."""


def install() -> None:
    """Prepare each module once a launch. Does nothing where Triton's interpreter has other parts than are known."""
    from triton.runtime import interpreter

    if not (hasattr(interpreter, "_patch_lang") and hasattr(interpreter, "GridExecutor")):
        return
    prepare: Callable[[Any], Any] = interpreter._patch_lang
    launch: Callable[..., Any] = interpreter.GridExecutor.__call__
    if hasattr(launch, "quick"):
        return
    prepared: set[frozenset[int]] = set()
    language = (interpreter.tl, interpreter.tl.core)

    @functools.cache
    def modules(fn: Any) -> frozenset[int]:
        return frozenset(id(v) for v in fn.__globals__.values() if isinstance(v, ModuleType) and v in language)

    def once(fn: Any) -> Any:
        key = modules(fn)
        if key in prepared:
            return _Nothing()
        prepared.add(key)
        return prepare(fn)

    @functools.wraps(launch)
    def quick(*args: Any, **kwargs: Any) -> Any:
        prepared.clear()
        try:
            return launch(*args, **kwargs)
        finally:
            prepared.clear()

    quick.quick = True  # type: ignore[attr-defined]
    interpreter._patch_lang = once
    interpreter.GridExecutor.__call__ = quick
