"""T_draft and T_verify of whole rounds in the engine: by method, block, batch and context, against the roofline."""

from __future__ import annotations

from dataclasses import dataclass

from tests.gpu.context import Context
from tests.gpu.engines import seated
from tests.gpu.findings import Findings, Table
from tests.gpu.models import METHODS
from tests.gpu.roofline import forward_work
from tests.gpu.scales import TargetShape
from tests.gpu.seating import Split, rounds
from tests.gpu.section_sps import RATIO
from tests.gpu.timing import Budget

_COLUMNS = ("target", "method", "k", "context", "batch", "loop", "T_draft ms", "T_schedule ms", "T_verify ms",
            "T_accept ms", "T_other ms", "round ms", "spread %", "floor ms", "T_verify / floor")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Group:
    """Rounds that one engine can show: a contestant at one context, any batch."""

    shape: TargetShape
    method: str
    k: int
    cached: int


def groups(context: Context, shape: TargetShape) -> list[Group]:
    """From the most to the least wanted: DSpark at every context, all methods at the first, longer blocks, the rest."""
    (short, *_), (k, *longer) = context.scale.contexts, context.scale.blocks
    others = [method for method in METHODS if method != "dspark"]
    first = [Group(shape, "dspark", k, cached) for cached in context.scale.contexts]
    first += [Group(shape, method, k, short) for method in others]
    first += [Group(shape, method, length, short) for length in longer for method in ("dspark", *others)]
    rest = [
        Group(shape, method, length, cached)
        for cached in context.scale.contexts
        for length in context.scale.blocks
        for method in ("dspark", *others)
    ]
    return list(dict.fromkeys([*first, *rest]))


def run(context: Context, found: Findings) -> None:
    """Two thirds of the time for the first target, the rest for the others."""
    shapes = context.scale.targets
    table = found.table("Rounds of real shapes, random weights, acceptance from the paper", *_COLUMNS)
    worst: dict[tuple[str, int], float] = {}
    refused: dict[str, None] = {}
    for index, shape in enumerate(shapes):
        part = context.budget.share(2 / 3 if index + 1 < len(shapes) else 1.0)
        wanted = groups(context, shape)
        for done, group in enumerate(wanted):
            if done and part.left() <= 0:
                found.cut.append(f"{shape.name}: {len(wanted) - done} of {len(wanted)} groups, the least wanted ones")
                break
            _group(context, table, group, worst, refused, budget=part)
            context.free()
            context.flush()
    low, high = context.scale.aimed_rows
    for (name, cached), ratio in worst.items():
        found.aim(f"{name}, context {cached}: T_verify over roofline, worst measured of batch {low} to {high}", ratio,
                  limit=RATIO, unit="times", judged=context.scale.cuda)  # fmt: skip
    found.notes += [
        "Floor: the larger of bytes over the measured copy bandwidth and operations over the measured matrix rate.",
        "T_draft holds proposing and committing. Loop 'graphs': padded steps, captured on a GPU; 'plain': as they are.",
        *(f"graphs were not used: {reason}" for reason in refused),
    ]


def _group(
    context: Context,
    table: Table,
    group: Group,
    worst: dict[tuple[str, int], float],
    refused: dict[str, None],
    *,
    budget: Budget,
) -> None:
    """Every batch with graphs; the largest, the smallest and the one between also without."""
    scale = context.scale
    bench = seated(context, group.shape, group.method, k=group.k, batches=scale.batches, cached=group.cached)
    plain = scale.batches[:3]
    for rows in scale.batches:
        for graphs in (True, False) if rows in plain else (True,):
            if budget.left() <= 0 and rows != scale.batches[0]:
                continue
            bench.use(rows, graphs=graphs)
            split = Split.of(rounds(bench.engine, warmup=scale.warmup, repeats=scale.repeats, budget=budget.share(0.2)))
            reason = bench.not_padded() if graphs else None
            if reason is not None:
                refused[f"{group.method}: {reason}"] = None
                continue
            ratio = _add(context, table, group, rows, split, graphs=graphs)
            low, high = scale.aimed_rows
            if graphs and low <= rows <= high:
                key = (group.shape.name, group.cached)
                worst[key] = max(worst.get(key, 0.0), ratio)


def _add(context: Context, table: Table, group: Group, rows: int, split: Split, *, graphs: bool) -> float:
    """One row; T_verify over the floor."""
    itemsize = context.scale.dtype.itemsize
    work = forward_work(group.shape, rows=rows, tokens_per_row=group.k + 1, context=group.cached, itemsize=itemsize)
    floor_s = context.ceilings().floor_s(bytes_moved=work.bytes_moved, operations=work.operations)
    ratio = split.verify.median_s / floor_s
    phases = [timing.median_ms for timing in split]
    table.add(group.shape.name, group.method, group.k, group.cached, rows, "graphs" if graphs else "plain", *phases,
              100 * split.whole.spread, 1e3 * floor_s, ratio)  # fmt: skip
    return ratio
