"""Plain decoding: against transformers' generate, against the forward alone, and what a cycle spends outside it."""

from __future__ import annotations

import statistics
from time import perf_counter
from typing import Any

import torch
from specbench_drafters.vanilla import VanillaDrafter
from torch import nn

from specbench.engine.target import Target
from specbench.modeling.cpu_linear import NarrowLinear
from specbench.modeling.layout import BatchLayout, RowSpan
from specbench.modeling.packed_linear import PackedLinear
from specbench.modeling.pool import PAGE, KVPool, pages_for, pool_dtype
from specbench.types import Request, Taps
from tests.bench.support_demo import decode_rate, median_ms, model_path, reference, requests, serve, show, use_threads

REPEATS = 5
NEW = 40
LOADS = (1, 8, 32)


def generate_rate(model: Any, request: Request) -> float:
    """Decode tokens a second of generate: the time of NEW tokens less that of one, over NEW - 1."""
    ids = torch.tensor([request.prompt_ids])

    def once(count: int) -> float:
        start = perf_counter()
        with torch.inference_mode():
            model.generate(ids, max_new_tokens=count, min_new_tokens=count, do_sample=False)
        return perf_counter() - start

    return (NEW - 1) / (once(NEW) - once(1))


def forward_ms(target: Target, *, rows: int, length: int) -> float:
    """Median time of one forward of ``rows`` tokens at contexts of ``length``, with nothing around it."""
    lm = target.lm
    lm.set_taps(Taps())
    need = pages_for(length)
    tokens = rows * need * PAGE
    held = pool_dtype(lm.layer_shapes, dtype=lm.dtype, device=lm.device, tokens=tokens, budget_bytes=None)
    pool = KVPool(lm.layer_shapes, num_pages=rows * need, dtype=held, device=lm.device)
    spans = [RowSpan(r, 1, length, pool.take(need) or []) for r in range(rows)]
    ids = torch.full((rows,), 100)

    def run() -> None:
        layout = BatchLayout.build(spans, lm.device)
        lm.forward(ids, layout=layout, pool=pool, logits_at=None).logits.argmax(-1)

    return median_ms(run, repeats=15)


def read_bandwidth() -> float:
    """Bytes a second of reading memory: the sum of a float32 tensor far larger than any cache."""
    big = torch.ones(64 * 2**20)
    return big.numel() * 4 / (median_ms(lambda: big.sum(), repeats=9) / 1e3)


def read_bytes(target: Target) -> int:
    """Bytes of weights that one decode step reads: all of them, of embeddings that are not the head one row."""
    layers = (m for m in target.model.modules() if isinstance(m, (nn.Linear, NarrowLinear, PackedLinear)))
    return sum(m.read_bytes if isinstance(m, PackedLinear) else m.weight.nbytes for m in layers)


def outside(trace: Any, *, rows: int) -> float:
    """Share of full decode cycles that is neither drafting nor the target's forward."""
    steps = [s for s in trace.steps if s.decode_rows == rows and s.prefill_tokens == 0]
    return sum(s.schedule_s + s.accept_s + s.other_s for s in steps) / sum(s.total_s for s in steps)


def main() -> None:
    """Print one block per dtype."""
    threads = use_threads()
    bandwidth = read_bandwidth()
    for dtype in ("float32", "bfloat16"):
        target = Target.load(model_path(), dtype=dtype)
        plain = reference(dtype)
        wanted = requests("starter-chat", 32, new=NEW, ignore_eos=True, target=target)
        length = int(statistics.median(len(r.prompt_ids) for r in wanted)) + NEW // 2
        rates: dict[int, list[float]] = {c: [] for c in LOADS}
        shares: dict[int, list[float]] = {c: [] for c in LOADS}
        ceilings: dict[int, list[float]] = {c: [] for c in LOADS}
        ratios: list[float] = []
        generate: list[float] = []
        for repeat in range(REPEATS):
            generate.append(generate_rate(plain, wanted[repeat]))
            for c in LOADS:
                batch = wanted[repeat : repeat + 1] if c == 1 else wanted[:c]
                trace = serve(target, VanillaDrafter(), batch, k=0, rows=c)
                rates[c].append(decode_rate(trace, rows=c))
                shares[c].append(outside(trace, rows=c))
                ceilings[c].append(c / forward_ms(target, rows=c, length=length) * 1e3)
            ratios.append(rates[1][-1] / generate[-1])
        weights = read_bytes(target)
        print(f"\n{dtype}, {threads} threads: a step reads {weights / 1e6:.0f} MB of weights at most")
        print(f"  at {bandwidth / 1e9:.1f} GB/s that limits one row to {bandwidth / weights:.1f} tok/s")
        print(f"  generate            {show(generate, 1)} tok/s")
        print(f"  vanilla / generate  {show(ratios, 3)}")
        for c in LOADS:
            times = [r / one for r, one in zip(rates[c], rates[1], strict=True)]
            ceiling = [r / most for r, most in zip(rates[c], ceilings[c], strict=True)]
            print(
                f"  concurrency {c:2d}: {show(rates[c], 1)} tok/s, {show(times, 2)} x one row, "
                f"{show(ceiling, 3)} of the forward alone ({statistics.median(ceilings[c]):.1f}), "
                f"outside forwards {statistics.median(shares[c]):.2%}",
                flush=True,
            )
