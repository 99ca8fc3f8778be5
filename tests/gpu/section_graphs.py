"""CUDA graphs against launches call by call, and how much of a round no kernel is running."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from specbench.engine.engine import Engine
from tests.gpu.context import Context
from tests.gpu.engines import seated
from tests.gpu.findings import Findings
from tests.gpu.seating import Split, rounds
from tests.gpu.timing import Budget, wait

OUTSIDE = 5.0  # per cent of a round outside kernels: the aim
_PROFILED = 4  # rounds under the profiler


def run(context: Context, found: Findings) -> None:
    """DSpark at a few batches, both loops; the share outside kernels is judged where graphs are used."""
    scale, shape, k = context.scale, context.scale.targets[0], context.scale.blocks[0]
    table = found.table(f"{shape.name}, dspark, {k} drafts, {scale.contexts[0]} cached: both loops",
                        "batch", "loop", "round ms", "spread %", "T_draft ms", "T_verify ms", "other phases ms",
                        "kernels ms", "outside kernels %")  # fmt: skip
    worst: dict[bool, float] = {}
    batches = scale.batches[:4]
    bench = seated(context, shape, "dspark", k=k, batches=batches, cached=scale.contexts[0])
    cases = [(rows, graphs) for rows in batches for graphs in (True, False)]
    for index, (rows, graphs) in enumerate(cases):
        if index and context.budget.left() <= 0:
            found.cut.append(f"{len(cases) - index} of {len(cases)} cases")
            break
        part = context.budget.share(1 / (len(cases) - index))
        bench.use(rows, graphs=graphs)
        timed_rounds = max(3, scale.repeats - _PROFILED)
        split = Split.of(rounds(bench.engine, warmup=scale.warmup, repeats=timed_rounds, budget=part))
        reason = bench.not_padded() if graphs else None
        if reason is not None:
            found.notes.append(f"graphs were not used: {reason}")
            continue
        busy_s = _kernel_seconds(bench.engine, found) if scale.cuda else None
        outside = None if busy_s is None else 100 * max(0.0, 1 - busy_s / split.whole.median_s)
        if outside is not None:
            worst[graphs] = max(worst.get(graphs, 0.0), outside)
        rest = split.whole.median_ms - split.draft.median_ms - split.verify.median_ms
        table.add(rows, "graphs" if graphs else "plain", split.whole.median_ms, 100 * split.whole.spread,
                  split.draft.median_ms, split.verify.median_ms, rest,
                  None if busy_s is None else 1e3 * busy_s, outside)  # fmt: skip
        context.flush()
    if True in worst:
        found.aim("a round's time outside kernels, worst case", worst[True], limit=OUTSIDE, unit="%", judged=True)
    found.notes.append(
        "Kernels: device time during which at least one kernel or copy ran, from the profiler, over other rounds than "
        "those timed; outside: the rest of the median round."
    )


def _kernel_seconds(engine: Engine, found: Findings) -> float | None:
    """Device-busy seconds of one round, from `_PROFILED` rounds under the profiler; None where it saw no kernel."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    device = engine.lm.device
    wait(device)
    with torch.profiler.profile(activities=activities) as profiler:
        rounds(engine, warmup=0, repeats=_PROFILED, budget=Budget(30.0), least=_PROFILED)
        wait(device)
    spans = [
        (event.time_range.start, event.time_range.end)
        for event in profiler.events() or []
        if event.device_type == torch.autograd.DeviceType.CUDA
    ]
    if not spans:
        found.notes.append("the profiler saw no kernel: the time outside kernels is not known")
        return None
    return union_length(spans) * 1e-6 / _PROFILED


def union_length(spans: Iterable[tuple[float, float]]) -> float:
    """Length of what the spans cover, overlaps once."""
    total, reach = 0.0, float("-inf")
    for start, end in sorted(spans):
        if end > reach:
            total += end - max(start, reach)
            reach = end
    return total
