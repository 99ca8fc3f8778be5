"""What a step costs on this machine: the target's forward by tokens and rows, and each drafter's proposal by rows.

The forward is timed on flat batches like the engine's, with ``context`` cached tokens a row; a proposal inside the real
engine. Repeats go round and round over the points, so that a slow minute hits all of them; medians are kept, curves
are not smoothed.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from specbench.backends.engine import Contestant, build_contestant
from specbench.cell import plan_cell
from specbench.config import BASELINE, MethodSpec, RunSpec
from specbench.engine import cost_table
from specbench.engine.cost_table import CostTable, PromptCost, RowCost, WidthCost
from specbench.engine.target import Target
from specbench.errors import ConfigError
from specbench.modeling.layout import BatchLayout, RowSpan
from specbench.modeling.pool import PAGE, KVPool, pages_for, pool_dtype
from specbench.planning import origin, table_path
from specbench.profile_drafter import DraftTimings, OnProgress, now, profile_drafter, spread
from specbench.records.store import write_atomic
from specbench.resolve import silent_step
from specbench.session import Session, Step, open_session

WIDTH_POINTS = (2, 3, 4)  # tokens a row, between one and full rows
UNLIKE_ROWS = (1, 2, 1, 4)  # tokens of rows after one another that stand for uneven steps
PROMPT_POINTS = (1, 16, 32, 64, 128, 256, 512)  # tokens of a prompt chunk; the engine's own chunks have up to 512
LONGEST_BLOCK = 16  # drafts a round that the timed proposals leave room for


@dataclass(frozen=True, slots=True)
class ProfileSettings:
    """How much is measured. Tokens go up to ``max_rows`` * (``draft_length`` + 1)."""

    draft_length: int = 7
    max_rows: int = 64
    context: int = 128
    repeats: int = 5
    warmup: int = 2


def token_points(most: int) -> list[int]:
    """Tokens to measure: every count to 16, then wider steps, and both sides of every 64 tokens up to 512."""
    found = {*range(1, 17), *range(16, 65, 4), *range(64, 257, 16), *range(256, most + 1, 64), most}
    found |= {edge + side for edge in range(64, 513, 64) for side in (0, 1)}
    return sorted(n for n in found if n <= most)


def row_points(most: int) -> list[int]:
    """Rows to measure: 1, 2, 4, ... and the most."""
    found = {most}
    rows = 1
    while rows < most:
        found.add(rows)
        rows *= 2
    return sorted(found)


# ------------------------------------------------------------------------------------------------------ target


@dataclass(frozen=True, slots=True)
class _Shape:
    """A flat batch of ``tokens`` tokens over ``rows`` rows, as even as can be.

    ``prompt``: the beginning of one row's prompt, with nothing cached and logits for its last token alone.
    ``pattern``: tokens of the rows, over and over, where they are to be unlike.
    """

    rows: int
    tokens: int
    prompt: bool = False
    pattern: tuple[int, ...] = ()

    def counts(self) -> list[int]:
        if self.pattern:
            return [count for count, _ in zip(cycle(self.pattern), range(self.rows), strict=False)]
        base, more = divmod(self.tokens, self.rows)
        return [base + (row < more) for row in range(self.rows)]


def profile_target(
    target: Target, settings: ProfileSettings, *, on_progress: OnProgress = lambda done, of: None
) -> CostTable:
    """Time the forward over tokens (rows filled to ``draft_length`` + 1 tokens) and over rows of one token each.

    The time of rows is told apart from that of tokens: a step of R rows and B tokens takes row_cost(R) + time(B),
    which is what was measured for full rows and for rows that draft nothing; what rows of two to four tokens take more
    or less than that comes beside it. Prompt chunks are timed too.
    """
    block = settings.draft_length + 1
    most = settings.max_rows * block
    rows = row_points(settings.max_rows)
    tokens = sorted({*token_points(most), *rows})
    by_tokens = {m: _Shape(-(-m // block), m) for m in tokens}
    by_rows = {r: _Shape(r, r) for r in rows}
    widths = [width for width in WIDTH_POINTS if width < block]
    by_width = {(r, width): _Shape(r, r * width) for r in rows for width in widths}
    prompts = {m: _Shape(1, m, prompt=True) for m in PROMPT_POINTS if m <= target.context_limit}
    unlike = {r: _unlike(r, most=block) for r in rows if r > 1}
    kinds = (by_tokens, by_rows, by_width, unlike, prompts)
    shapes = list(dict.fromkeys(shape for kind in kinds for shape in kind.values()))
    seconds = _time_forwards(target, shapes, settings, on_progress)
    whole = {m: statistics.median(seconds[by_tokens[m]]) for m in tokens}
    row_cost = RowCost(
        tuple(rows),
        _row_seconds([statistics.median(seconds[by_rows[r]]) for r in rows], rows, whole, by_tokens),
        tuple(spread(seconds[by_rows[r]]) for r in rows),
    )
    table = CostTable(
        tokens=tuple(tokens),
        steps_per_s=tuple(1.0 / (whole[m] - float(row_cost.at(by_tokens[m].rows))) for m in tokens),
        max_tokens=most,
        lookup="linear",
        spread=tuple(spread(seconds[by_tokens[m]]) for m in tokens),
        tokens_per_row=block,
        row_cost=row_cost,
        prompt=PromptCost(
            tuple(prompts),
            tuple(statistics.median(seconds[shape]) for shape in prompts.values()),
            tuple(spread(seconds[shape]) for shape in prompts.values()),
        ),
    )
    if widths:
        table = replace(table, width_cost=_width_cost(table, rows, widths, by_width, seconds))
    return replace(table, uneven_cost=_uneven_cost(table, unlike, seconds)) if unlike and block > 1 else table


def _unlike(rows: int, *, most: int) -> _Shape:
    pattern = tuple(min(count, most) for count in UNLIKE_ROWS)
    shape = _Shape(rows, 0, pattern=pattern)
    return replace(shape, tokens=sum(shape.counts()))


def _uneven_cost(table: CostTable, shapes: Mapping[int, _Shape], seconds: Mapping[_Shape, Sequence[float]]) -> RowCost:
    """What was measured of unlike rows beyond what the table says of so many tokens in equal rows, not below 0."""
    spent = {
        r: statistics.median(seconds[shape]) - float(table.seconds(shape.tokens, rows=r)) for r, shape in shapes.items()
    }
    return RowCost((1, *shapes), (0.0, *(max(0.0, more) for more in spent.values())))


def _width_cost(
    table: CostTable,
    rows: Sequence[int],
    widths: Sequence[int],
    shapes: Mapping[tuple[int, int], _Shape],
    seconds: Mapping[_Shape, Sequence[float]],
) -> WidthCost:
    """What was measured of partly filled rows beyond what the table says of so many tokens and rows."""
    assert table.tokens_per_row is not None
    lines = [
        [statistics.median(seconds[shapes[r, w]]) - float(table.seconds(r * w, rows=r)) for w in widths] for r in rows
    ]
    return WidthCost(tuple(rows), (1, *widths, table.tokens_per_row), tuple((0.0, *line, 0.0) for line in lines))


def _row_seconds(
    medians: Sequence[float], rows: Sequence[int], whole: Mapping[int, float], shapes: Mapping[int, _Shape]
) -> tuple[float, ...]:
    """What rows add to a step beyond the first, from steps of R rows of one token (``medians``).

    As many tokens in full rows took ``whole``, the cost of those fewer rows with it. At most half of any step that is
    read with it: a stall is no cost.
    """
    found: list[float] = []
    for index, median in enumerate(medians):
        if not index:
            found.append(0.0)
            continue
        known = float(np.interp(shapes[rows[index]].rows, rows[:index], found))
        cap = 0.5 * min((whole[m] for m, shape in shapes.items() if shape.rows > rows[index - 1]), default=median)
        found.append(min(max(known + median - whole[rows[index]], 0.0), cap))
    return tuple(found)


@torch.inference_mode()
def _time_forwards(
    target: Target, shapes: Sequence[_Shape], settings: ProfileSettings, on_progress: OnProgress
) -> dict[_Shape, list[float]]:
    cached = {shape: 0 if shape.prompt else settings.context for shape in shapes}
    pages = {shape: pages_for(cached[shape] + max(shape.counts())) for shape in shapes}
    lm = target.lm
    most = max(shape.rows * pages[shape] for shape in shapes)
    kept = pool_dtype(lm.layer_shapes, dtype=lm.dtype, device=lm.device, tokens=most * PAGE, budget_bytes=None)
    pool = KVPool(lm.layer_shapes, num_pages=most, dtype=kept, device=lm.device)
    generator = torch.Generator().manual_seed(0)
    batches: dict[_Shape, tuple[Tensor, list[RowSpan]]] = {}
    for shape in shapes:
        spans, at = [], 0
        for row, count in enumerate(shape.counts()):
            held = range(row * pages[shape], (row + 1) * pages[shape])
            spans.append(RowSpan(at, count, cached[shape] + count, held))
            at += count
        ids = torch.randint(0, target.vocab_size, (shape.tokens,), generator=generator).to(lm.device)
        batches[shape] = (ids, spans)
    seconds: dict[_Shape, list[float]] = {shape: [] for shape in shapes}
    total = (settings.warmup + settings.repeats) * len(shapes)
    for turn in range(settings.warmup + settings.repeats):
        for index, shape in enumerate(shapes):
            ids, spans = batches[shape]
            wanted = torch.tensor([shape.tokens - 1], device=lm.device) if shape.prompt else None
            start = now(lm.device)
            layout = BatchLayout.build(spans, lm.device)
            lm.forward(ids, layout=layout, pool=pool, logits_at=wanted).logits.argmax(dim=-1).tolist()
            spent = now(lm.device) - start
            if turn >= settings.warmup:
                seconds[shape].append(spent)
            on_progress(turn * len(shapes) + index + 1, total)
    return seconds


# --------------------------------------------------------------------------------------------------------- job


@dataclass(frozen=True, slots=True)
class ProfileResult:
    """The table and where it was written."""

    table: CostTable
    path: Path


def profile(
    spec: RunSpec,
    settings: ProfileSettings,
    *,
    out: Path | None = None,
    on_progress: Callable[[str, int, int], None] = lambda what, done, of: None,
    step: Step = silent_step,
) -> ProfileResult:
    """Measure the run's target, and the price of drafting for each of its methods, and write the table.

    ``out`` None writes where runs on this machine look for it. Errors: ConfigError, TargetError, DrafterError,
    CapacityError.
    """
    fixed = spec.model_copy(
        update={"policy": "fixed", "calibration": "off", "concurrency": settings.max_rows, "num_prompts": 1}
    )
    session = open_session(fixed, step=step)
    room = (settings.warmup + settings.repeats + 4) * (max(settings.draft_length, LONGEST_BLOCK) + 1)
    max_context = settings.context + room
    if max_context > session.target.context_limit:
        raise ConfigError(
            f"a profile at context {settings.context} needs {max_context} tokens, the target holds "
            f"{session.target.context_limit}; give a shorter --context"
        )
    place = origin(
        device=session.device,
        weights_sha256=session.resolved.weights_sha256,
        dtype=session.dtype,
        threads=session.threads,
    )
    builders = {
        method.name: _builder(session, method, max_context, step) for method in fixed.methods if method.name != BASELINE
    }
    table = profile_target(session.target, settings, on_progress=lambda done, of: on_progress("target", done, of))
    timings = DraftTimings(
        row_points(settings.max_rows), settings.context, max_context, repeats=settings.repeats, warmup=settings.warmup
    )
    draft = {
        method: profile_drafter(
            session.target,
            build,
            timings,
            sampling=spec.sampling,
            on_progress=partial(on_progress, method),
        )
        for method, build in builders.items()
    }
    table = replace(table, draft=draft, origin=replace(place, context=settings.context))
    path = out or table_path(place)
    write_atomic(path, (json.dumps(cost_table.to_document(table), indent=1) + "\n").encode())
    return ProfileResult(table, path)


def _builder(session: Session, method: MethodSpec, max_context: int, step: Step) -> Callable[[int], Contestant]:
    """Contestants of a method, for so many rows each; one is tried at once, so that a bad checkpoint is found first."""
    cell = plan_cell(session, method, step=step)

    def build(rows: int) -> Contestant:
        return build_contestant(
            method.name,
            target=replace(session.view, max_rows=rows, max_context=max_context),
            checkpoint=cell.checkpoint.path if cell.checkpoint is not None else None,
            options=session.spec.options.get(method.name, {}),
            policy=("fixed", None),
            draft_length=session.spec.length_of(method),
        )

    return build
