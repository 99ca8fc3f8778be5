"""Keys and values of a step's tokens into their pages."""

from __future__ import annotations

from torch import Tensor

from specbench.kernels.dispatch import uses_triton


def scatter_kv(keys: Tensor, values: Tensor, *, slots: Tensor, key: Tensor, value: Tensor) -> None:
    """Store each token's key and value, of every head, at its slot.

    Args:
        keys, values: [pages, PAGE, Hkv, Dk] and [pages, PAGE, Hkv, Dv], any layout in memory; written in place.
        slots: [T] int64, page * PAGE + offset.
        key, value: [T, Hkv, Dk] and [T, Hkv, Dv], of the pool's dtype.
    """
    if uses_triton(keys):
        from specbench.kernels._triton import scatter as twin

        twin.scatter_kv(keys, values, slots=slots, key=key, value=value)
        return
    keys.flatten(0, 1).index_copy_(0, slots, key)
    values.flatten(0, 1).index_copy_(0, slots, value)
