"""Twins against their definitions on the device at the sizes of real runs, which an interpreter cannot reach."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from specbench.engine.target import Target
from specbench.kernels.dispatch import VARIABLE
from specbench.kernels.probs import process_logits
from specbench.kernels.rng import Purpose, uniform
from specbench.kernels.sample import sample
from specbench.kernels.top import top_two
from specbench.types import Taps
from tests.gpu.forwards import Forward, make_pool
from tests.gpu.models import random_target
from tests.gpu.scales import QWEN3_4B, TINY, Scale, TargetShape

Check = Callable[[], None]
_RELATIVE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
"""Error of logits over their norm: sums in another order, and in bfloat16 roundings in another place."""


@contextmanager
def definitions() -> Iterator[None]:
    """Operations as plain torch, also on a GPU."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "torch"
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def checks(scale: Scale) -> Iterator[tuple[str, Check]]:
    """Name and check of each; a check raises AssertionError."""
    rows, vocab = (5, TINY.vocab) if scale.dry else (256, QWEN3_4B.vocab)
    yield f"top two of {rows} x {vocab}", lambda: _top(scale, rows, vocab)
    yield f"processing and sampling of {rows} x {vocab}", lambda: _sampling(scale, rows, vocab)
    dtypes = (torch.float32,) if scale.dry else (torch.bfloat16, torch.float32)
    for dtype in dtypes:
        for cached in scale.contexts:
            for tokens in (1, min(scale.blocks) + 1, max(scale.blocks) + 1):
                name = f"forward over {cached} cached tokens, {tokens} new ones, {str(dtype).removeprefix('torch.')}"
                yield name, lambda d=dtype, c=cached, t=tokens: _forward(scale, d, cached=c, tokens=t)


def _logits(scale: Scale, rows: int, vocab: int) -> Tensor:
    noise = torch.Generator(scale.device).manual_seed(1)
    return (3 * torch.randn(rows, vocab, generator=noise, device=scale.device)).to(scale.dtype)


def _top(scale: Scale, rows: int, vocab: int) -> None:
    logits = _logits(scale, rows, vocab)
    found = top_two(logits)
    with definitions():
        expected = top_two(logits)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs), f"{int((ours != theirs).sum())} of {rows} rows differ"


def _sampling(scale: Scale, rows: int, vocab: int) -> None:
    logits = _logits(scale, rows, vocab)
    number = torch.arange(rows, device=scale.device)
    u = uniform(number * 0, number, number + 7, offsets=1, purpose=Purpose.NEXT)[:, 0]
    settings = {
        "temperature": torch.where(number % 3 == 0, 0.7, 1.0).to(torch.float32),
        "top_p": torch.where(number % 2 == 0, 1.0, 0.95).to(torch.float32),
        "top_k": torch.where(number % 5 == 0, 50, vocab),
    }

    def drawn() -> tuple[Tensor, Tensor, Tensor]:
        processed, normaliser = process_logits(logits, **settings, any_truncated=True)
        return torch.isfinite(processed).sum(dim=1), normaliser, sample(processed, normaliser, u)

    (kept, normaliser, tokens) = drawn()
    with definitions():
        kept_there, normaliser_there, tokens_there = drawn()
    # a sum of probabilities within rounding of top-p may let one token more or less in
    assert int((kept - kept_there).abs().max()) <= 1, "truncation keeps another number of tokens"
    same = kept == kept_there
    assert int(same.sum()) >= 0.95 * rows, f"truncation differs in {int((~same).sum())} of {rows} rows"
    torch.testing.assert_close(normaliser[same], normaliser_there[same], rtol=1e-5, atol=1e-5)
    assert torch.equal(tokens[same], tokens_there[same]), "the same uniforms draw other tokens"


def _shape(scale: Scale) -> TargetShape:
    """Two layers with the heads of a real target."""
    if scale.dry:
        return TINY
    return TargetShape("two layers", 2, 512, 32, 8, 128, 1024, 4096, True, (1,), "heads of Qwen3-4B")


def _forward(scale: Scale, dtype: torch.dtype, *, cached: int, tokens: int) -> None:
    """Logits of five rows through the engine's model, with twins and without."""
    target: Target = random_target(_shape(scale), device=scale.device, dtype=dtype)
    target.lm.set_taps(Taps())
    pool = make_pool(target, rows=5, tokens=cached + tokens)
    options = {"rows": 5, "tokens_per_row": tokens, "cached": cached, "pool": pool}
    found = Forward(target, **options)().float()
    with definitions():
        expected = Forward(target, **options)().float()
    error = float((found - expected).norm() / expected.norm())
    assert error < _RELATIVE[dtype], f"logits differ by {error:.2e} of their norm"
