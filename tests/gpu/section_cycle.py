"""T_draft and T_verify of whole rounds in the engine: by method, block, batch and context, against the roofline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.gpu.context import Context
from tests.gpu.engines import not_padded, seated
from tests.gpu.findings import Findings, Table
from tests.gpu.models import METHODS
from tests.gpu.roofline import forward_work
from tests.gpu.scales import TargetShape
from tests.gpu.seating import Split, rounds
from tests.gpu.section_sps import RATIO
from tests.gpu.timing import Budget

_COLUMNS = ("target", "method", "k", "batch", "context", "loop", "T_draft ms", "T_schedule ms", "T_verify ms",
            "T_accept ms", "T_other ms", "round ms", "spread %", "floor ms", "T_verify / floor")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Point:
    """One contestant at one load."""

    shape: TargetShape
    method: str
    k: int
    rows: int
    cached: int
    graphs: bool


def points(context: Context) -> Iterator[Point]:
    """From the most to the least wanted: what the aims speak of, then every method, then the second target."""
    scale = context.scale
    first, *others = scale.targets
    short, *longer = scale.contexts
    low, high = scale.aimed_rows
    aimed = [rows for rows in scale.batches if low <= rows <= high]
    beyond = [rows for rows in scale.batches if rows not in aimed]
    k, *wider = scale.blocks

    def all_methods(shape: TargetShape, length: int, cached: int, batches: list[int]) -> Iterator[Point]:
        for rows in batches:
            for method in METHODS:
                for graphs in (True, False):
                    yield Point(shape, method, length, rows, cached, graphs)

    made = [
        *(Point(first, "dspark", k, rows, cached, True) for cached in scale.contexts for rows in aimed),
        *all_methods(first, k, short, [scale.batches[0], *beyond[:1]]),
        *(point for cached in longer for point in all_methods(first, k, cached, beyond[:1])),
        *(point for length in wider for point in all_methods(first, length, short, [scale.batches[0], *beyond[:1]])),
        *(Point(shape, "dspark", k, rows, cached, True)
          for shape in others for cached in scale.contexts for rows in [*aimed[:3], *beyond[:1]]),
        *(point for shape in others for point in all_methods(shape, k, short, [scale.batches[0], *beyond[:1]])),
        *(point for cached in scale.contexts for point in all_methods(first, k, cached, [*aimed, *beyond])),
        *(point for length in wider for cached in scale.contexts
          for point in all_methods(first, length, cached, [*aimed, *beyond])),
    ]  # fmt: skip
    yield from dict.fromkeys(made)


def run(context: Context, found: Findings) -> None:
    """Point after point until the budget is spent; results are kept as they come."""
    table = found.table("Rounds of real shapes, random weights, acceptance from the paper", *_COLUMNS)
    wanted = list(points(context))
    worst: dict[tuple[str, int], float] = {}
    refused: dict[str, None] = {}
    for index, point in enumerate(wanted):
        if index and context.budget.left() <= 0:
            found.cut.append(f"{len(wanted) - index} of {len(wanted)} points, the least wanted ones")
            break
        ratio = _measure(context, table, point, refused, budget=context.budget.share(0.25))
        low, high = context.scale.aimed_rows
        if ratio is not None and point.graphs and low <= point.rows <= high:
            key = (point.shape.name, point.cached)
            worst[key] = max(worst.get(key, 0.0), ratio)
        if index % 8 == 7:
            context.flush()
    for (name, cached), ratio in worst.items():
        found.aim(f"{name}, context {cached}: T_verify over roofline, worst measured of batch 1 to 32", ratio,
                  limit=RATIO, unit="times", judged=context.scale.cuda)  # fmt: skip
    found.notes += [
        "Floor: the larger of bytes over the measured copy bandwidth and operations over the measured matrix rate.",
        "T_draft holds proposing and committing. Loop 'graphs': padded steps, captured on a GPU; 'plain': as they are.",
        *(f"graphs were not used: {reason}" for reason in refused),
    ]


def _measure(context: Context, table: Table, point: Point, refused: dict[str, None], *, budget: Budget) -> float | None:
    """One point; T_verify over the floor, None where the loop that was asked for was not used."""
    scale, shape = context.scale, point.shape
    engine = seated(context, shape, point.method, k=point.k, rows=point.rows, cached=point.cached, graphs=point.graphs)
    split = Split.of(rounds(engine, warmup=scale.warmup, repeats=scale.repeats, budget=budget))
    reason = not_padded(engine) if point.graphs else None
    del engine
    if reason is not None:
        refused[f"{point.method}: {reason}"] = None
        return None
    work = forward_work(
        shape,
        rows=point.rows,
        tokens_per_row=point.k + 1,
        context=point.cached,
        itemsize=scale.dtype.itemsize,
    )
    floor_s = context.ceilings().floor_s(bytes_moved=work.bytes_moved, operations=work.operations)
    ratio = split.verify.median_s / floor_s
    phases = [timing.median_ms for timing in split]
    loop = "graphs" if point.graphs else "plain"
    table.add(shape.name, point.method, point.k, point.rows, point.cached, loop, *phases,
              100 * split.whole.spread, 1e3 * floor_s, ratio)  # fmt: skip
    return ratio
