"""One kernel with the types and constants of a real call, so that it can be compiled where no GPU is.

A module of this package lists its kernels as ``VARIANTS: list[Variant]``; `make kernels` compiles them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Variant:
    """A kernel as it is launched for one stated shape, with the bytes that it moves there.

    ``types`` are Triton's names by argument ("*bf16", "*i32", "i32", "fp32"); arguments that are named in ``constants``
    are left out of it. ``aligned`` lists the arguments (pointers, strides) that are multiples of 16. ``moved`` counts
    every byte that the kernel asks memory for, ``fewest`` each input once and each output once.
    """

    kernel: Any  # a function decorated with triton.jit
    dtype: str  # of the tensors that carry the bulk of the bytes: "bf16", "fp16", "fp32"
    shape: str  # for the reader: what the byte counts are for
    types: Mapping[str, str]
    constants: Mapping[str, Any]
    moved: int
    fewest: int
    aligned: tuple[str, ...] = field(default=())
    num_warps: int = 4
    num_stages: int = 3

    @property
    def name(self) -> str:
        """The kernel's function name."""
        return str(self.kernel.__name__)
