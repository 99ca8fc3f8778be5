"""Throughput against tok/s/user over concurrency, fixed lengths against the load-aware policy, acceptance forced.

Every cell goes through the project's own session, measurement, metrics and records. Its rows are marked synthetic and
never rank; no text is judged.
"""

from __future__ import annotations

from specbench import provenance
from specbench.config import BASELINE
from specbench.records.schema import Record
from tests.gpu.acceptance import STAND_IN, paper_rates
from tests.gpu.context import Context
from tests.gpu.findings import Findings, Table
from tests.gpu.sessions import TEMPERATURE, Arm, open_random_session, run_arm

_COLUMNS = ("users", "method", "loop", "throughput tok/s", "tok/s/user", "tau", "tokens verified a row", "T_draft ms",
            "T_verify ms", "round ms", "record")  # fmt: skip


_MAIN = 5
"""Contestants that are measured at every load before any other is, and at the first load whatever it takes."""


def arms(draft_length: int) -> tuple[Arm, ...]:
    """Plain decoding, the paper's production baseline of one draft, and the block drafters at the paper's length.

    Padded steps round the capacity of the load-aware policy up to one of a few sizes, so all of its gain shows only
    where steps run as they are: it is measured there, and the fixed length beside it there too.
    """
    return (
        Arm(BASELINE, 0),
        Arm("dspark", draft_length),
        Arm("dspark", draft_length, graphs=False),
        Arm("dspark", draft_length, "load-aware:lag=2", graphs=False),
        Arm("mtp", 1),
        Arm("dflash", draft_length),
        Arm("eagle3", draft_length),
    )


def run(context: Context, found: Findings) -> None:
    """Load after load, every contestant at each, until the budget is spent."""
    scale, shape = context.scale, context.scale.targets[0]
    length = min(scale.blocks)
    cost = context.cost_table(shape, draft_length=length, max_rows=max(scale.loads))
    machine = provenance.collect(device=scale.device.type)
    table = found.table(
        f"{shape.name}, T = {TEMPERATURE:g}, {scale.load_new_tokens} new tokens, closed loop", *_COLUMNS
    )
    main, others = arms(length)[:_MAIN], arms(length)[_MAIN:]
    cells = [(rows, arm) for chosen in (main, others) for rows in scale.loads for arm in chosen]
    session = None
    for index, (rows, arm) in enumerate(cells):
        if index >= _MAIN and context.budget.left() <= 0:
            found.cut.append(f"{len(cells) - index} of {len(cells)} cells, the least wanted loads")
            break
        if session is None or session.spec.concurrency != rows:
            session = open_random_session(context, shape, rows=rows)
        record = run_arm(context, shape, arm, session, cost=cost, machine=machine)
        _add(table, rows, arm, record)
        context.free()
        context.flush()
    table.rows.sort(key=lambda row: int(row[0] or 0))
    for method in ("mtp", "dflash", "dspark", "eagle3"):
        rates = paper_rates(method, draft_length=1 if method == "mtp" else length)
        shown = ", ".join(f"{rate:.3f}" for rate in rates.conditional)
        found.notes.append(f"{method}: accepted at {shown} ({rates.source}), so tau {rates.tau:.2f}")
    found.notes += [
        f"MTP-1's rate stands in for one that the paper does not print: it is {STAND_IN}'s.",
        "Confidences say exactly these rates, alike for every row: the load-aware policy can tell positions apart, not "
        "rows, so its gain here is that of the length alone.",
        "Synthetic rows never rank. Throughput is that of the steady window.",
    ]


def _add(table: Table, rows: int, arm: Arm, record: Record) -> None:
    """One cell's row from its record's estimates; what a record has no data for is absent."""

    def value(metric: str, *, factor: float = 1.0, **scope: str) -> float | None:
        row = record.find(metric, **scope)
        return None if row is None else factor * row.value

    def phase(metric: str) -> float | None:
        return value(metric, factor=1e3, steps="decode", stat="median")

    table.add(
        rows,
        arm.label,
        "graphs" if arm.graphs else "plain",
        value("steady_tokens_per_s"),
        value("tokens_per_s_user", stat="mean"),
        value("tau"),
        value("verification_budget"),
        phase("T_draft"),
        phase("T_verify"),
        phase("T_round"),
        record.run_id,
    )
