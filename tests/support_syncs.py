"""Counts how often the host looks at tensors: on a CUDA device each would wait for everything that was started."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from support_tape import looks
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

METHODS = ("tolist", "item", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__")


class _Watching(TorchDispatchMode):
    def __init__(self, found: Counter[str]) -> None:
        super().__init__()
        self._found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if looks(func, args) and not self._found["inside"]:
            self._found[str(func)] += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Looks by name while it lasts: methods of tensors, and operations whose result has the size of what they find."""
    found: Counter[str] = Counter()

    def watched(name: str) -> Any:
        honest = getattr(Tensor, name)

        def method(self: Tensor, *args: Any, **kwargs: Any) -> Any:
            outermost = not found["inside"]
            found[name] += outermost
            found["inside"] += 1
            try:
                return honest(self, *args, **kwargs)
            finally:
                found["inside"] -= 1

        return method

    patches = [patch.object(Tensor, name, watched(name)) for name in METHODS]
    for one in patches:
        one.start()
    try:
        with _Watching(found):
            yield found
    finally:
        for one in patches:
            one.stop()
        del found["inside"]
        for name in [name for name, count in found.items() if not count]:
            del found[name]
