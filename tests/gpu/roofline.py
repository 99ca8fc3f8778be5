"""The fewest bytes and operations that a target's forward over a step needs.

Every weight of a product is read once whatever the number of tokens; keys and values of every row's context are read
once and those of the step's tokens written once; logits are written once. Embedding rows, norms and activations are
left out, so the floor is too low rather than too high.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.gpu.scales import TargetShape


@dataclass(frozen=True, slots=True)
class Work:
    """Of one forward."""

    bytes_moved: int
    operations: int


def product_weights(shape: TargetShape) -> int:
    """Weights that are multiplied with every token: projections, MLPs and the head."""
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    layer = 2 * shape.hidden * queries + 2 * shape.hidden * keys + 3 * shape.hidden * shape.intermediate
    return shape.layers * layer + shape.vocab * shape.hidden


def cached_bytes(shape: TargetShape, *, itemsize: int) -> int:
    """Keys and values of one token in all layers."""
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * itemsize


def forward_work(shape: TargetShape, *, rows: int, tokens_per_row: int, context: int, itemsize: int) -> Work:
    """``rows`` rows with ``context`` cached tokens each and ``tokens_per_row`` new ones, all with logits."""
    tokens = rows * tokens_per_row
    seen = rows * sum(context + index + 1 for index in range(tokens_per_row))  # pairs of a query and a key
    weights = product_weights(shape)
    moved = (
        weights * itemsize
        + (rows * context + tokens) * cached_bytes(shape, itemsize=itemsize)
        + tokens * shape.vocab * itemsize
    )
    operations = 2 * weights * tokens + 4 * shape.layers * shape.heads * shape.head_dim * seen
    return Work(moved, operations)
