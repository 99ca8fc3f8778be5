"""What DSpark's sequential head adds to a round: rounds with its heads against rounds without, turn by turn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from specbench.engine.engine import Engine
from specbench.types import Sampling, StepTrace
from tests.gpu.context import Context
from tests.gpu.engines import seated
from tests.gpu.findings import Findings, Table
from tests.gpu.scales import TargetShape
from tests.gpu.seating import Split, rounds
from tests.gpu.timing import Budget

SHARE = 1.3  # per cent of a round: the aim, the upper end of what the paper prints (figure 4)
_TURNS = 3


@contextmanager
def without_heads(engine: Engine) -> Iterator[None]:
    """The engine's block drafter with neither sequential nor confidence head: what is left is DFlash's round."""
    model: Any = engine.drafter.model  # type: ignore[attr-defined]
    kept = model.markov_head, model.confidence_head
    model.markov_head = model.confidence_head = None
    try:
        yield
    finally:
        model.markov_head, model.confidence_head = kept


def run(context: Context, found: Findings) -> None:
    """Batch 128 (dry: 3), each context, greedy and sampled, plain and padded rounds."""
    scale, shape = context.scale, context.scale.targets[0]
    table = found.table(f"{shape.name}, {scale.head_rows} rows, {scale.blocks[0]} drafts: rounds in ms",
                        "context", "temperature", "loop", "with heads", "without", "added ms", "added % of the round",
                        "spread %")  # fmt: skip
    worst: dict[str, float] = {}
    cases = [
        (cached, heat, graphs)
        for graphs in (True, False)
        for cached in scale.head_contexts
        for heat in (0.0, 1.0)
    ]  # fmt: skip
    for index, (cached, heat, graphs) in enumerate(cases):
        if index and context.budget.left() <= 0:
            found.cut.append(f"{len(cases) - index} of {len(cases)} cases")
            break
        part = context.budget.share(1 / (len(cases) - index))
        loop = "graphs" if graphs else "plain"
        share = _case(context, found, table, shape, cached=cached, heat=heat, graphs=graphs, budget=part)
        if share is not None:
            worst[loop] = max(worst.get(loop, share), share)
        context.flush()
    for loop in ("graphs", "plain"):
        if loop in worst:  # the aim is for the loop that a GPU is meant to run
            found.aim(f"sequential and confidence head at batch {scale.head_rows}, worst case", worst[loop],
                      limit=SHARE, unit="% of a round", judged=scale.cuda)  # fmt: skip
            break
    found.notes.append("Both heads are counted; the paper gives 0.2 to 1.3 % for its sequential head at batch 128.")


def _case(
    context: Context,
    found: Findings,
    table: Table,
    shape: TargetShape,
    *,
    cached: int,
    heat: float,
    graphs: bool,
    budget: Budget,
) -> float | None:
    """Per cent that the heads add, None where the loop could not be used."""
    sampling = Sampling(temperature=heat)
    if graphs:
        both = _captured(context, found, shape, cached=cached, sampling=sampling, budget=budget)
    else:
        both = _by_turns(context, shape, cached=cached, sampling=sampling, budget=budget)
    if both is None:
        return None
    full, bare = Split.of(both[0]).whole, Split.of(both[1]).whole
    added = full.median_s - bare.median_s
    share = 100 * added / bare.median_s
    table.add(cached, heat, "graphs" if graphs else "plain", full.median_ms, bare.median_ms, 1e3 * added, share,
              100 * max(full.spread, bare.spread))  # fmt: skip
    return share


def _by_turns(
    context: Context, shape: TargetShape, *, cached: int, sampling: Sampling, budget: Budget
) -> tuple[list[StepTrace], list[StepTrace]]:
    """One engine whose rounds take turns with and without heads, so that both see the same clocks."""
    scale, k = context.scale, context.scale.blocks[0]
    rows = scale.head_rows
    bench = seated(context, shape, "dspark", k=k, batches=(rows,), cached=cached, graphs=False, sampling=sampling)
    engine = bench.engine
    full: list[StepTrace] = []
    bare: list[StepTrace] = []
    each = max(2, scale.repeats // (2 * _TURNS))
    rounds(engine, warmup=scale.warmup, repeats=0, budget=budget)
    for turn in range(_TURNS if scale.cuda else 1):
        if turn and budget.left() <= 0:
            break
        full += rounds(engine, warmup=0, repeats=each, budget=budget)
        with without_heads(engine):
            bare += rounds(engine, warmup=0, repeats=each, budget=budget)
    return full, bare


def _captured(
    context: Context, found: Findings, shape: TargetShape, *, cached: int, sampling: Sampling, budget: Budget
) -> tuple[list[StepTrace], list[StepTrace]] | None:
    """Two engines, one after the other: a graph holds its heads for good."""
    scale, k = context.scale, context.scale.blocks[0]
    both: list[list[StepTrace]] = []
    for bare in (False, True):
        rows = scale.head_rows
        bench = seated(context, shape, "dspark", k=k, batches=(rows,), cached=cached, sampling=sampling)
        engine, part = bench.engine, budget.share(0.5)
        with without_heads(engine) if bare else nullcontext():
            both.append(rounds(engine, warmup=scale.warmup, repeats=scale.repeats, budget=part))
        reason = bench.not_padded()
        del bench, engine
        context.free()
        if reason is not None:
            found.notes.append(f"graphs were not used for dspark: {reason}")
            return None
    return both[0], both[1]
