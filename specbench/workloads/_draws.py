"""Random draws of a load: a counter-based stream per seed and purpose, turned into numbers here.

NumPy promises that the bits of a generator stay the same between its versions, not what its distributions make of them;
arrivals are therefore computed from the bits, so that a seed means the same load everywhere.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, MutableSequence
from typing import Any

import numpy as np

_BLOCK = 1024


class Draws:
    """Independent numbers, the same for the same seed and purpose."""

    def __init__(self, seed: int, *, purpose: str) -> None:
        key = hashlib.sha256(f"{purpose}/{seed}".encode()).digest()[:16]
        self._bits = np.random.Philox(key=int.from_bytes(key, "little"))
        self._uniforms = self._stream()
        self._spare: float | None = None  # normals are made in pairs

    def _stream(self) -> Iterator[float]:
        while True:
            raw = self._bits.random_raw(_BLOCK)
            yield from ((raw >> np.uint64(11)) * 2.0**-53).tolist()

    def uniform(self) -> float:
        """In [0, 1), 53 bits."""
        return next(self._uniforms)

    def exponential(self) -> float:
        """Mean 1, by the inverse of its distribution function."""
        return -math.log1p(-self.uniform())

    def normal(self) -> float:
        """Mean 0, variance 1 (Box and Muller, 1958)."""
        if self._spare is not None:
            spare, self._spare = self._spare, None
            return spare
        radius, angle = math.sqrt(2.0 * self.exponential()), 2.0 * math.pi * self.uniform()
        self._spare = radius * math.sin(angle)
        return radius * math.cos(angle)

    def gamma(self, shape: float) -> float:
        """Mean and variance ``shape`` > 0 (Marsaglia and Tsang, ACM TOMS 26, 2000; below 1 by its section 6)."""
        if shape < 1.0:
            return self.gamma(shape + 1.0) * float((1.0 - self.uniform()) ** (1.0 / shape))
        d = shape - 1.0 / 3.0
        c = 1.0 / math.sqrt(9.0 * d)
        while True:
            x = self.normal()
            v = (1.0 + c * x) ** 3
            if v > 0.0 and math.log1p(-self.uniform()) < 0.5 * x * x + d - d * v + d * math.log(v):
                return d * v

    def shuffle(self, items: MutableSequence[Any]) -> None:
        """Bring the items into a random order, every order equally likely (Fisher and Yates)."""
        for last in range(len(items) - 1, 0, -1):
            other = int(self.uniform() * (last + 1))
            items[last], items[other] = items[other], items[last]
