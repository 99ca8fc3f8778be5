"""The demo model and rendered prompts for timings, and small statistics."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from specbench import provenance, registry
from specbench.api import Drafter
from specbench.engine.engine import Engine
from specbench.engine.policies.fixed import FixedPolicy
from specbench.engine.target import DTYPES, Target
from specbench.prompting import Limits, PromptSet, Renderer
from specbench.resolve import resolve_target
from specbench.types import Request, RunTrace, Sampling


def use_threads() -> int:
    """The thread count that a run would choose, set and printed."""
    count = provenance.default_threads()
    torch.set_num_threads(count)
    busy = provenance.machine_busy()
    print(f"threads {count}; {busy or 'machine idle'}")
    return count


def model_path() -> str:
    return str(resolve_target("smollm2-135m").path)


def reference(dtype: str) -> Any:
    """The demo model as transformers runs it."""
    return AutoModelForCausalLM.from_pretrained(model_path(), dtype=DTYPES[dtype]).eval()


def requests(
    task: str, count: int, *, new: int, ignore_eos: bool, target: Target, sampling: Sampling | None = None
) -> list[Request]:
    """The first turns of a task as requests."""
    tokenizer = AutoTokenizer.from_pretrained(model_path())
    loaded = registry.load("tasks", task)
    prompts = PromptSet(tuple(loaded.prompts(limit=count, seed=0)), Renderer(tokenizer), tasks=((task, "1"),))
    limits = Limits(
        max_new_tokens=new,
        max_context=2048,
        ignore_eos=ignore_eos,
        stop_ids=target.stop_ids,
        sampling=sampling or Sampling(),
        seed=0,
    )
    return [prompts.request(p, (), limits=limits) for p in prompts.prompts]


def serve(
    target: Target, drafter: Drafter, wanted: Sequence[Request], *, k: int, rows: int, **options: Any
) -> RunTrace:
    """All requests through the engine, ``rows`` at a time."""
    longest = max(len(r.prompt_ids) + r.max_new_tokens for r in wanted)
    engine = Engine(target, drafter, FixedPolicy(k), max_rows=rows, max_context=longest, **options)
    for request in wanted:
        engine.submit(request)
    while engine.has_work:
        engine.poll()
    return engine.close()


def decode_rate(trace: RunTrace, *, rows: int) -> float:
    """Committed tokens a second over the full decode steps: all rows decoding, no prompt tokens beside them."""
    steps = {s.step: s.total_s for s in trace.steps if s.decode_rows == rows and s.prefill_tokens == 0}
    tokens = sum(r.committed for r in trace.rounds if r.step in steps)
    return tokens / sum(steps.values())


def median_ms(run: Callable[[], Any], *, repeats: int, warm: int = 2) -> float:
    """Median wall time of a call in milliseconds."""
    for _ in range(warm):
        run()
    spent = []
    for _ in range(repeats):
        start = perf_counter()
        run()
        spent.append(perf_counter() - start)
    return statistics.median(spent) * 1e3


def show(values: Sequence[float], digits: int = 2) -> str:
    """Median with the smallest and largest."""
    return f"{statistics.median(values):.{digits}f} [{min(values):.{digits}f}, {max(values):.{digits}f}]"
