"""A CUDA graph's rules on a CPU: what a function does to tensors is taped once and replayed on the same memory.

Everything that the host decided while it was taped stays so, tensors that it made keep their place, and whatever would
need to look at the device while it is captured is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

LOOKS = {"_local_scalar_dense", "item", "nonzero", "masked_select", "unique_dim", "_unique2", "is_nonzero", "equal"}


def looks(func: Any, args: Any) -> bool:
    """Whether an operation must know what a tensor holds before the host can go on."""
    name = func._schema.name.split("::")[1]
    if name in LOOKS or (name == "repeat_interleave" and len(args) == 1):
        return True
    index = args[1] if name in ("index", "index_put", "index_put_") else ()
    return any(isinstance(i, Tensor) and i.dtype in (torch.bool, torch.uint8) for i in index)


def _places(value: Any) -> set[int]:
    return {leaf.untyped_storage().data_ptr() for leaf in tree_leaves(value) if isinstance(leaf, Tensor)} - {0}


class _Taping(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if looks(func, args):
            raise RuntimeError(f"{func} looks at the device while it is captured")
        out = func(*args, **kwargs)
        self.calls.append((func, args, kwargs, out))
        return out


class Tape:
    """What a recorder returns."""

    def __init__(self, function: Callable[[], Any]) -> None:
        with _Taping() as taping:
            self.outputs = function()
        self._calls = taping.calls
        fresh = []
        for _, args, kwargs, out in self._calls:  # what an operation made itself is garbage until it is replayed
            if not _places(out) & _places((args, kwargs)):
                fresh.append(out)
        tree_map_only(Tensor, _spoil, fresh)

    def replay(self) -> None:
        """Every operation again, its results put where they were at first."""
        for func, args, kwargs, out in self._calls:
            again = func(*args, **kwargs)
            if _places(out) & _places((args, kwargs)):
                continue  # a view, or written in place
            for old, new in zip(tree_leaves(out), tree_leaves(again), strict=True):
                if isinstance(old, Tensor):
                    old.copy_(new)


def _spoil(tensor: Tensor) -> Tensor:
    return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor


class Taped:
    """A recorder that counts its tapes; the first call runs the function, as capturing does."""

    def __init__(self) -> None:
        self.tapes = 0

    def __call__(self, stage: str, function: Callable[[], Any]) -> Tape:
        del stage
        function()
        self.tapes += 1
        return Tape(function)
