"""Records that the paper's figures can be drawn from: made through the schema, with one that has a hostile name."""

from __future__ import annotations

from typing import Any

from support_site import HOSTILE, cell

from specbench.records import schema
from specbench.records.schema import Record

NASTY = r'$\frac{1}{0}$ _x --> & ]]> "quoted" ' + HOSTILE


def changed(record: Record, **fields: Any) -> Record:
    """The record with other fields; dictionaries are merged into what is there."""
    document = record.model_dump(mode="json")
    del document["run_id"]
    for name, value in fields.items():
        document[name] = {**document[name], **value} if isinstance(value, dict) and document.get(name) else value
    return schema.build(**document)


def row(metric: str, value: float, unit: str = "fraction", **scope: str) -> dict[str, Any]:
    return {"metric": metric, "value": value, "unit": unit, "n": 50, "n_of": "rounds", "scope": scope,
            "low": value - 0.1, "high": value + 0.1, "interval": "bootstrap over prompts"}  # fmt: skip


def with_rows(record: Record, *rows: dict[str, Any], **fields: Any) -> Record:
    return changed(record, estimates=[*record.model_dump(mode="json")["estimates"], *rows], **fields)


def table_cell(method: str, tau: float, *, target: str, drafter: str, task: str = "gsm8k", **more: Any) -> Record:
    """One run of one task as for table 1."""
    base = cell(method, target=target, drafter=drafter, temperature=1.0, detail=False, **more)
    return with_rows(base, row("tau", tau, "tokens per round", task=task), spec={"tasks": [task]})


def full_set() -> list[Record]:
    """Enough for every figure, and few sheets of each."""
    plain = cell("vanilla")
    spark, flash = cell("dspark"), cell("dflash")
    rate = [row("acceptance_rate", 0.6, gamma="7"), row("conditional", 0.91, k="1", domain="math"),
            row("conditional", 0.90, k="2", domain="math")]  # fmt: skip
    spark = with_rows(spark, *rate, drafter={"details": {"layers": 2}})
    deep = changed(cell("dspark", drafter=NASTY), drafter={"details": {"layers": 5}})
    cut = with_rows(cell("dspark", policy="threshold:0.5"), row("acceptance_rate", 0.8, gamma="7"),
                    spec={"inputs": {"calibration": "c" * 64}})  # fmt: skip
    loads = [cell(method, users=8, detail=False) for method in ("vanilla", "dspark", "dflash")]
    table = table_cell("dspark", 6.2, target="Qwen/Qwen3-4B", drafter="deepseek-ai/dspark_qwen3_4b_block7")
    more = [cell("dspark", k=3), deep, cut, *loads, table, cell("dflash", k=9, outcome="fail")]
    return [one_domain(record) for record in (plain, spark, flash, *more)]


def one_domain(record: Record) -> Record:
    """Fewer panels: without what it says of chat and code."""
    rows = record.model_dump(mode="json")["estimates"]
    return changed(record, estimates=[one for one in rows if one["scope"].get("domain") not in ("chat", "code")])
