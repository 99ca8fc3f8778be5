"""Steps a second of the target: the curve by tokens that policies plan by, and the forward against the roofline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from specbench.engine import cost_table
from specbench.engine.target import Target
from specbench.types import Taps
from tests.gpu.context import Context
from tests.gpu.findings import Findings
from tests.gpu.forwards import Forward, compiled, make_pool
from tests.gpu.roofline import forward_work
from tests.gpu.scales import TargetShape
from tests.gpu.timing import Budget, Timing, timed

RATIO = 1.3  # T_verify over the roofline: the aim
_SHOWN = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
Point = tuple[int, int]
"""Cached tokens a row, and rows."""


@dataclass(slots=True)
class Variants:
    """Times of one point by variant; what was not measured has no entry."""

    times: dict[str, Timing] = field(default_factory=dict)

    def ms(self, name: str) -> float | None:
        """Median milliseconds."""
        return self.times[name].median_ms if name in self.times else None

    def best(self) -> Timing | None:
        """The fastest."""
        return min(self.times.values(), key=lambda timing: timing.median_s, default=None)


def run(context: Context, found: Findings) -> None:
    """Each target in turn, half of the time for each."""
    shapes = context.scale.targets
    for index, shape in enumerate(shapes):
        _target(context, found, shape, budget=context.budget.share(1 / (len(shapes) - index)))
        context.flush()


def _target(context: Context, found: Findings, shape: TargetShape, *, budget: Budget) -> None:
    scale = context.scale
    target = context.target(shape)
    target.lm.set_taps(Taps())
    block = min(scale.blocks) + 1
    costs = context.cost_table(shape, draft_length=block - 1, max_rows=max(scale.batches))
    found.facts[f"cost table {shape.name}"] = cost_table.to_document(costs)
    curve = found.table(f"{shape.name}: steps a second by tokens in the batch (launched call by call)",
                        "tokens", "steps/s", "tokens/s", "spread %")  # fmt: skip
    for tokens, rate, spread in zip(costs.tokens, costs.steps_per_s, costs.spread, strict=True):
        if tokens in _SHOWN or tokens == costs.max_tokens:
            curve.add(tokens, rate, rate * tokens, 100 * spread)
    context.flush()
    measured = _grid(context, found, shape, target, block=block, budget=budget)
    _report(context, found, shape, measured, block=block)


def _grid(
    context: Context, found: Findings, shape: TargetShape, target: Target, *, block: int, budget: Budget
) -> dict[Point, Variants]:
    """The forward at every point, plain first, then with compiled modules in what is left of the budget."""
    scale = context.scale
    pool = make_pool(target, rows=max(scale.batches), tokens=max(scale.contexts) + block)
    points = [(cached, rows) for rows in scale.batches for cached in scale.contexts]
    measured = {point: Variants() for point in points}

    def measure(point: Point, suffix: str, part: Budget) -> None:
        cached, rows = point
        forward = Forward(target, rows=rows, tokens_per_row=block, cached=cached, pool=pool)
        calls: dict[str, Callable[[], object]] = {f"eager{suffix}": forward}
        if scale.cuda:
            calls[f"graph{suffix}"] = forward.captured()
        for name, call in calls.items():
            measured[point].times[name] = timed(
                call, device=scale.device, budget=part, warmup=scale.warmup, repeats=scale.repeats
            )

    _spend(points, found, budget.share(0.5), what=f"{shape.name}, plain", measure=lambda p, b: measure(p, "", b))
    if budget.left() <= 0:
        found.cut.append(f"{shape.name}: torch.compile was not tried")
        return measured
    with compiled(target, backend="inductor" if scale.cuda else "eager") as count:
        found.notes.append(f"{shape.name}: 'compiled' runs {count} MLPs and norms through torch.compile; attention and"
                           " its projections stay as they are")  # fmt: skip
        _spend(points, found, budget, what=f"{shape.name}, compiled",
               measure=lambda p, b: measure(p, " compiled", b))  # fmt: skip
    return measured


def _spend(
    points: list[Point], found: Findings, budget: Budget, *, what: str, measure: Callable[[Point, Budget], None]
) -> None:
    """Measure point after point, equal shares of what is left for each, until the budget is spent."""
    for index, point in enumerate(points):
        if index and budget.left() <= 0:
            found.cut.append(f"{what}: {len(points) - index} of {len(points)} points")
            return
        measure(point, budget.share(1 / (len(points) - index)))


def _report(
    context: Context, found: Findings, shape: TargetShape, measured: Mapping[Point, Variants], *, block: int
) -> None:
    names = ["eager", "graph", "eager compiled", "graph compiled"]
    table = found.table(f"{shape.name}: the forward over rows of {block} tokens, in ms, against the roofline",
                        "context", "rows", *names, "floor", "best / floor", "spread %")  # fmt: skip
    worst: dict[int, float] = {}
    low, high = context.scale.aimed_rows
    for (cached, rows), variants in sorted(measured.items()):
        floor_s = _floor_s(context, shape, cached=cached, rows=rows, block=block)
        best = variants.best()
        if best is None:
            continue
        ratio = best.median_s / floor_s
        table.add(cached, rows, *(variants.ms(name) for name in names), 1e3 * floor_s, ratio, 100 * best.spread)
        if low <= rows <= high:
            worst[cached] = max(worst.get(cached, 0.0), ratio)
    for cached, ratio in worst.items():
        found.aim(f"{shape.name}, context {cached}: forward over roofline, worst of batch {low} to {high}", ratio,
                  limit=RATIO, unit="times", judged=context.scale.cuda)  # fmt: skip


def _floor_s(context: Context, shape: TargetShape, *, cached: int, rows: int, block: int) -> float:
    work = forward_work(shape, rows=rows, tokens_per_row=block, context=cached, itemsize=context.scale.dtype.itemsize)
    return context.ceilings().floor_s(bytes_moved=work.bytes_moved, operations=work.operations)
