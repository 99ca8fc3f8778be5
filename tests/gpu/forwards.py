"""The target's forward alone, over rows whose contexts are cached: launched call by call, or as one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from specbench.engine.target import Target
from specbench.modeling.layout import BatchLayout, RowSpan
from specbench.modeling.pool import KVPool, pages_for
from tests.gpu.seating import fill


class Forward:
    """One flat batch of ``rows`` rows with ``tokens_per_row`` tokens over ``cached`` cached ones."""

    def __init__(self, target: Target, *, rows: int, tokens_per_row: int, cached: int, pool: KVPool) -> None:
        each = pages_for(cached + tokens_per_row)
        assert rows * each <= pool.num_pages, "the pool was sized for less"
        spans = [
            RowSpan(row * tokens_per_row, tokens_per_row, cached + tokens_per_row, range(row * each, (row + 1) * each))
            for row in range(rows)
        ]
        self._lm, self._pool = target.lm, pool
        self._layout = BatchLayout.build(spans, target.lm.device)
        noise = torch.Generator().manual_seed(0)
        ids = torch.randint(0, target.vocab_size, (rows * tokens_per_row,), generator=noise)
        self._ids = ids.to(target.lm.device)

    def __call__(self) -> Tensor:
        """Logits [T, V]."""
        return self._lm.forward(self._ids, layout=self._layout, pool=self._pool, logits_at=None).logits

    def captured(self) -> Callable[[], Any]:
        """The same as one graph. Errors: RuntimeError where something in it cannot be captured."""
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            self()
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = self()

        def replay() -> Tensor:
            graph.replay()
            return kept

        return replay


def make_pool(target: Target, *, rows: int, tokens: int) -> KVPool:
    """Random keys and values for ``rows`` rows of at most ``tokens`` tokens."""
    lm = target.lm
    pool = KVPool(lm.layer_shapes, num_pages=rows * pages_for(tokens), dtype=lm.dtype, device=lm.device)
    fill(pool)
    return pool


COMPILED = ("mlp", "norm")
"""Modules whose class name holds one of these are compiled: what lies between the products, not attention itself."""


@contextmanager
def compiled(target: Target, *, backend: str) -> Iterator[int]:
    """The target with its MLPs and norms through torch.compile, for any number of tokens; how many modules those are.

    Attention stays the engine's own operation, and so does every product of attention's projections.
    """
    torch._dynamo.reset()
    chosen = [
        module
        for module in target.model.modules()
        if any(word in type(module).__name__.lower() for word in COMPILED) and not isinstance(module, nn.ModuleList)
    ]
    for module in chosen:
        module.forward = torch.compile(module.forward, dynamic=True, backend=backend)
    try:
        yield len(chosen)
    finally:
        for module in chosen:
            del module.forward
        torch._dynamo.reset()
